"""SegmentIndex: which bytes of which segments a reader needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.log_offset import LAST_BEFORE_REAL, OP_INFINITY, LogOffset
from penstock.shapes.change_log_errors import ChangeLogTrimmed

LANDMARK_BYTES = 64 * 1024
"""At least this far apart, a segment's batches are remembered by their place in the file."""


class Relation(NamedTuple):
    """A table's name, as wal2json says it."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


class RelationIds(dict[Relation, int]):
    """The number that stands for each relation in a log's rows; a new relation gets the next one."""

    def __missing__(self, relation: Relation) -> int:
        number = self[relation] = len(self)
        return number


class Span(NamedTuple):
    """From the first to the last of some rows, both included."""

    first: LogOffset
    last: LogOffset


class BatchSummary(NamedTuple):
    """What the index needs to know of a batch."""

    span: Span
    """Over all rows, commits included."""
    relations: Mapping[int, Span]
    """Over the changes of each relation in it."""


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The part of one segment that a reader needs; it may be sent to another process.

    The bytes from `start` to `end` are durable, hold whole batches only, and never change; the file may well
    go on behind them. They hold more than was asked for: the reader keeps `after < offset <= up_to` and the
    relations named here.
    """

    path: str
    start: int
    end: int
    after: LogOffset
    up_to: LogOffset
    relations: tuple[tuple[int, Relation], ...]
    """The relation of each `relation_id`."""

    @property
    def size_bytes(self) -> int:
        """How many bytes there are to read."""
        return self.end - self.start


@dataclass(slots=True)
class _Segment:
    path: str
    written: int
    """Where the last batch ends."""
    last: LogOffset
    """The last offset in it; while it is empty, the last one before it."""
    durable: int = 0
    """Where the last synced batch ends."""
    relations: dict[int, Span] = field(default_factory=dict)
    landmark_offsets: list[LogOffset] = field(default_factory=list)
    landmark_positions: list[int] = field(default_factory=list)

    def add(self, end: int, batch: BatchSummary) -> None:
        positions = self.landmark_positions
        if not positions or self.written - positions[-1] >= LANDMARK_BYTES:
            positions.append(self.written)
            self.landmark_offsets.append(batch.span.first)
        for relation_id, span in batch.relations.items():
            known = self.relations.get(relation_id, span)
            self.relations[relation_id] = Span(known.first, span.last)
        self.last = batch.span.last
        self.written = end

    def part(self, ids: Mapping[int, Relation], after: LogOffset, up_to: LogOffset) -> SegmentRange | None:
        """What a reader needs of this segment; None if it needs nothing."""
        needed = {
            relation_id: span
            for relation_id in sorted(ids.keys() & self.relations.keys())
            if (span := self.relations[relation_id]).last > after and span.first <= up_to
        }
        if not needed:
            return None
        low = max(after, min(span.first for span in needed.values()))
        high = min(up_to, max(span.last for span in needed.values()))
        # The row at `low` is in the last batch that begins at or before it.
        first = max(bisect_right(self.landmark_offsets, low) - 1, 0)
        behind = bisect_right(self.landmark_offsets, high)
        positions = self.landmark_positions
        # A later landmark may lie in bytes that no sync has covered yet.
        end = min(positions[behind], self.durable) if behind < len(positions) else self.durable
        relations = tuple((relation_id, ids[relation_id]) for relation_id in needed)
        return SegmentRange(self.path, positions[first], end, after, up_to, relations)


class SegmentIndex:
    """Knows the log's segments: their sizes, their offsets, and which relations each of them holds.

    Rules.
    1. Segments and batches are added in the order of the log, to the newest segment. What was added counts
       for `size_bytes` at once, and for plans once it is `persisted`.
    2. `plan` leaves out segments without the asked relations in the asked offsets, and the batches before and
       behind them as far as landmarks tell.
    3. `up_to` names a transaction, and a transaction is planned as a whole or not at all: as a whole if it
       is at or below `boundary`, the last one that is complete on disk.
    4. `trim(offset)` forgets the sealed segments that end at or below an offset and returns their paths.
       A segment that may still grow stays.
    5. A reader that asks for changes of a relation which were trimmed gets ChangeLogTrimmed.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._newest_is_sealed = True
        self._size_bytes = 0
        self._last_offset = LAST_BEFORE_REAL
        self.relation_ids = RelationIds()
        self._trimmed: dict[int, LogOffset] = {}
        """The last change of each relation in segments that are gone."""

    @property
    def size_bytes(self) -> int:
        """The bytes of all segments."""
        return self._size_bytes

    @property
    def last_offset(self) -> LogOffset:
        """Where the last batch ends, whether its segment is still there or not."""
        return self._last_offset

    def undeclared(self, batch: BatchSummary) -> dict[int, Relation]:
        """The batch's relations that the newest segment does not name yet."""
        new = batch.relations.keys() - self._segments[-1].relations.keys()
        return (
            {number: relation for relation, number in self.relation_ids.items() if number in new}
            if new
            else {}
        )

    def start_segment(self, path: str, start_bytes: int) -> None:
        """A new segment, with nothing but what each one starts with."""
        self._segments.append(_Segment(path, start_bytes, self._last_offset))
        self._newest_is_sealed = False
        self._size_bytes += start_bytes

    def add_batch(self, end: int, batch: BatchSummary) -> None:
        """A batch was written to the newest segment; the file now ends at `end`."""
        newest = self._segments[-1]
        self._size_bytes += end - newest.written
        newest.add(end, batch)
        self._last_offset = batch.span.last

    def persisted(self) -> None:
        """All that was added is on disk."""
        self._segments[-1].durable = self._segments[-1].written

    def seal(self) -> None:
        """The newest segment is complete and on disk."""
        self.persisted()
        self._newest_is_sealed = True

    def plan(
        self,
        relations: Collection[Relation] | None,
        after: LogOffset,
        up_to: LogOffset | None,
        boundary: LogOffset,
    ) -> list[SegmentRange]:
        """The ranges that hold the changes of these relations (None: of all), in the order of the log."""
        known = self.relation_ids
        ids = {known[name]: name for name in (known if relations is None else relations) if name in known}
        self._refuse_trimmed(ids, after)
        last = boundary if up_to is None else min(LogOffset(up_to.tx_offset, OP_INFINITY), boundary)
        if after >= last:
            return []
        first = bisect_right(self._segments, after, key=lambda segment: segment.last)
        parts = [segment.part(ids, after, last) for segment in self._segments[first:]]
        return [part for part in parts if part is not None]

    def offset_within(self, after: LogOffset, max_bytes: int) -> LogOffset | None:
        """Where the segments behind an offset reach this many bytes; None if all of them stay below."""
        first = bisect_right(self._segments, after, key=lambda segment: segment.last)
        size_bytes = 0
        for segment in self._segments[first:]:
            size_bytes += segment.written
            if size_bytes >= max_bytes:
                return segment.last
        return None

    def _refuse_trimmed(self, ids: Mapping[int, Relation], after: LogOffset) -> None:
        for relation_id, relation in ids.items():
            gone = self._trimmed.get(relation_id, after)
            if gone > after:
                raise ChangeLogTrimmed(
                    f"changes of {relation} up to {gone} are deleted from the log, "
                    f"and a reader has them only up to {after}"
                )

    def trim(self, offset: LogOffset) -> list[str]:
        """Forget the segments that end at or below an offset; returns the files to delete, oldest first."""
        sealed = len(self._segments) if self._newest_is_sealed else len(self._segments) - 1
        count = bisect_right(self._segments, offset, 0, sealed, key=lambda segment: segment.last)
        gone, self._segments = self._segments[:count], self._segments[count:]
        for segment in gone:
            self._size_bytes -= segment.written
            for relation_id, span in segment.relations.items():
                self._trimmed[relation_id] = span.last
        return [segment.path for segment in gone]
