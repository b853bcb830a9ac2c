"""A snapshot by difference: a table whose types became wider is brought to what Postgres has, not replaced.

A rewrite of the Postgres table (`integer` to `bigint`) may have changed any value (`USING id * 10`), so all
rows are read, as by any snapshot. But those that are as they were stay where they are: the table keeps its
files and its history, and its change feed goes on. It is right whatever the rewrite did, because it is no
guess: what differs is written.

1. Only for a table with the property TYPE_WIDENING, of the same columns, some of them wider now; and only if
   all commits since ours left its rows. Else the table is replaced.
2. The new types are a commit of their own, which changes no value. A crash behind it leaves a table that
   awaits its snapshot, as it did before.
3. The difference is one MERGE with the snapshot's offset, made from the version that was compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import structlog
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, StructType

from penstock.decoding.rows import ABSENT, ACTION
from penstock.decoding.widening import can_be_widened
from penstock.lake.errors import ForeignCommit
from penstock.lake.fold.apply import DELETE, UPSERT, NetChanges
from penstock.lake.jobs.flush import settings_for
from penstock.lake.ports import LakeTable
from penstock.lake.spark.names import column_of
from penstock.lake.spark.session_settings import with_settings
from penstock.lake.spark.spark_session import plain_errors

_log = structlog.get_logger()


def merge_difference(table: LakeTable, rows: DataFrame, version: int, key: Sequence[str]) -> int | None:
    """Bring the table to these rows, in one commit with the offset `version`; None if it must be replaced."""
    wider = _wider(table, rows.schema, version)
    if not wider:
        return None
    table.change_types(wider)
    try:
        before = table.state_to_build_on()
    except ForeignCommit:
        return None
    with plain_errors(table.path):
        difference = _difference(rows, table.rows(), key).persist()
        try:
            changed = difference.count()
            net = NetChanges(difference, tuple(key), tuple(rows.columns))
            written = changed + table.rows_near(key, {}) if changed else 0
            size_bytes = table.bytes_near(key, {}) if changed else 0
            with with_settings(rows.sparkSession, settings_for(written, size_bytes, table.file_rows(key))):
                at = table.merge(net, version, made_from=before.version)
        finally:
            difference.unpersist()
    _log.info("snapshot_by_difference", table=table.path, columns=sorted(wider), changed=changed)
    return at


def _wider(table: LakeTable, wanted: StructType, version: int) -> dict[str, str]:
    """The columns whose types are wider now, with the new types; none if the table can't be kept."""
    if not table.exists() or not table.can_go_on_to(version) or not table.may_widen():
        return {}
    stored = {field.name: field.dataType.simpleString() for field in table.schema().fields}
    new = {field.name: field.dataType.simpleString() for field in wanted.fields}
    wider = {name: kind for name, kind in new.items() if kind != stored.get(name)}
    is_kept = stored.keys() == new.keys()
    if not is_kept or not all(can_be_widened(kind, stored[name]) for name, kind in wider.items()):
        return {}
    return wider


def _difference(rows: DataFrame, before: DataFrame, key: Sequence[str]) -> DataFrame:
    """What makes the former rows these, as `NetChanges` has it. Keys are never null."""
    same = [column_of(name, "s") == column_of(name, "t") for name in key]
    joined = rows.alias("s").join(before.alias("t"), reduce(Column.__and__, same), "full_outer")
    is_gone, is_new = column_of(key[0], "s").isNull(), column_of(key[0], "t").isNull()
    differs = [
        ~_exactly(field.dataType, column_of(field.name, "s")).eqNullSafe(
            _exactly(field.dataType, column_of(field.name, "t"))
        )
        for field in rows.schema.fields
    ]
    return joined.where(is_gone | is_new | reduce(Column.__or__, differs)).select(
        F.when(is_gone, F.lit(DELETE)).otherwise(F.lit(UPSERT)).alias(ACTION),
        F.lit(None).cast("array<string>").alias(ABSENT),
        *[
            (
                F.coalesce(column_of(name, "s"), column_of(name, "t"))
                if name in key
                else column_of(name, "s")
            ).alias(name)
            for name in rows.columns
        ],
    )


def _exactly(kind: object, value: Column) -> Column:
    """Spark takes 0.0 for -0.0."""
    return value.cast("string") if isinstance(kind, FloatType | DoubleType) else value
