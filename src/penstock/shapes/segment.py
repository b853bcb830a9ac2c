"""A segment of the ChangeLog: one Arrow IPC stream, in a file that only grows.

Rows are changes, in the order of the log, between two kinds of control rows that make a segment readable by
itself: a commit ends each transaction, and a declaration says which relation a `relation_id` stands for,
before its first change in that segment.

The schema never changes and has no dictionaries, so that each batch can be read without those before it. A
sealed segment ends with Arrow's end-of-stream marker; one that is still written, or was when its writer died,
has none.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from penstock.log_offset import LogOffset
from penstock.shapes.change_log_index import BatchSummary, Relation, Span

COMMIT_ID: Final = -1
"""The `relation_id` of a commit. Its payload is empty."""
DECLARATION_ID: Final = -2
"""The `relation_id` of a declaration. Its payload is a Declaration in JSON."""

SCHEMA: Final = pa.schema(
    [
        pa.field("relation_id", pa.int32(), nullable=False),
        pa.field("tx_offset", pa.int64(), nullable=False),
        pa.field("op_offset", pa.int64(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
    ]
)
HEADER: Final = SCHEMA.serialize().to_pybytes()
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


class RowBuffer:
    """Rows on their way to a batch, column by column."""

    __slots__ = ("_op_offsets", "_payload_ends", "_payloads", "_relation_ids", "_tx_offsets")

    def __init__(self) -> None:
        self._relation_ids = array("i")
        self._tx_offsets = array("q")
        self._op_offsets = array("q")
        self._payloads = bytearray()
        self._payload_ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._relation_ids)

    @property
    def size_bytes(self) -> int:
        """About what the rows will take in the file."""
        return len(self._payloads) + len(self._relation_ids) * _ROW_OVERHEAD_BYTES

    def append(self, relation_id: int, tx_offset: int, op_offset: int, payload: bytes | memoryview) -> None:
        """Add a row. Rows come in the order of their offsets."""
        self._payloads += payload
        self._payload_ends.append(len(self._payloads))
        self._relation_ids.append(relation_id)
        self._tx_offsets.append(tx_offset)
        self._op_offsets.append(op_offset)

    def summary(self) -> BatchSummary:
        """What the index needs to know; there must be a row."""
        rows = range(len(self))
        # In a dictionary the last of several equal keys wins.
        last_rows = dict(zip(self._relation_ids, rows, strict=True))
        first_rows = dict(zip(reversed(self._relation_ids), reversed(rows), strict=True))
        relations = {
            relation_id: Span(self._offset(first_rows[relation_id]), self._offset(last))
            for relation_id, last in last_rows.items()
            if relation_id >= 0
        }
        return BatchSummary(Span(self._offset(0), self._offset(-1)), relations)

    def encode(self) -> pa.Buffer:
        """The rows as one message of an Arrow stream. The buffer takes no more rows after this."""
        count = len(self)
        payloads = [None, pa.py_buffer(self._payload_ends), pa.py_buffer(self._payloads)]
        columns = [
            pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(self._relation_ids)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(self._tx_offsets)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(self._op_offsets)]),
            pa.Array.from_buffers(pa.large_binary(), count, payloads),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA).serialize()

    def _offset(self, row: int) -> LogOffset:
        return LogOffset(self._tx_offsets[row], self._op_offsets[row])


def encode_declarations(relations: Mapping[int, Relation], before: LogOffset) -> pa.Buffer:
    """A batch that declares relations before the change at an offset."""
    rows = RowBuffer()
    for relation_id, (schema, table) in relations.items():
        rows.append(DECLARATION_ID, *before, msgspec.json.encode(Declaration(relation_id, schema, table)))
    return rows.encode()


class SegmentFile:
    """A segment that is being written. Every method blocks; an OSError of any of them is final."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self.is_synced = True
        """Whether everything written is on disk."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self.write(HEADER)
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


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
