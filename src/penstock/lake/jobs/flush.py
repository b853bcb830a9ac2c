"""A flush: what is new in the log, into a shape's table, in exactly one Delta commit.

1. The table's own offset is read first. What it has already is never read from the log again, so a replay
   changes nothing. If somebody else commits before we do, the changes are not what it lacks: TableConflict.
2. The commit carries the offset `up_to`, and only an offset that was read back from the table is returned.
3. Without anything new there is no commit. New columns of a quiet table are a commit of their own, which
   leaves the offset as it is. So are new types (widening.py, retype.py): they change no value, and a crash
   behind that commit does no harm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock import fault_points
from penstock.decoding.rows import Column
from penstock.lake.fold.apply import fold
from penstock.lake.fold.survey import Survey, survey, survey_here
from penstock.lake.jobs.changes import ShapeLayout, behind, changes_frame, decode_here, is_small, local_frame
from penstock.lake.ports import ChangePart, LakeTable
from penstock.lake.spark.session_settings import with_settings
from penstock.lake.spark.spark_session import plain_errors

_INTERPRETED_ROWS: Final = 100_000
"""So few rows are rewritten sooner than the plan is compiled. Both take longer with more columns."""
_INTERPRETED_BYTES: Final = 8 << 20
"""But not if their files are larger than this: of rows of a few columns, 100,000 are some 4 MiB."""
_ONE_TASK_ROWS: Final = 350_000
"""One task sorts what it writes by key; of several, each has files from the lowest key to the highest."""
_FOR_FEW: Final = MappingProxyType(
    {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
)


@dataclass(frozen=True)
class Flushed:
    """What came of a flush."""

    offset: int | None
    """Where the table is now, as read back from it; None if it has no offset at all."""
    changes: int = 0
    """How many changes were applied."""
    decode_s: float = 0.0
    """Reading the log, decoding, and looking the changes over."""


def flush(
    spark: SparkSession,
    table: LakeTable,
    layout: ShapeLayout,
    ranges: Sequence[ChangePart],
    up_to: int,
    added: Sequence[Column] = (),
) -> Flushed:
    """Apply the changes in `ranges`, whole transactions up to the commit LSN `up_to`. Blocks.

    `added` are columns of the layout that the table may not have yet, or has with fewer digits. Raises what
    the decoder, the log and the table raise; its rows have then not changed.
    """
    if table.widen(added):
        fault_points.reached(fault_points.COLUMNS_WIDENED)
    before = table.state_to_build_on()
    new = behind(ranges, before.offset)
    lacking = table.lacking(added)
    if not new and not lacking:
        return Flushed(before.offset)
    begun = perf_counter()
    with plain_errors(table.path), _changes(spark, table, layout, new) as (changes, surveyed):
        decoded = perf_counter()
        net = fold(changes, surveyed, layout.key, layout.stored, table.rows(), layout.where, added=lacking)
        rows = surveyed.count + table.rows_near(layout.key, net.ranges)
        size_bytes = table.bytes_near(layout.key, net.ranges)
        with with_settings(spark, settings_for(rows, size_bytes, table.file_rows(layout.key))):
            offset = table.merge(net, up_to if new else None, made_from=before.version)
    return Flushed(offset, surveyed.count, decoded - begun)


def settings_for(rows: int, size_bytes: int, file_rows: int) -> dict[str, str]:
    """Spark's settings for a MERGE that may write so many rows, into files of so many at most.

    `size_bytes`: of the files that it may rewrite.
    """
    settings = {"spark.sql.files.maxRecordsPerFile": str(file_rows)}
    if rows <= _ONE_TASK_ROWS:
        settings["spark.sql.shuffle.partitions"] = "1"
    if rows <= _INTERPRETED_ROWS and size_bytes <= _INTERPRETED_BYTES:
        settings |= _FOR_FEW
    return settings


@contextmanager
def _changes(
    spark: SparkSession, table: LakeTable, layout: ShapeLayout, ranges: Sequence[ChangePart]
) -> Iterator[tuple[DataFrame, Survey]]:
    """The changes and their survey; kept until the end, so that they are decoded just once."""
    if is_small(ranges):
        here = decode_here(layout, ranges)
        yield local_frame(spark, here), survey_here(here, layout.key)
        return
    with changes_frame(spark, layout, ranges) as frame:
        changes = frame.persist()
        try:
            yield changes, survey(changes, layout.key, table.cuts(layout.key))
        finally:
            changes.unpersist()
