"""A shape's Delta table. The position lives with the data: every flush is one commit that carries its offset.

1. A commit names its writer, `txnAppId` (constant for a shape), and its offset, `txnVersion`. Delta skips, in
   silence, a commit whose version the table has already; so each attempt reads the table's offset first, and
   only an offset that was read back counts as flushed.
2. Two writers of one name can't mix: whoever commits second, on top of a table that it hasn't read, fails
   with TableConflict and has changed nothing.
3. Deletion vectors are off: `deltalake`'s `to_pyarrow_table` and `to_pandas` refuse tables that have
   them. With files as small as ours they saved no time either: one row into a million took as long without.

A ShapeTable belongs to one session and does one thing at a time: the two settings are the session's.
Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.spark.apply import DELETE, KeyRange, NetChanges
from penstock.spark.decode import ABSENT, ACTION
from penstock.spark.names import column_of, quote

PROPERTIES: Final = MappingProxyType(
    {
        "delta.enableDeletionVectors": "false",
        # A column of this type can't be added later otherwise. `deltalake` reads it.
        "delta.feature.timestampNtz": "supported",
        "delta.checkpointInterval": "100",
        "delta.logRetentionDuration": "interval 1 days",
        "delta.deletedFileRetentionDuration": "interval 1 days",
    }
)
# A flush reads and rewrites each file that may hold one of its keys.
_FILE_ROWS: Final = 50_000
_CONFLICTS: Final = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"


class TableConflict(PenstockError):
    """Somebody else committed to the table meanwhile. Nothing was changed."""


class OffsetRefused(PenstockError):
    """The table is already at or past the offset that was to be written, or lacks one that was."""


class ShapeTable:
    """The Delta table at `path`, written under the name `app_id`, through a session of its own."""

    def __init__(self, spark: SparkSession, path: str, app_id: str) -> None:
        self._spark = spark
        self._path = path
        self._app_id = app_id

    def exists(self) -> bool:
        """Whether there is a Delta table."""
        return DeltaTable.isDeltaTable(self._spark, self._path)

    def create(self, schema: StructType) -> None:
        """Make an empty table, without an offset."""
        builder = DeltaTable.create(self._spark).location(self._path).addColumns(schema)
        for name, value in PROPERTIES.items():
            builder = builder.property(name, value)
        builder.execute()

    def rows(self) -> DataFrame:
        """The table as it is now."""
        return self._spark.read.format("delta").load(self._path)

    def read_offset(self) -> int | None:
        """The offset of the last flush or snapshot; None if there is none. Looks into the log each time.

        Delta writes the offsets into a small file beside each commit. Only where that one is missing does
        this cost a Spark job.
        """
        delta_log = self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            self._spark._jsparkSession, self._path
        )
        nothing = getattr(delta_log, "update$default$2")()
        snapshot = delta_log.update(False, nothing, nothing)
        if snapshot.version() < 0:
            return None
        checksum = snapshot.checksumOpt()
        known = checksum.get().setTransactions() if checksum.isDefined() else nothing
        transactions = known.get() if known.isDefined() else snapshot.setTransactions()
        versions = [
            transactions.apply(place).version()
            for place in range(transactions.size())
            if transactions.apply(place).appId() == self._app_id
        ]
        return max(versions, default=None)

    def merge(self, net: NetChanges, version: int) -> int:
        """Apply a batch in one commit with the offset `version`; return the offset that the table then has.

        A table that is already there, or further, is left as it is. TableConflict if another writer was
        faster.
        """
        at = self.read_offset()
        if at is not None and at >= version:
            return at
        merge = (
            DeltaTable.forPath(self._spark, self._path).alias("t").merge(net.rows.alias("s"), _condition(net))
        )
        values = {name: column_of(name, "s") for name in net.columns}
        updates = {name: _updated(name, net) for name in net.columns if name not in net.key}
        deleted = F.col(f"s.{ACTION}") == DELETE
        merge = merge.whenMatchedDelete(deleted)
        if updates:
            merge = merge.whenMatchedUpdate(set=_quoted(updates))
        merge = merge.whenNotMatchedInsert(~deleted, values=_quoted(values))
        if net.truncated:
            merge = merge.whenNotMatchedBySourceDelete()
        with self._committing(version):
            merge.execute()
        return self._read_back(version)

    def overwrite_from(self, rows: DataFrame, version: int) -> int:
        """Replace the table, columns included, in one commit with the offset `version`; make it if need be.

        OffsetRefused, before any work, if the table is already there or further: Delta would skip the commit.
        """
        at = self.read_offset()
        if at is not None and at >= version:
            raise OffsetRefused(f"{self._path} is at offset {at}: a snapshot at {version} would be skipped")
        writer = rows.write.format("delta").mode("overwrite").options(**PROPERTIES)
        writer = writer.option("overwriteSchema", "true").option("maxRecordsPerFile", _FILE_ROWS)
        # A writer goes by its DataFrame's session, which need not be ours; so the commit is named here.
        writer = writer.option("txnAppId", self._app_id).option("txnVersion", version)
        with self._explaining_conflicts():
            writer.save(self._path)
        return self._read_back(version)

    def add_columns(self, columns: StructType) -> None:
        """Add columns, null in every row. A commit of its own, without an offset."""
        definitions = ", ".join(
            f"{quote(field.name)} {field.dataType.simpleString()}" for field in columns.fields
        )
        self._spark.sql(f"ALTER TABLE delta.{quote(self._path)} ADD COLUMNS ({definitions})")

    def optimize(self) -> None:
        """Put small files together."""
        with self._explaining_conflicts():
            DeltaTable.forPath(self._spark, self._path).optimize().executeCompaction()

    def vacuum(self) -> None:
        """Delete files that no version of the last day needs."""
        DeltaTable.forPath(self._spark, self._path).vacuum()

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    @contextmanager
    def _committing(self, version: int) -> Iterator[None]:
        """Let the one operation inside commit under our name and this version."""
        self._spark.conf.set(_APP_ID, self._app_id)
        self._spark.conf.set(_VERSION, str(version))
        try:
            with self._explaining_conflicts():
                yield
        finally:
            self._spark.conf.unset(_APP_ID)
            self._spark.conf.unset(_VERSION)

    @contextmanager
    def _explaining_conflicts(self) -> Iterator[None]:
        try:
            yield
        except _CONFLICTS as error:
            name = type(error).__name__
            raise TableConflict(f"{self._path}: somebody else committed meanwhile ({name})") from error

    def _read_back(self, version: int) -> int:
        at = self.read_offset()
        if at is None or at < version:
            raise OffsetRefused(f"{self._path} is at offset {at} after a commit at {version}")
        return at


def _condition(net: NetChanges) -> Column:
    """Equal keys, within the batch's range: Delta then opens only files that may hold one of them."""
    same = [column_of(name, "t") == column_of(name, "s") for name in net.key]
    # A truncated table is read whole anyway.
    within = [] if net.truncated else [_within(each) for each in net.key_ranges]
    return reduce(Column.__and__, [*same, *within])


def _within(keys: KeyRange) -> Column:
    return column_of(keys.column, "t").between(F.lit(keys.low), F.lit(keys.high))


def _updated(name: str, net: NetChanges) -> Column:
    new = column_of(name, "s")
    if not net.partial:
        return new
    return F.when(F.array_contains(f"s.{ABSENT}", name), column_of(name, "t")).otherwise(new)


def _quoted(columns: dict[str, Column]) -> dict[str, str | Column]:
    return {quote(name): value for name, value in columns.items()}
