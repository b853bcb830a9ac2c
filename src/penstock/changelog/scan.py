"""Reading a log of which only the directory is known: its writer is another process, or dead."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.errors import SegmentUnreadable
from penstock.changelog.index import SegmentIndex, SegmentRange
from penstock.changelog.segment import (
    COMMIT_ID,
    DECLARATION_ID,
    END_OF_STREAM,
    FOLLOWS_ID,
    HEADER,
    SUFFIX,
    Declaration,
    TornBatch,
    batches_in,
    offset_at,
    summarise,
)
from penstock.model.log_offset import LAST_BEFORE_REAL, OP_INFINITY, LogOffset
from penstock.model.relation import Relation

_POSITIONS = ("relation_id", "tx_offset", "op_offset")
_decode_declaration = msgspec.json.Decoder(Declaration).decode


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """What a run's segments hold."""

    begins_after: LogOffset
    """What lies at or below was trimmed, or at least a part of its last transaction."""
    last_txn_offset: LogOffset
    """The newest complete transaction."""
    index: SegmentIndex

    def read_plan(
        self, relations: Collection[Relation] | None, after: LogOffset, up_to: LogOffset | None = None
    ) -> list[SegmentRange]:
        """As ChangeLog.read_plan, but without what lies at or below `begins_after`."""
        return self.index.plan(relations, max(after, self.begins_after), up_to, self.last_txn_offset)


def scan_run(run: Path) -> ScannedRun:
    """Read a run's segments and find what a reader may see: whole transactions. Blocks.

    The last segment may end anywhere, as a crash or a writer that goes on leaves it: what is behind its last
    whole batch is passed over. Any other must be sealed, and none missing between two: SegmentUnreadable.
    While a writer lives, what is found may be ahead of what it has synced.
    """
    scan = _Scan()
    paths = sorted(run.glob(f"*{SUFFIX}"))
    for path in paths:
        scan.take(path, is_last=path == paths[-1])
    return ScannedRun(scan.begins_after or LAST_BEFORE_REAL, scan.last_txn_offset, scan.index)


class _Scan:
    def __init__(self) -> None:
        self.index = SegmentIndex()
        self.begins_after: LogOffset | None = None
        self.last_txn_offset = LAST_BEFORE_REAL

    def take(self, path: Path, *, is_last: bool) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise SegmentUnreadable(f"can't read {path}: {error.strerror or error}") from error
        end = self._take_batches(path, data)
        if not is_last and data[end:] != END_OF_STREAM:
            raise SegmentUnreadable(f"{path} is damaged behind byte {end}, and other segments follow it")

    def _take_batches(self, path: Path, data: bytes) -> int:
        """Add a segment to the index; returns where its last whole batch ends."""
        if not data.startswith(HEADER):
            return 0
        end = 0
        # What is torn is told from what is left behind the last whole batch.
        with suppress(TornBatch):
            for batch, end_of_batch in batches_in(pa.py_buffer(data)[len(HEADER) :]):
                take = self._add if end else self._start
                take(path, batch, len(HEADER) + end_of_batch)
                end = len(HEADER) + end_of_batch
        if end:
            self.index.persisted()
        return end

    def _start(self, path: Path, batch: pa.RecordBatch, end: int) -> None:
        follows = offset_at(batch, 0)
        first_row = (batch["relation_id"][0].as_py(), batch["payload"][0].as_py())
        if first_row != (FOLLOWS_ID, str(follows).encode()):
            raise TornBatch("a segment begins with another row")
        if self.begins_after is None:
            # The rest of a transaction whose beginning was trimmed is no whole transaction.
            self.begins_after = self.last_txn_offset = LogOffset(follows.tx_offset, OP_INFINITY)
        elif follows != self.index.last_offset:
            raise SegmentUnreadable(
                f"{path} follows {follows}, and the segment before it ends at {self.index.last_offset}"
            )
        self.index.start_segment(str(path), end)

    def _add(self, path: Path, batch: pa.RecordBatch, end: int) -> None:
        relation_ids, tx_offsets, op_offsets = (batch[name].to_pylist() for name in _POSITIONS)
        sizes = pc.binary_length(batch["payload"]).to_pylist()
        summary = summarise(relation_ids, tx_offsets, op_offsets, sizes)
        first, last = summary.span
        # A disk that lost its power may hold zeros where a batch was on its way.
        if not self.index.last_offset <= first <= last:
            raise TornBatch(f"the log goes back from {self.index.last_offset} in {path}")
        for row, relation_id in enumerate(relation_ids):
            if relation_id == COMMIT_ID:
                self.last_txn_offset = LogOffset(tx_offsets[row], op_offsets[row])
            elif relation_id == DECLARATION_ID:
                self._declare(batch["payload"][row].as_py())
        self.index.add_batch(end, summary)

    def _declare(self, payload: bytes) -> None:
        try:
            declared = _decode_declaration(payload)
        except msgspec.DecodeError as error:
            raise TornBatch(f"a declaration can't be read: {error}") from error
        self.index.relation_ids[Relation(declared.schema, declared.table)] = declared.relation_id
