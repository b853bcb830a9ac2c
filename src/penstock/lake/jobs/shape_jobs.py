"""SparkJobs: the jobs of the shapes, on one Spark, each shape in a session of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.decoding.rows import Column, LayoutChanged, NanRefused, RowIncomplete
from penstock.lake.errors import ChangesUnusable, SparkGone, TableAltered
from penstock.lake.jobs.bounds import delete_within
from penstock.lake.jobs.changes import ShapeLayout
from penstock.lake.jobs.difference import merge_difference
from penstock.lake.jobs.flush import flush
from penstock.lake.jobs.snapshot_source import snapshot_rows
from penstock.lake.ports import ChangePart, JobDone, LakeTable, TableState
from penstock.lake.spark.names import column_of
from penstock.lake.spark.spark_session import java_exit_code, plain_errors, shape_session
from penstock.model.shape import Shape
from penstock.postgres.catalog.partition_bounds import Bounds
from penstock.postgres.catalog.table_facts import ColumnFacts, TableFacts
from penstock.postgres.snapshot.export import SnapshotPart

OpenTable = Callable[[SparkSession, Shape], LakeTable]
"""A shape's table, through a session that is its own."""

_END_KNOWN_WITHIN_S: Final = 0.5


class SparkJobs:
    """See ShapeJobs. For one leadership: its jobs are a group that can be cancelled as a whole."""

    def __init__(
        self, spark: SparkSession, shapes: Sequence[Shape], open_table: OpenTable, *, plugin: str
    ) -> None:
        """`plugin` writes the frames."""
        self._spark = spark
        self._plugin = plugin
        self._group = f"penstock-{secrets.token_hex(4)}"
        with noticing_the_end():
            self._sessions = {shape.name: shape_session(spark) for shape in shapes}
        self._tables = {shape.name: open_table(self._sessions[shape.name], shape) for shape in shapes}

    def state(self, shape: Shape, known: int | None = None) -> TableState:
        """See ShapeJobs: its own log tells."""
        with self._working(shape, "look"):
            table = self._tables[shape.name]
            if not table.exists():
                return TableState(False, None)
            state = table.read_state()
            return TableState(True, state.offset, table.foreign_commit(state))

    def lead(self, may_write: Callable[[], bool]) -> None:
        """See ShapeJobs: a table refuses the commit of a leader that isn't the last."""

    def end(self) -> None:
        """See ShapeJobs."""

    def flush(
        self,
        shape: Shape,
        facts: TableFacts,
        ranges: Sequence[ChangePart],
        up_to: int,
        added: Sequence[ColumnFacts] = (),
    ) -> JobDone:
        """See ShapeJobs."""
        table = self._tables[shape.name]
        with self._working(shape, "flush"):
            done = flush(
                self._sessions[shape.name],
                table,
                layout_of(shape, facts, self._plugin),
                ranges,
                up_to,
                [column_in(shape, facts, each) for each in added],
            )
        offset = 0 if done.offset is None else done.offset
        return JobDone(offset, done.changes, needs_upkeep=table.needs_upkeep)

    def snapshot(
        self, shape: Shape, facts: TableFacts, parts: Sequence[SnapshotPart], snapshot: str, tx_offset: int
    ) -> JobDone:
        """See ShapeJobs."""
        session, table = self._sessions[shape.name], self._tables[shape.name]
        layout = layout_of(shape, facts, self._plugin)
        with self._working(shape, "snapshot"):
            with plain_errors(table.path):
                rows = snapshot_rows(session, layout.relation, layout.columns, parts, snapshot)
                if layout.where is not None:
                    rows = rows.where(F.expr(layout.where))
                rows = rows.select(*[column_of(name) for name in layout.stored])
            at = merge_difference(table, rows, tx_offset, layout.key)
            if at is None:
                at = table.overwrite_from(rows, tx_offset, layout.key)
            with plain_errors(table.path):
                return JobDone(at, table.rows().count())

    def delete_within(self, shape: Shape, facts: TableFacts, bounds: Bounds, tx_offset: int) -> int:
        """See ShapeJobs."""
        session, table = self._sessions[shape.name], self._tables[shape.name]
        with self._working(shape, "delete"):
            return delete_within(session, table, layout_of(shape, facts, self._plugin), bounds, tx_offset)

    def foreign(self, shape: Shape) -> str | None:
        """See ShapeJobs."""
        table = self._tables[shape.name]
        with self._working(shape, "look"):
            return table.foreign_commit(table.read_state()) if table.may_be_news() else None

    def may_widen(self, shape: Shape) -> bool:
        """See ShapeJobs."""
        with self._working(shape, "look"):
            return self._tables[shape.name].can_have_more_digits()

    def upkeep(self, shape: Shape) -> None:
        """See ShapeJobs."""
        with self._working(shape, "upkeep"):
            self._tables[shape.name].upkeep()

    def cancel(self) -> None:
        """See ShapeJobs."""
        cancel_jobs(self._spark, self._group)

    def cancel_of(self, shape: Shape) -> None:
        """See ShapeJobs."""
        cancel_jobs(self._spark, self._group, shape)

    def _working(self, shape: Shape, what: str) -> AbstractContextManager[None]:
        return working(self._spark, self._group, shape, what)


