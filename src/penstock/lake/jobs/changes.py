"""The changes of a shape, read from where they are kept and decoded once, as a DataFrame.

A small batch is decoded right here and handed to Spark as a local relation: that takes no Spark job, and a
flush of one row is mostly the cost of its jobs. Anything larger is decoded in Python workers; each has one
segment's bytes and one batch of rows in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.decoding.rows import ChangeDecoder, Column
from penstock.lake.jobs.shared import PLACES
from penstock.lake.ports import ChangePart, SharedPart
from penstock.lake.spark.spark_session import saying_errors
from penstock.model.log_offset import OP_INFINITY, LogOffset

LOCAL_BYTES: Final = 1 << 20
"""Changes up to this size are decoded in the driver: some thousand rows, some ten milliseconds."""
_LOCAL_READ_BYTES: Final = 256 << 20
"""Unless they are spread over more than this of others' changes: a second to read."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 10_000
_TASK_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class ShapeLayout:
    """Which columns of a table a shape reads and stores."""

    relation: str
    """The table's name, for messages."""
    columns: tuple[Column, ...]
    """What is decoded: all that is stored, and all that `where` reads."""
    key: tuple[str, ...]
    stored: tuple[str, ...]
    """The lake table's columns, the key's among them."""
    plugin: str
    """Whose frames they are."""
    others: tuple[str, ...] = ()
    """The table's other columns, which the shape doesn't want."""
    where: str | None = None
    must_come: tuple[str, ...] = ()
    """Columns without which `where` can't judge an update, and which a wrong replica identity leaves out."""

    def decoder(self) -> ChangeDecoder:
        """A decoder for the table's frames."""
        return ChangeDecoder(
            self.relation,
            self.columns,
            self.key,
            plugin=self.plugin,
            others=self.others,
            filtered=self.where is not None,
            must_come=self.must_come,
        )


def behind(ranges: Sequence[ChangePart], offset: int | None) -> list[ChangePart]:
    """What the ranges hold of transactions behind `offset`; everything if that is None."""
    if offset is None:
        return list(ranges)
    flushed = LogOffset(offset, OP_INFINITY)
    return [part.behind(flushed) for part in ranges if part.up_to > flushed]


@contextmanager
def changes_frame(
    spark: SparkSession, layout: ShapeLayout, ranges: Sequence[ChangePart]
) -> Iterator[DataFrame]:
    """The changes in these ranges, as rows.py describes them, in no order.

    Small ones are decoded now, and may raise DecodeError, LayoutChanged or SegmentUnreadable. The rest is
    decoded by each job that reads the frame: run it within `plain_errors`.
    """
    if is_small(ranges):
        yield local_frame(spark, decode_here(layout, ranges))
        return
    own: list[ChangePart] = []
    shared: dict[str, list[SharedPart]] = {}
    for part in ranges:
        if isinstance(part, SharedPart) and part.place:
            shared.setdefault(part.place, []).append(part)
        else:
            own.append(part)
    with ExitStack() as stack:
        frames = [_own_frame(spark, layout, own)] if own else []
        for parts in shared.values():
            whole = stack.enter_context(PLACES.reading(spark, parts))
            frames.append(_selected(whole, layout, parts[0]))
        yield reduce(DataFrame.unionAll, frames)


def _own_frame(spark: SparkSession, layout: ShapeLayout, ranges: Sequence[ChangePart]) -> DataFrame:
    tasks = share_out(ranges)

    def decode(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with saying_errors():
            for batch in numbers:
                for number in batch["id"].to_pylist():
                    yield from decoded(layout, tasks[number])

    return spark.range(len(tasks), numPartitions=len(tasks)).mapInArrow(decode, _schema(layout))


def _selected(whole: DataFrame, layout: ShapeLayout, part: SharedPart) -> DataFrame:
    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = layout.decoder()
        with saying_errors():
            for batch in batches:
                rows = part.select(batch)
                offsets = zip(rows["tx_offset"].to_pylist(), rows["op_offset"].to_pylist(), strict=True)
                yield decoder.decode(offsets, rows["payload"].to_pylist())

    is_wanted = F.col("relation").isin(sorted(map(str, part.wanted)))
    found = whole.where(is_wanted & (F.col("tx_offset") > part.after.tx_offset))
    return found.mapInArrow(decode, _schema(layout))


def _schema(layout: ShapeLayout) -> StructType:
    return from_arrow_schema(layout.decoder().schema, prefer_timestamp_ntz=True)


def decode_here(layout: ShapeLayout, ranges: Sequence[ChangePart]) -> pa.Table:
    """The changes in these ranges, decoded in this process. Blocks."""
    # Neither Arrow nor Spark can make a table of no batches.
    batches = [layout.decoder().decode([], []), *decoded(layout, ranges)]
    return pa.Table.from_batches(batches).combine_chunks()


def local_frame(spark: SparkSession, changes: pa.Table) -> DataFrame:
    """Decoded changes as a local relation: Spark needs no job to read them."""
    return spark.createDataFrame(changes, from_arrow_schema(changes.schema, prefer_timestamp_ntz=True))


def is_small(ranges: Sequence[ChangePart]) -> bool:
    """Whether these ranges are decoded in the driver."""
    return (
        sum(part.wanted_bytes for part in ranges) <= LOCAL_BYTES
        and sum(part.size_bytes for part in ranges) <= _LOCAL_READ_BYTES
    )


def share_out(ranges: Sequence[ChangePart]) -> list[list[ChangePart]]:
    """The ranges, in order, in tasks of some megabytes each."""
    tasks: list[list[ChangePart]] = []
    room = 0
    for part in ranges:
        if not tasks or room < part.size_bytes:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append(part)
        room -= part.size_bytes
    return tasks


def decoded(layout: ShapeLayout, ranges: Sequence[ChangePart]) -> Iterator[pa.RecordBatch]:
    """The changes in these ranges, in order, in batches of bounded size. Blocks."""
    decoder = layout.decoder()
    for batches in _gathered(ranges):
        rows = pa.Table.from_batches(batches)
        offsets = zip(rows["tx_offset"].to_pylist(), rows["op_offset"].to_pylist(), strict=True)
        yield decoder.decode(offsets, rows["payload"].to_pylist())


def _gathered(ranges: Sequence[ChangePart]) -> Iterator[list[pa.RecordBatch]]:
    """The log's own batches, which are small, put together: each decoded batch has a price of its own."""
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for part in ranges:
        for batch in part.read():
            batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield batches
                batches, rows, size = [], 0, 0
    if batches:
        yield batches
