"""A shape's Delta table. The position lives with the data: every flush is one commit that carries its offset.

1. A commit names its writer, `txnAppId` (an AppId), and its offset, `txnVersion`. Delta skips, in silence, a
   commit whose version the table has already; so each attempt reads the table's offset first, and only an
   offset that was read back counts as flushed. On a new timeline LSNs may be lower than they were: it is
   another name. The table's offset is the one under its newest timeline.
2. Two writers of one name can't mix: whoever commits second, on top of a table that it hasn't read, fails
   with TableConflict and has changed nothing. Our log store (log_store.py) keeps to it on a file system.
3. Deletion vectors are off: `deltalake`'s `to_pyarrow_table` and `to_pandas` refuse tables that have
   them. With files as small as ours they saved no time either: one row into a million took as long without.
4. Dates and timestamps have no statistics: `deltalake` fails on those outside the years 1 to 9999, where
   Postgres' infinities are. A flush finds its files by other keys only.

A ShapeTable belongs to one session and does one thing at a time: the two settings are the session's.
Everything here blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.decoding.rows import ACTION
from penstock.decoding.rows import Column as TableColumn
from penstock.decoding.widening import TYPE_WIDENING, has_more_digits
from penstock.durable import sync_directory
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.conflicts import plain_conflicts
from penstock.lake.delta.data_files import DataFiles
from penstock.lake.delta.delta_log import DeltaLog, metadata_of, protocol_of
from penstock.lake.delta.foreign_commits import deleted_rows, harm, is_ours, read_version
from penstock.lake.delta.rearrange import FILE_ROWS, rows_a_file
from penstock.lake.delta.retype import retype
from penstock.lake.delta.rewritable import is_rewritable
from penstock.lake.delta.table_properties import CONSTRAINT, kept_properties, properties
from penstock.lake.delta.upkeep import Upkeep
from penstock.lake.errors import ForeignCommit, OffsetRefused, StorageFailed, TableAltered, TableConflict
from penstock.lake.fold.apply import DELETE, NetChanges
from penstock.lake.ports import KeyRanges, Position, TableVersion
from penstock.lake.spark.log_store import EXPECTED_VERSION
from penstock.lake.spark.names import column_of, quote
from penstock.lake.spark.spark_session import plain_errors

_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"
_NAME: Final = "spark.databricks.delta.commitInfo.userMetadata"


_logger = structlog.get_logger()


class ShapeTable:
    """See LakeTable. Delta's at `path`, written under the name `app_id`, through a session of its own."""

    def __init__(self, spark: SparkSession, path: str, app_id: AppId) -> None:
        self._spark = spark
        self._path = path if urlsplit(path).scheme else str(Path(path).absolute())
        self._app_id = app_id
        self._log = DeltaLog(spark, self._path)
        self._files: DataFiles | None = None
        self._trusted = -1
        """The version up to which no commit of others has changed rows."""
        self._upkeep = Upkeep(spark, self._path, app_id, self._log)
        self._settled: int | None = None

    @property
    def path(self) -> str:
        """Where it is."""
        return self._path

    def exists(self) -> bool:
        """Whether there is a Delta table."""
        with plain_errors(self._path):
            return DeltaTable.isDeltaTable(self._spark, self._path)

    def create(self, schema: StructType, key: Sequence[str]) -> None:
        """Make an empty table, without an offset."""
        with plain_errors(self._path):
            builder = DeltaTable.create(self._spark).location(self._path).addColumns(schema)
            for name, value in properties(schema, key).items():
                builder = builder.property(name, value)
            builder.execute()

    def rows(self) -> DataFrame:
        """The table as it is now."""
        return self._spark.read.format("delta").load(self._path)

    def rows_at(self, version: int) -> DataFrame:
        """The table as it was in a version."""
        return self._spark.read.format("delta").option("versionAsOf", version).load(self._path)

    def schema(self) -> StructType:
        """The table's columns."""
        with plain_errors(self._path):
            return self.rows().schema

    def read_position(self) -> Position | None:
        """The last flush or snapshot under the newest timeline; None if there is none."""
        return self.read_state().position

    def read_state(self) -> TableVersion:
        """The table's newest version and where that is.

        Delta writes the offsets into a small file beside each commit. Only where that one is missing does
        this cost a Spark job.
        """
        with plain_errors(self._path):
            snapshot = self._log.snapshot()
            version = int(snapshot.version())
            if version < 0:
                self._upkeep.saw(version)
                return TableVersion(version, None)
            self._settle(version)
            checksum = snapshot.checksumOpt()
            known = checksum.get().setTransactions() if checksum.isDefined() else checksum
            transactions = known.get() if known.isDefined() else snapshot.setTransactions()
            found = [transactions.apply(place) for place in range(transactions.size())]
            positions = [self._app_id.position(each.appId(), each.version()) for each in found]
            tended = [each.version() for each in found if each.appId() == self._app_id.upkeep]
            self._upkeep.saw(version, tended)
        return TableVersion(version, max((each for each in positions if each is not None), default=None))

    def state_to_build_on(self) -> TableVersion:
        """As `read_state`. ForeignCommit if others have changed rows since our last commit."""
        state = self.read_state()
        if (foreign := self.foreign_commit(state)) is not None:
            raise ForeignCommit(foreign)
        return state

    def foreign_commit(self, state: TableVersion) -> str | None:
        """What others may have done to the rows behind our last commit, in words; None if nothing.

        Reads each commit once: those since the last look, or back to what our last one was made from. What
        the log has no more was looked at before the next one of ours was made.
        """
        if self._trusted >= 0 and (state.position is None or state.version < self._trusted):
            return f"{self._path}: another table was put in its place, after version {self._trusted}"
        if state.position is None:
            return None
        version, trusted = state.version, self._trusted
        with plain_errors(self._path):
            while version > trusted and (actions := self._log.commit(version)) is not None:
                if is_ours(actions, self._app_id.prefix):
                    if self._trusted < 0:
                        seen = read_version(actions)
                        trusted = version - 1 if seen is None else seen
                elif (what := harm(actions)) is not None:
                    return f"{self._path}: {what} in version {version}"
                version -= 1
        self._trusted = state.version
        return None

    def may_be_news(self) -> bool:
        """Whether the table may have another version than the last look found. Looks for two names only."""
        with plain_errors(self._path):
            version = self._upkeep.version
            return version < 0 or not self._log.ends_at(version)

    def files(self, key: Sequence[str]) -> DataFiles:
        """The data files of the newest version. Costs a Spark job at first, then reads the new commits."""
        with plain_errors(self._path):
            snapshot = self._log.snapshot()
            version = int(snapshot.version())
            files = self._files
            if files is None or files.key != tuple(key) or files.version > version:
                files = None
            while files is not None and files.version < version:
                actions = self._log.commit(files.version + 1)
                if actions is None:
                    files = None
                else:
                    files.follow(files.version + 1, actions)
            if files is None:
                rows = DataFrame(snapshot.allFiles().toDF(), self._spark).select("path", "size", "stats")
                files = DataFiles(version, [row.asDict() for row in rows.collect()], key)
        self._files = files
        return files

    def rows_near(self, key: Sequence[str], ranges: KeyRanges) -> int:
        """About how many rows lie in files that may hold one of these keys; of all files without ranges."""
        return sum(file.most_rows for file in self.files(key).touched(ranges))

    def bytes_near(self, key: Sequence[str], ranges: KeyRanges) -> int:
        """How large these files are together."""
        return sum(file.size for file in self.files(key).touched(ranges))

    def file_rows(self, key: Sequence[str]) -> int:
        """How many rows a file that is written should have at most.

        Of wide rows upkeep makes smaller files, which must not grow again until it comes back.
        """
        return min(FILE_ROWS, rows_a_file(self.files(key).all()))

    def cuts(self, key: Sequence[str]) -> dict[str, list[Any]]:
        """By key column, some of the values at which files begin, in order."""
        return self.files(key).cuts()

    def _settle(self, version: int) -> None:
        """See to it that this version stays: whoever made it may have died before its name was on disk."""
        if self._settled == version or urlsplit(self._path).scheme:
            return
        try:
            for directory in (Path(self._path, "_delta_log"), Path(self._path), Path(self._path).parent):
                sync_directory(directory)
        except OSError as error:
            raise StorageFailed(f"can't sync {self._path}: {error.strerror or error}") from error
        self._settled = version

    def lacking(self, columns: Sequence[TableColumn]) -> list[TableColumn]:
        """Those of the columns that the table doesn't have. TableAltered if it has one with another type."""
        if not columns:
            return []
        fields = self.schema().fields
        stored = {field.name.lower(): (field.name, field.dataType.simpleString()) for field in fields}
        for column in columns:
            name, kind = stored.get(column.name.lower(), (column.name, column.lake.spark))
            if (name, kind) != (column.name, column.lake.spark):
                raise TableAltered(
                    f"{self._path}: column {column.name} ({column.lake.spark}) was added to the table, and "
                    f"{name} ({kind}) is stored already: snapshot it again"
                )
        return [column for column in columns if column.name.lower() not in stored]

    def may_widen(self) -> bool:
        """Whether the table's owner lets Delta keep files with a column's former type."""
        with plain_errors(self._path):
            return self._log.properties().get(TYPE_WIDENING) == "true"

    def can_have_more_digits(self) -> bool:
        """Whether columns can get more digits in place: by Delta, or by writing each file anew."""
        return self.may_widen() or self._can_be_rewritten()

    def _can_be_rewritten(self) -> bool:
        with plain_errors(self._path):
            snapshot = self._log.snapshot()
            return is_rewritable(protocol_of(snapshot), metadata_of(snapshot))

    def widen(self, columns: Sequence[TableColumn]) -> bool:
        """Give those of the columns that the table has with fewer digits their types of now; whether any has.

        A commit of its own, which changes no value and has no offset. ForeignCommit before every file is
        written anew, if others have changed rows; TableConflict if they are faster.
        """
        if not columns:
            return False
        stored = {field.name: field.dataType.simpleString() for field in self.schema().fields}
        wider = {
            column.name: column.lake.spark
            for column in columns
            if column.name in stored and has_more_digits(column.lake.spark, stored[column.name])
        }
        if not wider:
            return False
        if self.may_widen():
            self.change_types(wider)
        elif self._can_be_rewritten():
            self._rewrite_as(wider)
        else:
            return False
        return True

    def _rewrite_as(self, types: Mapping[str, str]) -> None:
        state = self._own_state(self.state_to_build_on())
        begun = perf_counter()
        with plain_conflicts(self._path):
            files = retype(self._spark, self._path, types, state.version)
        took_s = round(perf_counter() - begun, 1)
        _logger.info("table_rewritten", table=self._path, columns=sorted(types), files=files, took_s=took_s)

    def change_types(self, types: Mapping[str, str]) -> None:
        """Give columns wider types, in a commit that changes no value and has no offset.

        It doesn't bear our name: so it vouches for nothing that others did before it.
        """
        changes = ", ".join(f"{quote(name)} TYPE {kind}" for name, kind in types.items())
        with plain_conflicts(self._path):
            self._spark.sql(f"ALTER TABLE delta.{quote(self._path)} ALTER COLUMN {changes}")

    def can_go_on_to(self, version: int) -> bool:
        """Whether a commit with this offset would be the next one on the same timeline."""
        at = self._own_state(self.read_state()).position
        return at is not None and at.timeline == self._app_id.timeline and at.offset < version

    def merge(self, net: NetChanges, version: int | None, *, made_from: int | None = None) -> int | None:
        """Apply a batch in one commit with the offset `version`; return the offset that the table then has.

        A table that is already there, or further, is left as it is. Without a version, the commit leaves the
        offset as it is. TableConflict if another writer was faster, also since the table's version
        `made_from`: what the batch brings may be there already, and the rows that it builds on gone.
        """
        state = self._own_state(self.state_to_build_on())
        if state.offset is not None and version is not None and state.offset >= version:
            return state.offset
        if made_from not in (None, state.version):
            raise TableConflict(
                f"{self._path} went from version {made_from} to {state.version} during a flush"
            )
        files = self.files(net.key)
        session = net.rows.sparkSession
        if version is not None and self._is_all_new(net, files):
            with self._committing(session, version, files.version):
                self._appending(net, version).save(self._path)
        else:
            with self._committing(self._spark, version, state.version):
                self._merging(net).execute()
        return self._read_back(version)

    def _is_all_new(self, net: NetChanges, files: DataFiles) -> bool:
        """Whether a batch is nothing but new rows, as files' statistics prove. MERGE casts, this doesn't."""
        if not net.only_inserts or net.truncated or net.added or files.touched(net.ranges):
            return False
        stored = {field.name: field.dataType for field in self.schema().fields}
        return stored == {name: net.rows.schema[name].dataType for name in net.columns}

    def _appending(self, net: NetChanges, version: int) -> DataFrameWriter:
        """New rows, none of which the table has: no file of it may hold one of their keys."""
        rows = net.rows.where(F.col(ACTION) != DELETE).select(*map(column_of, net.columns))
        writer = rows.sortWithinPartitions(*map(column_of, net.key)).write.format("delta").mode("append")
        # A writer goes by its DataFrame's session, which need not be ours; so the commit is named here.
        return writer.option("txnAppId", str(self._app_id)).option("txnVersion", version)

    def _merging(self, net: NetChanges) -> DeltaMergeBuilder:
        target = DeltaTable.forPath(self._spark, self._path).alias("t")
        merge = target.merge(net.rows.alias("s"), net.condition)
        if net.added:
            merge = merge.withSchemaEvolution()
        deleted = F.col(f"s.{ACTION}") == DELETE
        merge = merge.whenMatchedDelete(deleted)
        if net.updates:
            merge = merge.whenMatchedUpdate(set=_quoted(net.updates))
        merge = merge.whenNotMatchedInsert(~deleted, values=_quoted(net.inserts))
        return merge.whenNotMatchedBySourceDelete() if net.truncated else merge

    def delete(self, condition: Column, offset: int) -> int:
        """Delete rows in one commit that leaves the table's offset, which has to be this; how many.

        No commit if there are none. TableConflict if the table is elsewhere: another writer has moved it, and
        rows that meet the condition may be later ones.
        """
        state = self._own_state(self.state_to_build_on())
        if state.offset != offset:
            raise TableConflict(f"{self._path} is at offset {state.offset}, and {offset} was expected")
        with self._committing(self._spark, None, state.version):
            DeltaTable.forPath(self._spark, self._path).delete(condition)
        version = self.read_state().version
        with plain_errors(self._path):
            made = () if version == state.version else self._log.commit(version)
        return deleted_rows(made or ())

    def overwrite_from(self, rows: DataFrame, version: int, key: Sequence[str]) -> int:
        """Replace the table in one commit with the offset `version`; or make it.

        What others have set stays: its properties, its change feed, and constraints on columns that it still
        has. OffsetRefused, before any work, if the table is already there or further on this timeline: Delta
        would skip the commit.
        """
        state = self._own_state(self.read_state())
        at = state.position
        if at is not None and at.timeline == self._app_id.timeline and at.offset >= version:
            raise OffsetRefused(
                f"{self._path} is at offset {at.offset}: a snapshot at {version} would be skipped"
            )
        writer = rows.writeTo(f"delta.{quote(self._path)}").using("delta")
        wanted = {**properties(rows.schema, key), **self._kept_properties(rows, state.version)}
        for name, value in wanted.items():
            writer = writer.tableProperty(name, value)
        writer = writer.option("txnAppId", str(self._app_id)).option("txnVersion", version)
        with plain_conflicts(self._path):
            writer.option("maxRecordsPerFile", FILE_ROWS).createOrReplace()
        # What others did to the former rows is of no account now.
        self._trusted = -1
        self._files = None
        self._read_back(version)
        self.files(key)
        return version

    def _kept_properties(self, rows: DataFrame, version: int) -> dict[str, str]:
        if version < 0:
            return {}
        with plain_errors(self._path):
            kept = kept_properties(self._log.properties())
            # Not the rows themselves: Spark would find a column that they have just lost.
            nothing = self._spark.createDataFrame([], rows.schema)
        for name in [name for name in kept if name.startswith(CONSTRAINT)]:
            try:
                nothing.where(kept[name])
            except PySparkException:
                _logger.error("constraint_dropped", table=self._path, name=name.removeprefix(CONSTRAINT))
                del kept[name]
        return kept

    @property
    def needs_upkeep(self) -> bool:
        """Whether upkeep is due, by the last look at the table. Costs nothing."""
        return self._upkeep.is_due

    def upkeep(self) -> bool:
        """Optimize, vacuum and shorten the log, if that is due; whether it was."""
        self.read_state()
        if not self.needs_upkeep:
            return False
        self._upkeep.run(self._known_files())
        return True

    def optimize(self) -> None:
        """See Upkeep."""
        self._upkeep.optimize(self._known_files())

    def shorten_log(self) -> None:
        """See Upkeep."""
        self._upkeep.shorten_log()

    def _known_files(self) -> DataFiles | None:
        return None if self._files is None else self.files(self._files.key)

    def _own_state(self, state: TableVersion) -> TableVersion:
        """The same. A table that a newer timeline has written is not ours any more."""
        if state.position is not None and state.position.timeline > self._app_id.timeline:
            raise TableConflict(
                f"{self._path} follows timeline {state.position.timeline}, this writer "
                f"{self._app_id.timeline}: stop it"
            )
        return state

    @contextmanager
    def _committing(self, session: SparkSession, version: int | None, made_from: int) -> Iterator[None]:
        """Let the session's one operation inside commit under our name and this version, if there is one."""
        session.conf.set(EXPECTED_VERSION, str(made_from))
        session.conf.set(_NAME, str(self._app_id))
        if version is not None:
            session.conf.set(_APP_ID, str(self._app_id))
            session.conf.set(_VERSION, str(version))
        try:
            with plain_conflicts(self._path):
                yield
        finally:
            for name in (EXPECTED_VERSION, _NAME, _APP_ID, _VERSION):
                session.conf.unset(name)

    def _read_back(self, version: int | None) -> int | None:
        at = self.read_position()
        if version is None:
            return None if at is None else at.offset
        if at is None or at.timeline != self._app_id.timeline or at.offset < version:
            raise OffsetRefused(f"{self._path} is at {at} after a commit at {version}")
        return at.offset


def _quoted(columns: dict[str, Column]) -> dict[str, str | Column]:
    return {quote(name): value for name, value in columns.items()}