def cancel_jobs(spark: SparkSession, group: str, shape: Shape | None = None) -> None:
    """End what runs of a leadership, or of one of its shapes; there is nothing to end if Java has ended."""
    if java_exit_code() is not None:
        return
    if shape is None:
        spark.sparkContext.cancelJobGroup(group)
    else:
        spark.sparkContext.cancelJobsWithTag(_tag_of(group, shape))


def _tag_of(group: str, shape: Shape) -> str:
    """By which Spark knows a shape's jobs among those of a leadership."""
    return f"{group}-{shape.name}"


@contextmanager
def working(spark: SparkSession, group: str, shape: Shape, what: str) -> Iterator[None]:
    """Spark jobs inside are of this group and of the shape's pool; what they raise is what the port says.

    Group, tag and pool belong to the thread, and threads take turns with shapes.
    """
    context = spark.sparkContext
    with noticing_the_end():
        context.setJobGroup(group, f"{what} {shape.name}")
        context.setLocalProperty("spark.scheduler.pool", shape.name)
        context.clearJobTags()
        context.addJobTag(_tag_of(group, shape))
        try:
            yield
        except LayoutChanged as error:
            raise TableAltered(str(error)) from error
        except (NanRefused, RowIncomplete) as error:
            raise ChangesUnusable(str(error)) from error


@contextmanager
def noticing_the_end() -> Iterator[None]:
    """SparkGone if that is why something failed: the line to Java may break before its end is known."""
    try:
        yield
    except Exception as error:
        code = java_exit_code(_END_KNOWN_WITHIN_S)
        if code is None:
            raise
        raise SparkGone(
            f"Spark's Java has ended with code {code}: this process can do nothing more. Fix: start it again,"
            " with more memory if the system took it away (--conf spark.driver.memory=…)"
        ) from error


def column_in(shape: Shape, facts: TableFacts, column: ColumnFacts) -> Column:
    """A column as the shape reads it. In the key null would be another row's, or nobody's."""
    as_null = shape.numeric_nan == "null" and column.name not in facts.key
    return column.column._replace(nan_as_null=as_null)


def layout_of(shape: Shape, facts: TableFacts, plugin: str) -> ShapeLayout:
    """What a shape reads of a table with these facts. A `where` may read any column, stored or not."""
    read = facts.wanted(shape.columns if shape.where is None else None)
    toasted = [each.name for each in read if each.toastable and each.name not in facts.gone]
    return ShapeLayout(
        relation=str(shape.table),
        columns=tuple(column_in(shape, facts, each) for each in read),
        key=facts.key,
        stored=tuple(each.name for each in facts.wanted(shape.columns)),
        plugin=plugin,
        others=tuple(each.name for each in facts.columns if each not in read),
        where=shape.where,
        must_come=() if shape.where is None else tuple(toasted),
    )
