"""Reading segments, in whatever process a plan was sent to."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.errors import SegmentUnreadable
from penstock.changelog.index import SegmentRange
from penstock.changelog.segment import SCHEMA
from penstock.model.log_offset import LogOffset


class PlacedBatch(NamedTuple):
    """A batch, and where in the bytes it ends."""

    batch: pa.RecordBatch
    end: int


class TornBatch(ValueError):
    """The bytes end inside a batch, or go on with something that is none."""


def read_segment(part: SegmentRange) -> Iterator[pa.RecordBatch]:
    """The changes of a range, in the order of the log, as batches of `segment.SCHEMA`.

    `tx_offset` is the transaction's commit LSN, `payload` is what wal2json wrote, and `part.relations` names
    each `relation_id`. Raises SegmentUnreadable where the file doesn't hold what the plan promised. Blocks.
    """
    data = _read_bytes(part)
    wanted = pa.array([relation_id for relation_id, _ in part.relations], pa.int32())
    end = 0
    try:
        for placed in batches_in(data):
            end = placed.end
            rows = _within(placed.batch, part.after, part.up_to)
            rows = rows.filter(pc.is_in(rows["relation_id"], value_set=wanted))
            if rows.num_rows:
                yield rows
    except TornBatch as error:
        raise SegmentUnreadable(f"{part.path} is damaged behind byte {part.start + end}: {error}") from error
    if end != len(data):
        raise SegmentUnreadable(f"{part.path} ends at byte {part.start + end}, before {part.end}")


def batches_in(data: pa.Buffer) -> Iterator[PlacedBatch]:
    """The batches in the bytes of a stream, without its header, up to the stream's or the bytes' end.

    TornBatch where they end in the middle of one.
    """
    source = pa.BufferReader(data)
    messages = pa.ipc.MessageReader.open_stream(source)
    while True:
        try:
            batch = pa.ipc.read_record_batch(messages.read_next_message(), SCHEMA)
            # Arrow trusts what it reads: without this, damaged bytes end the process.
            batch.validate(full=True)
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise TornBatch(str(error)) from error
        yield PlacedBatch(batch, source.tell())


def offset_at(batch: pa.RecordBatch, row: int) -> LogOffset:
    """The position of one row."""
    return LogOffset(batch["tx_offset"][row].as_py(), batch["op_offset"][row].as_py())


def _within(batch: pa.RecordBatch, after: LogOffset, up_to: LogOffset) -> pa.RecordBatch:
    """The rows with `after < offset <= up_to`: a slice, because rows are in order."""
    rows = range(batch.num_rows)
    first = 0
    stop = batch.num_rows
    if offset_at(batch, 0) <= after:
        first = bisect_right(rows, after, key=lambda row: offset_at(batch, row))
    if offset_at(batch, -1) > up_to:
        stop = bisect_right(rows, up_to, key=lambda row: offset_at(batch, row))
    return batch.slice(first, max(stop - first, 0))


def _read_bytes(part: SegmentRange) -> pa.Buffer:
    try:
        with open(part.path, "rb", buffering=0) as file:
            data = _read_exactly(file.fileno(), part.start, part.end)
    except OSError as error:
        raise SegmentUnreadable(f"can't read {part.path}: {error.strerror or error}") from error
    if len(data) != part.size_bytes:
        raise SegmentUnreadable(f"{part.path} ends at byte {part.start + len(data)}, before {part.end}")
    return pa.py_buffer(data)


def _read_exactly(descriptor: int, start: int, end: int) -> bytes:
    """The bytes from start to end, or up to the file's end. One call may read less than it is asked for."""
    pieces = []
    while start < end:
        piece = os.pread(descriptor, end - start, start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)
