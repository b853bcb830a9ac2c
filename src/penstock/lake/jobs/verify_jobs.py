"""SparkVerifyJobs: the jobs of `penstock verify`, on one Spark, each shape in a session of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.decoding.rows import ABSENT, ACTION, OP_OFFSET
from penstock.lake.comparison import Comparison, Counts, Keys, PostgresAt, TableAt
from penstock.lake.errors import CannotCompare
from penstock.lake.fold.apply import DELETE
from penstock.lake.jobs.changes import ShapeLayout
from penstock.lake.jobs.compare import SparkComparison, compare, only, without
from penstock.lake.jobs.compare_buckets import bucket_sums
from penstock.lake.jobs.shape_jobs import OpenTable, layout_of
from penstock.lake.jobs.snapshot_source import snapshot_rows
from penstock.lake.spark.names import column_of, quote
from penstock.lake.spark.spark_session import plain_error, shape_session
from penstock.model.shape import Shape
from penstock.postgres.catalog.table_facts import TableFacts


class SparkVerifyJobs:
    """See VerifyJobs."""

    def __init__(
        self, spark: SparkSession, shapes: Sequence[Shape], open_table: OpenTable, *, plugin: str
    ) -> None:
        """`plugin` writes the frames."""
        self._spark = spark
        self._plugin = plugin
        self._sessions = {shape.name: shape_session(spark) for shape in shapes}
        self._tables = {shape.name: open_table(self._sessions[shape.name], shape) for shape in shapes}

    def look(self, shape: Shape, facts: TableFacts) -> TableAt:
        """See VerifyJobs."""
        self._enter(shape)
        table = self._tables[shape.name]
        if table.read_state().version < 0:
            raise CannotCompare(f"there is no table at {table.path}. Fix: start penstock shapes")
        lacking = table.lacking([each.column for each in facts.wanted(shape.columns)])
        if lacking:
            names = ", ".join(column.name for column in lacking)
            raise CannotCompare(
                f"its table lacks what Postgres has: {names}. Fix: let penstock shapes add it"
            )
        # After the columns, of which there may only come more.
        state = table.read_state()
        if state.offset is None:
            raise CannotCompare(f"the table at {table.path} was not written by Penstock for this database")
        return TableAt(state.version, state.offset)

    def compare(self, shape: Shape, postgres: PostgresAt, lake: TableAt) -> Comparison:
        """See VerifyJobs: by sums of buckets, and one by one in the buckets that differ."""
        self._enter(shape)
        key, stored = postgres.facts.key, self._layout(shape, postgres.facts).stored
        with self._explained(shape):
            here, there = self._postgres_rows(shape, postgres), self._lake_rows(shape, lake)
            sums = bucket_sums(here, there, key, stored, len(postgres.parts))
            counts = Counts(sums.postgres, sums.lake, sums.equal)
            if not sums.differing:
                return SparkComparison(counts, None, key)
            again = postgres._replace(parts=sums.parts(postgres.parts))
            here = sums.rows(self._postgres_rows(shape, again))
            return compare(here, sums.rows(there), key, stored).beside(counts)

    def sort_out(
        self, shape: Shape, facts: TableFacts, keys: pa.Table, frames: Sequence[bytes] | None
    ) -> Keys:
        """See VerifyJobs."""
        self._enter(shape)
        # A row that can't be judged is looked at again.
        changes = decoded(replace(self._layout(shape, facts), must_come=()), frames or ())
        nothing = keys.slice(0, 0)
        if frames is None:
            return Keys(nothing, nothing, keys, changes)
        if not frames:
            return Keys(keys, nothing, nothing, changes)
        with self._explained(shape):
            wanted, last = self._key_frame(shape, facts, keys), self._last_changes(shape, facts, changes)
            key = [column_of(name) for name in facts.key]
            is_whole = (F.col(ACTION) == DELETE) | F.col(ABSENT).isNull()
            return Keys(
                without(wanted, last.select(*key)).toArrow(),
                only(wanted, last.where(is_whole).select(*key)).toArrow(),
                only(wanted, last.where(~is_whole).select(*key)).toArrow(),
                changes,
            )

    def compare_keys(self, shape: Shape, postgres: PostgresAt, lake: TableAt, keys: Keys) -> Comparison:
        """See VerifyJobs."""
        self._enter(shape)
        facts = postgres.facts
        with self._explained(shape):
            quiet = self._key_frame(shape, facts, keys.quiet)
            moved = self._key_frame(shape, facts, keys.moved)
            last = self._last_changes(shape, facts, keys.changes).where(F.col(ACTION) != DELETE)
            here = only(self._postgres_rows(shape, postgres), quiet).unionByName(
                only(self._stored(shape, facts, last), moved)
            )
            there = only(self._lake_rows(shape, lake), quiet.unionByName(moved))
            return compare(here, there, facts.key, self._layout(shape, facts).stored)

    def _layout(self, shape: Shape, facts: TableFacts) -> ShapeLayout:
        return layout_of(shape, facts, self._plugin)

    def _last_changes(self, shape: Shape, facts: TableFacts, changes: pa.Table) -> DataFrame:
        """The last change of each key."""
        schema = from_arrow_schema(changes.schema, prefer_timestamp_ntz=True)
        rows = self._sessions[shape.name].createDataFrame(changes, schema)
        row = F.struct(*[column_of(name) for name in rows.columns]).alias("row")
        key = [column_of(name).alias(str(place)) for place, name in enumerate(facts.key)]
        last = rows.select(*key, row).groupBy(*[str(place) for place in range(len(key))])
        return last.agg(F.max_by("row", f"row.{OP_OFFSET}").alias("row")).select("row.*")

    def _key_frame(self, shape: Shape, facts: TableFacts, keys: pa.Table) -> DataFrame:
        columns = [column.column for name in facts.key for column in facts.wanted([name])]
        schema = ", ".join(f"{quote(column.name)} {column.lake.spark}" for column in columns)
        return self._sessions[shape.name].createDataFrame(keys, schema)

    def _postgres_rows(self, shape: Shape, at: PostgresAt) -> DataFrame:
        layout = self._layout(shape, at.facts)
        session = self._sessions[shape.name]
        rows = snapshot_rows(session, layout.relation, layout.columns, at.parts, at.snapshot)
        return self._stored(shape, at.facts, rows)

    def _stored(self, shape: Shape, facts: TableFacts, rows: DataFrame) -> DataFrame:
        """What the shape keeps of a table's rows."""
        layout = self._layout(shape, facts)
        kept = rows if layout.where is None else rows.where(F.expr(layout.where))
        return kept.select(*[column_of(name) for name in layout.stored])

    def _lake_rows(self, shape: Shape, at: TableAt) -> DataFrame:
        # By its version: a DataFrame without one reads whatever is newest when it is used.
        return self._tables[shape.name].rows_at(at.version)

    @contextmanager
    def _explained(self, shape: Shape) -> Iterator[None]:
        try:
            yield
        except (PySparkException, Py4JError) as error:
            # Spark's own text may show values.
            raise plain_error(self._tables[shape.name].path, str(error)) from None

    def _enter(self, shape: Shape) -> None:
        """The pool belongs to the thread, and threads take turns with shapes."""
        context = self._spark.sparkContext
        context.setLocalProperty("spark.job.description", f"verify {shape.name}")
        context.setLocalProperty("spark.scheduler.pool", shape.name)


def decoded(layout: ShapeLayout, frames: Sequence[bytes]) -> pa.Table:
    """The changes in these frames. Their op_offsets tell their order, and nothing else."""
    offsets = ((0, 2 * place) for place in range(len(frames)))
    return pa.Table.from_batches([layout.decoder().decode(offsets, frames)])
