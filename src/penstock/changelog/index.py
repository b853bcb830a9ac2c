"""SegmentIndex: which bytes of which segments a reader needs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Self

from penstock.changelog.errors import ChangeLogTrimmed
from penstock.model.log_offset import LAST_BEFORE_REAL, OP_INFINITY, LogOffset
from penstock.model.relation import Relation

if TYPE_CHECKING:
    import pyarrow as pa

LANDMARK_BYTES = 64 * 1024
"""At least this far apart, a segment's batches are remembered by their place in the file."""
_SKIP_BYTES = 8 * LANDMARK_BYTES
"""A stretch without anything for a reader is left out if it is at least so long."""


class RelationIds(dict[Relation, int]):
    """The number that stands for each relation in a log's rows; a new relation gets the next one."""

    def __missing__(self, relation: Relation) -> int:
        number = self[relation] = len(self)
        return number


class Span(NamedTuple):
    """From the first to the last of some rows, both included."""

    first: LogOffset
    last: LogOffset


class Portion(NamedTuple):
    """The changes of one relation."""

    span: Span
    size_bytes: int


class BatchSummary(NamedTuple):
    """What the index needs to know of a batch."""

    span: Span
    """Over all rows, commits included."""
    relations: Mapping[int, Portion]
    """The changes of each relation in it."""


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
    own_bytes: int | None = field(default=None, compare=False)
    """How much of it is changes of these relations, at most; None: nobody has counted."""

    @property
    def wanted_bytes(self) -> int:
        """What the reader is left with, at most."""
        return self.size_bytes if self.own_bytes is None else self.own_bytes

    @property
    def size_bytes(self) -> int:
        """How many bytes there are to read."""
        return self.end - self.start

    def behind(self, offset: LogOffset) -> Self:
        """What it holds behind an offset."""
        return replace(self, after=max(self.after, offset))

    def read(self) -> Iterator[pa.RecordBatch]:
        """See `segment.read_segment`. Blocks."""
        # Whoever only plans needs no Arrow.
        from penstock.changelog.segment import read_segment

        return read_segment(self)


@dataclass(slots=True)
class _Holding:
    """What a segment holds of one relation."""

    span: Span
    size_bytes: int = 0
    landmarks: int = 0
    """A bit for each landmark behind which, and before the next, something of it lies."""


@dataclass(slots=True)
class _Segment:
    path: str
    written: int
    """Where the last batch ends."""
    last: LogOffset
    """The last offset in it; while it is empty, the last one before it."""
    durable: int = 0
    """Where the last synced batch ends."""
    relations: dict[int, _Holding] = field(default_factory=dict)
    landmark_offsets: list[LogOffset] = field(default_factory=list)
    landmark_positions: list[int] = field(default_factory=list)

    def add(self, end: int, batch: BatchSummary) -> None:
        positions = self.landmark_positions
        if not positions or self.written - positions[-1] >= LANDMARK_BYTES:
            positions.append(self.written)
            self.landmark_offsets.append(batch.span.first)
        landmark = 1 << (len(positions) - 1)
        for relation_id, (span, size_bytes) in batch.relations.items():
            known = self.relations.setdefault(relation_id, _Holding(span))
            known.span = Span(known.span.first, span.last)
            known.size_bytes += size_bytes
            known.landmarks |= landmark
        self.last = batch.span.last
        self.written = end

    def parts(self, ids: Mapping[int, Relation], after: LogOffset, up_to: LogOffset) -> list[SegmentRange]:
        """What a reader needs of this segment."""
        needed = {
            relation_id: held
            for relation_id in sorted(ids.keys() & self.relations.keys())
            if (held := self.relations[relation_id]).span.last > after and held.span.first <= up_to
        }
        if not needed:
            return []
        low = max(after, min(held.span.first for held in needed.values()))
        high = min(up_to, max(held.span.last for held in needed.values()))
        landmarks = own_bytes = 0
        for held in needed.values():
            landmarks |= held.landmarks
            own_bytes += held.size_bytes
        relations = tuple((relation_id, ids[relation_id]) for relation_id in needed)
        parts = []
        for start, end in self._stretches(low, high, landmarks):
            of_these = min(own_bytes, end - start)
            own_bytes -= of_these
            parts.append(SegmentRange(self.path, start, end, after, up_to, relations, of_these))
        return parts

    def _stretches(self, low: LogOffset, high: LogOffset, landmarks: int) -> list[tuple[int, int]]:
        """The bytes behind these landmarks, as far as they may hold what lies from `low` to `high`."""
        # The row at `low` is in the last batch that begins at or before it.
        first = max(bisect_right(self.landmark_offsets, low) - 1, 0)
        found: list[tuple[int, int]] = []
        for number in range(first, bisect_right(self.landmark_offsets, high)):
            if landmarks >> number & 1:
                start, end = self._stretch(number)
                if found and start - found[-1][1] < _SKIP_BYTES:
                    start = found.pop()[0]
                found.append((start, end))
        return found

    def _stretch(self, number: int) -> tuple[int, int]:
        positions = self.landmark_positions
        # A later landmark may lie in bytes that no sync has covered yet.
        end = positions[number + 1] if number + 1 < len(positions) else self.durable
        return positions[number], min(end, self.durable)


class SegmentIndex:
    """Knows the log's segments: their sizes, their offsets, and which relations each of them holds.

    Rules.
    1. Segments and batches are added in the order of the log, to the newest segment. What was added counts
       for `size_bytes` at once, and for plans once it is `persisted`.
    2. `plan` leaves out segments without the asked relations in the asked offsets, and the batches before,
       behind and, in long stretches, between them as far as landmarks tell. So a reader's work goes by what
       it follows, and not by what others write.
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
        return [part for segment in self._segments[first:] for part in segment.parts(ids, after, last)]

    def offset_within(
        self, relations: Collection[Relation], after: LogOffset, max_bytes: int
    ) -> LogOffset | None:
        """Where the segments behind an offset reach this many bytes of these relations' changes.

        None if all of them stay below.
        """
        ids = {self.relation_ids[name] for name in relations if name in self.relation_ids}
        first = bisect_right(self._segments, after, key=lambda segment: segment.last)
        size_bytes = 0
        for segment in self._segments[first:]:
            size_bytes += sum(
                segment.relations[number].size_bytes for number in ids & segment.relations.keys()
            )
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
            for relation_id, held in segment.relations.items():
                self._trimmed[relation_id] = held.span.last
        return [segment.path for segment in gone]
