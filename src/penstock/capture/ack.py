"""AckTracker: up to which LSN is the prefix of everything registered published?"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

_COMPACT_FROM = 4096


class AckTracker:
    """The frontier of one destination: the highest LSN that may be confirmed to Postgres.

    The problem. Events are registered in the order in which they were read, and results come back in any
    order: a batch is half refused, a retry takes a second, ten rows share one LSN. Postgres wants a single
    number, and forgets what lies below it. So a result must name its event and not its LSN, and the number
    may only move over a prefix without holes.

    State. The pending entries, oldest first, each with the LSN it was registered with, the LSN that may be
    confirmed once it and everything before it is published, and a published flag. Ids are consecutive from 1,
    so an id is a place in these arrays and no dictionary is needed. `_head` is the oldest pending entry; what
    lies before it is drained and is cut off from time to time.

    Rules.
    1. `register(lsn)` adds one unpublished entry and returns its id.
    2. Marking publishes exactly one entry. When it was the oldest, the frontier moves over every published
       entry up to the next unpublished one; otherwise it stays.
    3. `advance(lsn)` notes a marker: an LSN with nothing to deliver (a commit's end, a keepalive between
       transactions). It may be confirmed when everything registered before it is published. With nothing
       pending that is now; otherwise the newest entry carries it. A marker is never an entry, so neither
       silence nor small transactions cost memory.
    4. LSNs never decrease, over registrations and markers together: ValueError.
    5. An id that was never given out: KeyError. One that was published before, drained or not: None.
    6. By LSN (`mark_published`, for compatibility), the oldest unpublished entry of that LSN is meant;
       when there is none: KeyError. Markers are not found by LSN.
    7. A method that moves the frontier returns the new one, otherwise None. A refused call changes nothing.

    Why this is conservative. The frontier only ever takes the value of an entry that is itself published and
    has no unpublished entry before it, or of a marker behind such entries. A lost or late result can hold the
    frontier back, which means repeats after a restart; nothing can push it past an unpublished entry, which
    would mean loss.
    """

    __slots__ = (
        "_base_id",
        "_confirmable",
        "_frontier",
        "_frontier_id",
        "_head",
        "_last_registered",
        "_lsns",
        "_published",
    )

    def __init__(self, *, initial_lsn: int = 0) -> None:
        self._frontier = initial_lsn
        self._last_registered = initial_lsn
        self._lsns = array("Q")
        self._confirmable = array("Q")
        self._published = bytearray()
        self._head = 0
        self._base_id = 1
        """The id of the entry at index 0."""
        self._frontier_id = 1
        """The id of the oldest pending entry when the frontier last moved."""

    @property
    def frontier_lsn(self) -> int:
        """The highest LSN that may be confirmed."""
        return self._frontier

    @property
    def last_registered_lsn(self) -> int:
        """The newest LSN of any entry or marker: no later one may be lower."""
        return self._last_registered

    @property
    def drained_count(self) -> int:
        """Entries that have left the window since the start."""
        return self._base_id + self._head - 1

    @property
    def done_count(self) -> int:
        """Entries drained since the frontier last moved: parts of a transaction that isn't complete."""
        return self._base_id + self._head - self._frontier_id

    @property
    def pending_count(self) -> int:
        """Entries between the frontier and the newest, published ones included."""
        return len(self._published) - self._head

    def register(self, lsn: int) -> int:
        """Add an event that is to be delivered; returns its id."""
        if lsn < self._last_registered:
            raise self._decreasing(lsn)
        self._lsns.append(lsn)
        self._confirmable.append(lsn)
        published = self._published
        published.append(0)
        self._last_registered = lsn
        return self._base_id + len(published) - 1

    def advance(self, lsn: int) -> int | None:
        """Note a marker: `lsn` may be confirmed once everything registered before it is published."""
        if lsn < self._last_registered:
            raise self._decreasing(lsn)
        if self._head < len(self._published):
            self._confirmable[-1] = lsn
            self._last_registered = lsn
            return None
        self._last_registered = lsn
        if lsn == self._frontier:
            return None
        self._frontier = lsn
        self._frontier_id = self._base_id + self._head
        return lsn

    def mark_published_by_id(self, ack_id: int) -> int | None:
        """Mark one event as durable in the destination."""
        index = ack_id - self._base_id
        if index < self._head:
            if ack_id < 1:
                raise KeyError(f"unknown ack id: {ack_id}")
            return None
        try:
            self._published[index] = 1
        except IndexError:
            raise KeyError(f"unknown ack id: {ack_id}") from None
        return self._drain() if index == self._head else None

    def mark_published_ids(self, ack_ids: Iterable[int]) -> int | None:
        """Mark a batch; the frontier moves once, at its end. One unknown id: KeyError, and none is marked."""
        ids = list(ack_ids)
        if not ids:
            return None
        published, base = self._published, self._base_id
        for extreme in (min(ids), max(ids)):
            if not 1 <= extreme < base + len(published):
                raise KeyError(f"unknown ack id: {extreme}")
        first_pending = base + self._head
        for ack_id in ids:
            if ack_id >= first_pending:
                published[ack_id - base] = 1
        return self._drain()

    def mark_published(self, lsn: int) -> int | None:
        """Mark the oldest unpublished event of an LSN. An LSN can be shared: prefer ids."""
        first = bisect_left(self._lsns, lsn, self._head)
        index = self._published.find(0, first, bisect_right(self._lsns, lsn, first))
        if index < 0:
            raise KeyError(f"unknown or fully published LSN: {lsn}")
        self._published[index] = 1
        return self._drain() if index == self._head else None

    def _drain(self) -> int | None:
        """Move the head over the published prefix, and the frontier with it."""
        published = self._published
        head = self._head
        size = len(published)
        if head == size or not published[head]:
            return None
        head += 1
        # In order, the next entry is unpublished: looking first is cheaper than calling find.
        if head < size and published[head]:
            head = published.find(0, head)
            if head < 0:
                head = size
        lsn = self._confirmable[head - 1]
        frontier = self._frontier
        if lsn < frontier:
            raise RuntimeError(f"invariant broken: the frontier would go back from {frontier} to {lsn}")
        self._head = head
        # Cutting costs as much as what stays, so it waits until at least as much goes.
        if head >= _COMPACT_FROM and head * 2 >= size:
            self._compact()
        if lsn == frontier:
            return None
        self._frontier = lsn
        self._frontier_id = self._base_id + self._head
        return lsn

    def _compact(self) -> None:
        head = self._head
        del self._lsns[:head]
        del self._confirmable[:head]
        del self._published[:head]
        self._base_id += head
        self._head = 0

    def _decreasing(self, lsn: int) -> ValueError:
        return ValueError(f"LSNs must not decrease: got {lsn} after {self._last_registered}")
