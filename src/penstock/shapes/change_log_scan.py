"""Reading a log of which only the directory is known: its writer is another process, or dead."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from penstock.log_offset import LAST_BEFORE_REAL, LogOffset
from penstock.shapes.change_log_errors import SegmentUnreadable
from penstock.shapes.change_log_index import BatchSummary, Relation, SegmentIndex, SegmentRange, Span
from penstock.shapes.change_log_reader import TornBatch, batches_in, offset_at
from penstock.shapes.segment import COMMIT_ID, DECLARATION_ID, END_OF_STREAM, HEADER, SUFFIX, Declaration

_decode_declaration = msgspec.json.Decoder(Declaration).decode


@dataclass(frozen=True, slots=True)
class ScannedRun:
    """What a run's segments hold."""

    last_txn_offset: LogOffset
    """The newest complete transaction."""
    index: SegmentIndex

    def read_plan(
        self, relations: Collection[Relation] | None, after: LogOffset, up_to: LogOffset | None = None
    ) -> list[SegmentRange]:
        """As ChangeLog.read_plan."""
        return self.index.plan(relations, after, up_to, self.last_txn_offset)


def scan_run(run: Path) -> ScannedRun:
    """Read a run's segments and find what a reader may see: whole transactions. Blocks.

    The last segment may end anywhere, as a crash or a writer that goes on leaves it: what is behind its last
    whole batch is passed over. Any other must be sealed, and none missing between two: SegmentUnreadable.
    While a writer lives, what is found may be ahead of what it has synced.
    """
    scan = _Scan()
    paths = sorted(run.glob(f"*{SUFFIX}"), key=_number)
    for path, following in zip(paths, [*paths[1:], None], strict=True):
        if following is not None and _number(following) != _number(path) + 1:
            raise SegmentUnreadable(f"there is no segment between {path} and {following}")
        scan.take(path, is_last=following is None)
    return ScannedRun(scan.last_txn_offset, scan.index)


class _Scan:
    def __init__(self) -> None:
        self.index = SegmentIndex()
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
        header = len(HEADER)
        end = header
        self.index.start_segment(str(path), header)
        try:
            for batch, end_of_batch in batches_in(pa.py_buffer(data)[header:]):
                end = header + end_of_batch
                self.index.add_batch(end, self._summarise(batch))
        except TornBatch:
            pass
        self.index.persisted()
        return end

    def _summarise(self, batch: pa.RecordBatch) -> BatchSummary:
        relations: dict[int, Span] = {}
        for row, relation_id in enumerate(batch["relation_id"].to_pylist()):
            if relation_id >= 0:
                offset = offset_at(batch, row)
                first = relations[relation_id].first if relation_id in relations else offset
                relations[relation_id] = Span(first, offset)
            elif relation_id == COMMIT_ID:
                self.last_txn_offset = offset_at(batch, row)
            elif relation_id == DECLARATION_ID:
                declared = _decode_declaration(batch["payload"][row].as_py())
                self.index.declare(declared.relation_id, Relation(declared.schema, declared.table))
        return BatchSummary(Span(offset_at(batch, 0), offset_at(batch, -1)), relations)


def _number(segment: Path) -> int:
    return int(segment.name.removesuffix(SUFFIX))
