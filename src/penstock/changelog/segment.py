"""A segment of the ChangeLog: one Arrow IPC stream, in a file that only grows.

Rows are changes, in the order of the log. Control rows between them make a segment readable by itself: the
first one tells where the segment before it ended, a commit ends each transaction, and a declaration says
which relation a `relation_id` stands for, before its first change in that segment.

The schema never changes and has no dictionaries, so that each batch can be read without those before it. A
sealed segment ends with Arrow's end-of-stream marker; one that is still written, or was when its writer died,
has none. Readers may be other processes, to which a plan was sent: `read_segment`.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.errors import SegmentUnreadable
from penstock.changelog.index import BatchSummary, Portion, SegmentRange, Span
from penstock.durable import sync_directory
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation

COMMIT_ID: Final = -1
"""The `relation_id` of a commit. Its payload is empty."""
DECLARATION_ID: Final = -2
"""The `relation_id` of a declaration. Its payload is a Declaration in JSON."""
FOLLOWS_ID: Final = -3
"""The `relation_id` of a segment's first row. Its offset is the last one of the segment before it.

Its payload says the same again: a scan has to tell a start that is torn from a segment that is missing.
"""

SCHEMA: Final = pa.schema(
    [
        pa.field("relation_id", pa.int32(), nullable=False),
        pa.field("tx_offset", pa.int64(), nullable=False),
        pa.field("op_offset", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
    ]
)
HEADER: Final[bytes] = SCHEMA.serialize().to_pybytes()
END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
SUFFIX: Final = ".arrows"

_ROW_OVERHEAD_BYTES: Final = 4 + 8 + 8 + 8


class Declaration(msgspec.Struct, frozen=True):
    """Which relation a `relation_id` stands for."""

    relation_id: int
    schema: str
    table: str


def segment_name(number: int) -> str:
    """The file name of a log's n-th segment; names sort as numbers do."""
    return f"{number:010d}{SUFFIX}"


class EncodedBatch(NamedTuple):
    """A batch as it stands in the file, and what the index needs to know of it."""

    message: pa.Buffer
    summary: BatchSummary


class RowBuffer:
    """Rows on their way to a batch. Payloads are kept as they are given, and must not change until then."""

    __slots__ = ("_rows", "size_bytes")

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, bytes | memoryview]] = []
        self.size_bytes = 0
        """About what the rows will take in the file."""

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, relation_id: int, tx_offset: int, op_offset: int, payload: bytes | memoryview) -> None:
        """Add a row. Rows come in the order of their offsets."""
        self.size_bytes += len(payload) + _ROW_OVERHEAD_BYTES
        self._rows.append((relation_id, tx_offset, op_offset, payload))

    def encode(self) -> EncodedBatch:
        """The rows as one message of an Arrow stream; there must be a row."""
        relation_ids, tx_offsets, op_offsets, payloads = zip(*self._rows, strict=True)
        ends = array("q", accumulate(map(len, payloads), initial=0))
        count = len(self._rows)
        columns = [
            _column(pa.int32(), count, array("i", relation_ids)),
            _column(pa.int64(), count, array("q", tx_offsets)),
            _column(pa.int64(), count, array("q", op_offsets)),
            _column(pa.large_binary(), count, ends, b"".join(payloads)),
        ]
        message = pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize()
        sizes = list(map(len, payloads))
        return EncodedBatch(message, summarise(relation_ids, tx_offsets, op_offsets, sizes))


def summarise(
    relation_ids: Sequence[int],
    tx_offsets: Sequence[int],
    op_offsets: Sequence[int],
    payload_sizes: Sequence[int],
) -> BatchSummary:
    """What the index needs to know of a batch's rows."""

    def offset(row: int) -> LogOffset:
        return LogOffset(tx_offsets[row], op_offsets[row])

    # In a dictionary the last of several equal keys wins.
    rows = range(len(relation_ids))
    last_rows = dict(zip(relation_ids, rows, strict=True))
    first_rows = dict(zip(reversed(relation_ids), reversed(rows), strict=True))
    sizes = dict.fromkeys(last_rows, 0)
    for relation_id, size in zip(relation_ids, payload_sizes, strict=True):
        sizes[relation_id] += size + _ROW_OVERHEAD_BYTES
    relations = {
        relation_id: Portion(Span(offset(first_rows[relation_id]), offset(last)), sizes[relation_id])
        for relation_id, last in last_rows.items()
        if relation_id >= 0
    }
    return BatchSummary(Span(offset(0), offset(-1)), relations)


def _column(kind: pa.DataType, count: int, *buffers: array[int] | bytes) -> pa.Array:
    """A column without nulls, made of its buffers without copying them."""
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


def encode_start(follows: LogOffset) -> bytes:
    """How a segment begins: Arrow's header, and a batch with one row."""
    rows = RowBuffer()
    rows.append(FOLLOWS_ID, *follows, str(follows).encode())
    return HEADER + bytes(rows.encode().message)


def encode_declarations(relations: Mapping[int, Relation], before: LogOffset) -> EncodedBatch:
    """A batch that declares relations before the change at an offset."""
    rows = RowBuffer()
    for relation_id, (schema, table) in relations.items():
        rows.append(DECLARATION_ID, *before, msgspec.json.encode(Declaration(relation_id, schema, table)))
    return rows.encode()


class SegmentFile:
    """A segment that is being written. Every method blocks; an OSError of any of them is final."""

    def __init__(self, path: Path, follows: LogOffset) -> None:
        self.path = path
        self.size_bytes = 0
        self.is_synced = True
        """Whether everything written is on disk."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self.write(encode_start(follows))
            # A synced file whose name is not on disk is lost with the machine.
            sync_directory(path.parent)
        except BaseException:
            self.close()
            raise

    def write(self, data: bytes | pa.Buffer) -> None:
        """Append all of it. When this fails the file may end anywhere in it."""
        self.is_synced = False
        left = memoryview(data)
        while left:
            written = os.write(self._descriptor, left)
            self.size_bytes += written
            left = left[written:]

    def sync(self) -> None:
        """Make everything written durable."""
        os.fdatasync(self._descriptor)
        self.is_synced = True

    def seal(self) -> None:
        """End the stream, make it durable, and close the file."""
        self.write(END_OF_STREAM)
        self.sync()
        self.close()

    def close(self) -> None:
        """Close the file as it is."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


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
