"""Compare a Postgres table with what a marked stream tells of it, at one place in the WAL.

The stream can be cut at any commit, so both sides stand at the cut of one exported snapshot, and one look
decides. But a stream tells what has changed since it began, and not what was there before:

1. All that it tells of a key is folded: the key's last change decides whether there is a row, and each column
   has the value of the last change that carries it (fold/apply.py).
2. A column that no change of a key carries is not told: an update leaves unchanged long values out. It is not
   compared. Nor is one that an update of the key has left out: it stands under the former key, or nowhere.
3. A row of Postgres whose key the stream has never named is *untold*: older than the stream's beginning, or
   lost, and nothing tells which. It counts as missing if everything must be told: behind a truncate of the
   table, or because somebody who knows says so.
4. A key that the stream deletes and Postgres has is missing, one that only the stream has is extra.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.decoding.plugins import STREAM_PLUGIN
from penstock.decoding.rows import ABSENT, ACTION
from penstock.lake.comparison import Comparison, Counts, PostgresAt
from penstock.lake.fold.apply import UPSERT, fold
from penstock.lake.fold.key_changes import is_link
from penstock.lake.fold.survey import Survey, survey
from penstock.lake.jobs.changes import ShapeLayout
from penstock.lake.jobs.compare import compare
from penstock.lake.jobs.shape_jobs import layout_of
from penstock.lake.jobs.snapshot_source import snapshot_rows
from penstock.lake.spark.names import column_of
from penstock.lake.spark.spark_session import plain_errors, saying_errors
from penstock.lake.stream.told import OP, PAYLOAD, TX
from penstock.model.shape import Shape

_NOT_TOLD: Final = "_penstock_not_told"
_SEEN: Final = "_penstock_seen"


class ToldComparison(NamedTuple):
    """What came of it."""

    comparison: Comparison
    untold: int
    """Rows of Postgres whose keys the stream never names, and that need not be there."""


def compare_told(
    spark: SparkSession, told: DataFrame, shape: Shape, postgres: PostgresAt, *, complete: bool
) -> ToldComparison:
    """Compare a table with its changes, as `Told.of` gives them, up to the snapshot's cut. Blocks.

    `complete`: every row must be told. Raises what the decoder raises.
    """
    # What a shape tells was judged when it was published.
    layout = layout_of(replace(shape, where=None), postgres.facts, STREAM_PLUGIN)
    here = _postgres_rows(spark, shape, postgres)
    with plain_errors(layout.relation):
        changes = _decoded(told, layout).persist()
        try:
            surveyed = survey(changes, layout.key)
            complete = complete or surveyed.truncated_at is not None
            rows = _folded(changes, surveyed, layout).persist()
            try:
                return _compared(here, rows, layout, complete=complete)
            finally:
                rows.unpersist()
        finally:
            changes.unpersist()


def count_rows(spark: SparkSession, shape: Shape, postgres: PostgresAt) -> int:
    """How many rows a table has. Blocks."""
    layout = layout_of(shape, postgres.facts, STREAM_PLUGIN)
    with plain_errors(layout.relation):
        rows = snapshot_rows(spark, layout.relation, layout.columns[:1], postgres.parts, postgres.snapshot)
        return rows.count()


def _decoded(told: DataFrame, layout: ShapeLayout) -> DataFrame:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with saying_errors():
            decoder = layout.decoder()
            for batch in batches:
                offsets = zip(batch[TX].to_pylist(), batch[OP].to_pylist(), strict=True)
                yield decoder.decode(offsets, batch[PAYLOAD].to_pylist())

    schema = from_arrow_schema(layout.decoder().schema, prefer_timestamp_ntz=True)
    return told.mapInArrow(decode, schema)


def _folded(changes: DataFrame, surveyed: Survey, layout: ShapeLayout) -> DataFrame:
    """The last of each key: its ACTION, its columns, and which of them are _NOT_TOLD."""
    net = fold(changes, replace(surveyed, linked=False), layout.key, layout.stored).rows
    none = F.array().cast("array<string>")
    absent = F.coalesce(F.col(ABSENT), none)
    if not surveyed.linked:
        return net.withColumn(_NOT_TOLD, absent).drop(ABSENT)
    beyond = _left_behind(changes, layout.key)
    return (
        net.alias("net")
        .join(beyond.alias("beyond"), _same_key(layout.key, "net", "beyond"), "left")
        .select(
            F.col(ACTION),
            *[column_of(name, "net").alias(name) for name in layout.stored],
            F.array_union(absent, F.coalesce(F.col(_SEEN), none)).alias(_NOT_TOLD),
        )
    )


def _left_behind(changes: DataFrame, key: Sequence[str]) -> DataFrame:
    """Keys that rows have moved to, with the columns that didn't come along."""
    moved = changes.where(is_link()).select(*map(column_of, key), F.explode(ABSENT).alias(_NOT_TOLD))
    return moved.groupBy(*map(column_of, key)).agg(F.collect_set(_NOT_TOLD).alias(_SEEN))


def _postgres_rows(spark: SparkSession, shape: Shape, postgres: PostgresAt) -> DataFrame:
    layout = layout_of(shape, postgres.facts, STREAM_PLUGIN)
    rows = snapshot_rows(spark, layout.relation, layout.columns, postgres.parts, postgres.snapshot)
    kept = rows if layout.where is None else rows.where(F.expr(layout.where))
    return kept.select(*[column_of(name) for name in layout.stored])


def _compared(here: DataFrame, rows: DataFrame, layout: ShapeLayout, *, complete: bool) -> ToldComparison:
    names = [name for name in layout.stored if name not in layout.key]
    seen = Observation()
    known = rows.select(*[column_of(name) for name in layout.key], F.col(_NOT_TOLD), F.lit(True).alias(_SEEN))
    counted = here.observe(seen, F.count(F.lit(1)).alias("rows")).alias("here")
    joined = counted.join(known.alias("known"), _same_key(layout.key, "here", "known"), "left")
    judged = joined if complete else joined.where(F.col(_SEEN))
    there = rows.where(F.col(ACTION) == UPSERT)
    of_postgres = _told_only(judged, layout.key, names, "here")
    comparison = compare(of_postgres, _told_only(there, layout.key, names), layout.key, layout.stored)
    in_postgres = int(seen.get["rows"])
    untold = in_postgres - comparison.counts.postgres
    return ToldComparison(comparison.beside(Counts(in_postgres, comparison.counts.lake)), untold)


def _told_only(rows: DataFrame, key: Sequence[str], names: Sequence[str], of: str | None = None) -> DataFrame:
    """The same with nothing in columns that are not told."""
    not_told = F.coalesce(F.col(_NOT_TOLD), F.array().cast("array<string>"))
    return rows.select(
        *[column_of(name, of).alias(name) for name in key],
        *[F.when(~F.array_contains(not_told, name), column_of(name, of)).alias(name) for name in names],
    )


def _same_key(key: Sequence[str], one: str, other: str) -> Column:
    same = F.lit(True)
    for name in key:
        same = same & (column_of(name, one) == column_of(name, other))
    return same
