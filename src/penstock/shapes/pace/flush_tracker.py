"""FlushTracker: up to which LSN has every shape flushed what it was sent?"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Set
from typing import NamedTuple

from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.model.lsn import format_lsn


class Progress(NamedTuple):
    """How far a shape that is behind has come."""

    last_sent: LogOffset
    """The last operation of the newest transaction that touched it; `BEFORE_ALL` if none has yet."""
    last_flushed: LogOffset
    """It needs nothing at or below this any more."""
    since: float
    """When it last moved: fell behind, or flushed something."""
    pinned: bool
    """Whether its snapshot is still to come."""


class Stalled(NamedTuple):
    """A shape that has not moved for a while."""

    shape: str
    age_s: float
    offset: LogOffset
    """Its `last_flushed`."""


class FlushTracker:
    """The frontier over all shapes: the highest LSN that may be confirmed to Postgres.

    The problem. Shapes flush at their own pace, and a shape sees only the transactions that touch it.
    Postgres wants a single number and forgets what lies below it: it sends a transaction again if the number
    is at or below its commit LSN. So the number must not pass the commit LSN of any transaction that some
    shape still has to flush, and a shape that has nothing to flush must not hold it.

    State.
    - `shape -> Progress`, only for shapes that are behind: `last_flushed < last_sent`, or pinned.
    - The same shapes, sorted by `last_flushed`: the first one holds the minimum. Finding a place takes
      O(log n) comparisons, making room one memmove. It has exactly one entry for each shape that is behind,
      so nothing in here grows with time or traffic.
    - `last_seen_offset`, the last operation of the newest transaction; and the newest position behind which
      nothing is open: that transaction's end LSN, or a later keepalive.
    - `last_global_flushed_offset = max(previous, minimum)`, and the frontier.

    Rules.
    1. While a shape is behind, the frontier is the `tx_offset` of the minimum. That transaction comes again
       after a restart and is skipped; everything before it is flushed everywhere.
    2. While nobody is behind, it is the end LSN of the last transaction, or the last keepalive's `wal_end`.
    3. `committed` makes exactly the touched shapes wait. One that was not behind has flushed all that it was
       ever sent, so it counts as flushed up to the transaction seen just before.
    4. `keepalive` is for keepalives *between* transactions. It counts only as rule 2 lets it: behind an
       unflushed transaction, however small, it waits until that is flushed.
    5. `flushed` takes any offset that was read back from the shape's table. In mid-transaction it moves the
       shape, and confirms nothing of that transaction (rule 1). At or past `last_sent` the shape is no longer
       behind and is forgotten. A note that is late, repeated, or of a shape that is not behind does nothing.
    6. `add` pins a new shape at or below the frontier (past it: ValueError): it is behind until
       `snapshotted`, whatever it is sent, and `flushed` does nothing. So a late note of a former shape of
       that name can't release it. A transaction that commits exactly at the cut is not in the snapshot.
    7. `remove` forgets a shape: it is gone, or its table doesn't count, which the registry knows by then, and
       it is added again before it is copied. The caller no longer names it as touched.
    8. A commit LSN is at or past all that was seen before, ends and keepalives: ValueError otherwise.
    9. The frontier never goes back. A method that moves it returns the new one, otherwise None. A refused
       call changes nothing.

    What the caller owes: it calls `committed` before the transaction can be flushed, and it answers each
    shape that is behind with a note, also when the table turns out to hold everything already.

    Repeats. A tracker lives as long as one replication stream; a new stream gets a new tracker, with the
    slot's position as `initial_lsn`. Transactions that come again are therefore ordinary here: those they
    touch are behind until a note says that their table has them. This is safe without any memory of the
    former stream. Postgres forgot nothing at or above a former frontier, so the first transaction that
    touches a shape now is at or before the first that it has not flushed, as rule 3 demands. It is also safe
    where memory would not be: on a new timeline the same LSN can be another transaction. A stored position
    can release a shape, and can't move the frontier past what this stream has shown.

    Why this is conservative. The frontier takes only three kinds of values: the `tx_offset` of a flushed
    offset that no shape is below; the end of the last transaction with nobody behind; a keepalive with nobody
    behind. A note that is lost or late holds the frontier back, which means repeats after a restart; only a
    false note could push it past something unflushed, which would mean loss.
    """

    __slots__ = ("_behind", "_frontier", "_index", "_last_global", "_last_seen", "_seen_lsn")

    def __init__(self, *, initial_lsn: int = 0) -> None:
        self._frontier = initial_lsn
        self._seen_lsn = 0
        self._last_seen = BEFORE_ALL
        self._last_global = BEFORE_ALL
        self._behind: dict[str, Progress] = {}
        self._index: list[tuple[LogOffset, str]] = []

    @property
    def frontier_lsn(self) -> int:
        """The highest LSN that may be confirmed."""
        return self._frontier

    @property
    def last_seen_offset(self) -> LogOffset:
        """The last operation of the newest transaction; `BEFORE_ALL` before the first."""
        return self._last_seen

    @property
    def last_global_flushed_offset(self) -> LogOffset:
        """The highest minimum so far: every shape has flushed everything at or below it."""
        return self._last_global

    @property
    def minimum(self) -> LogOffset:
        """No shape needs anything at or below this from the log any more."""
        return self._index[0][0] if self._index else self._last_seen

    @property
    def droppable(self) -> LogOffset:
        """The log may drop everything at or below this: with nobody behind, the last commit too.

        A log that is full is read no further, so no later transaction would take that one with it.
        """
        if self._index or self._last_seen == BEFORE_ALL:
            return self.minimum
        return LogOffset(self._last_seen.tx_offset, OP_INFINITY)

    @property
    def behind_count(self) -> int:
        """How many shapes are behind."""
        return len(self._behind)

    def progress(self, shape: str) -> Progress | None:
        """Where a shape is that is behind; None if it has flushed all that it was sent."""
        return self._behind.get(shape)

    def committed(self, last: LogOffset, end_lsn: int, touched: Set[str], now: float) -> int | None:
        """A transaction is complete: its last operation, its end LSN and the shapes that it touched."""
        if last.tx_offset < self._seen_lsn:
            raise ValueError(
                f"commit LSNs must not decrease: got {format_lsn(last.tx_offset)} "
                f"after {format_lsn(self._seen_lsn)}"
            )
        if end_lsn <= last.tx_offset:
            raise ValueError(
                f"a transaction commits at {format_lsn(last.tx_offset)} "
                f"and ends before, at {format_lsn(end_lsn)}"
            )
        for shape in touched:
            progress = self._behind.get(shape)
            if progress is None:
                self._put(shape, Progress(last, self._last_seen, now, pinned=False))
            else:
                self._behind[shape] = progress._replace(last_sent=last)
        self._last_seen = last
        self._seen_lsn = end_lsn
        return self._advance()

    def keepalive(self, wal_end: int) -> int | None:
        """A keepalive came between transactions."""
        self._seen_lsn = max(self._seen_lsn, wal_end)
        return self._advance()

    def flushed(self, shape: str, offset: LogOffset, now: float) -> int | None:
        """A shape's table holds everything up to `offset`."""
        progress = self._behind.get(shape)
        if progress is None or progress.pinned or offset <= progress.last_flushed:
            return None
        return self._move(shape, progress, offset, now)

    def add(self, shape: str, *, flushed: LogOffset, now: float) -> None:
        """Pin a shape, new or restarted, before its snapshot is taken."""
        if flushed.tx_offset > self._frontier:
            raise ValueError(
                f"shape {shape} can't be pinned at {flushed}, past the frontier {format_lsn(self._frontier)}"
            )
        self._take(shape)
        self._put(shape, Progress(BEFORE_ALL, flushed, now, pinned=True))
        self._advance()

    def snapshotted(self, shape: str, cut_lsn: int, now: float) -> int | None:
        """A pinned shape's snapshot is in its table: the transactions that commit before `cut_lsn`."""
        progress = self._behind.get(shape)
        if progress is None or not progress.pinned:
            return None
        # A cut at the pin holds what the pin already stood for, and says it as a lower offset.
        offset = max(progress.last_flushed, LogOffset(cut_lsn - 1, OP_INFINITY))
        return self._move(shape, progress, offset, now)

    def remove(self, shape: str) -> int | None:
        """A shape no longer counts."""
        self._take(shape)
        return self._advance()

    def stalled(self, now: float, after_s: float) -> list[Stalled]:
        """Shapes that are behind and have not moved for `after_s`; the one that holds the slot first."""
        return [
            Stalled(shape, age_s, offset)
            for offset, shape in self._index
            if (age_s := now - self._behind[shape].since) >= after_s
        ]

    def _move(self, shape: str, progress: Progress, offset: LogOffset, now: float) -> int | None:
        self._take(shape)
        if offset < progress.last_sent:
            self._put(shape, Progress(progress.last_sent, offset, now, pinned=False))
        return self._advance()

    def _put(self, shape: str, progress: Progress) -> None:
        self._behind[shape] = progress
        insort(self._index, (progress.last_flushed, shape))

    def _take(self, shape: str) -> None:
        progress = self._behind.pop(shape, None)
        if progress is not None:
            del self._index[bisect_left(self._index, (progress.last_flushed, shape))]

    def _advance(self) -> int | None:
        minimum = self.minimum
        self._last_global = max(self._last_global, minimum)
        lsn = minimum.tx_offset if self._index else self._seen_lsn
        if lsn <= self._frontier:
            return None
        self._frontier = lsn
        return lsn
