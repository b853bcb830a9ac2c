"""Books of a leadership: the FlushTracker, the FlushPlan and Held in step, whatever happens to a shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.model.log_offset import LogOffset
from penstock.model.snapshot_again import SnapshotAgain
from penstock.shapes.feed.port import Backlog, Routes
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole


class ShapeBooks:
    """One leadership's books, wherever changes come from. Touches memory only; time is an argument.

    1. A shape that has to be snapshotted again is pinned, and its flushes stop, before the next step is done.
       Once the registry knows it (`noted`) its table doesn't count, after a crash neither. So it is parked:
       it is not pinned, its changes are left out, and nobody waits for it, for however long. `begin_copy`
       pins it again, before the server is asked for the copy's cut: whatever was left out is below that.
       `end_copy` parks it if the cut doesn't come, and so does a copy that fails, or came too early. One
       whose Postgres table is gone is stopped until a look has found it again.
    2. `offsets` is what the registry may know of the tables: only what was read back from them.
    """

    routes: Routes
    backlog: Backlog

    def __init__(self, *, held: Held, tracker: FlushTracker, plan: FlushPlan) -> None:
        """`held`: the one that the plan has, without any shape yet."""
        self._held = held
        self.tracker = tracker
        self.plan = plan
        self._noted: set[str] = set()
        """Shapes of which the registry knows that their tables don't count."""
        self._parked: set[str] = set()
        self._copied: set[str] = set()
        """Shapes that are to get their cut, or are being copied."""
        self.transactions = 0
        """Committed transactions read, or manifests of them."""
        self.changes = 0
        """Changes that were kept for shapes."""

    def add(self, shape: str, *, interval_s: float, held: LogOffset, now: float) -> None:
        """A shape goes on from what its table holds."""
        self.plan.add(shape, interval_s=interval_s, held=held, now=now)

    def held(self, shape: str) -> LogOffset:
        """The shape needs nothing at or below this from the log."""
        return self._held.passed(shape)

    def offsets(self) -> dict[str, int]:
        """What was read back from the tables, of those that count."""
        return {
            shape: offset
            for shape in self._held
            if (offset := self._held.read_back(shape).tx_offset) > 0 and not self.plan.awaits_snapshot(shape)
        }

    def begin_again(self, again: Iterable[SnapshotAgain], now: float) -> None:
        """These shapes' tables no longer count; the registry has to know it before more is done."""
        for step in again:
            if self.routes.is_gone(step.shape):
                self.stop(step.shape, step.reason, now)
            else:
                self.snapshot_again(step.shape, now)

    def snapshot_again(self, shape: str, now: float) -> None:
        """The shape's table no longer counts. It is pinned: nothing more is confirmed until that is noted."""
        self._pin(shape, now)
        self.plan.snapshot(shape, now)

    def stop(self, shape: str, sentence: str, now: float) -> None:
        """The same, and no snapshot can be taken before somebody acts."""
        self._pin(shape, now)
        self.plan.stop(shape, sentence, now)

    def noted(self, shape: str) -> None:
        """The registry knows that the shape's table doesn't count; a copy may have ended meanwhile."""
        if not self.plan.awaits_snapshot(shape):
            return
        self._noted.add(shape)
        self._park(shape)

    def is_parked(self, shape: str) -> bool:
        """Whether nobody waits for the shape."""
        return shape in self._parked

    def begin_copy(self, shape: str, now: float) -> None:
        """A snapshot is about to get its cut: from here on the shape needs its changes again."""
        self._parked.discard(shape)
        self._copied.add(shape)
        self._pin(shape, now)

    def end_copy(self, shape: str) -> None:
        """A snapshot has ended, with or without its cut: if it didn't help, nobody waits for the shape."""
        self._copied.discard(shape)
        self._park(shape)

    def failed(self, shape: str, sentence: str, now: float) -> None:
        """A flush or a snapshot failed."""
        self.plan.failed(shape, sentence, now)
        self.end_copy(shape)

    def cut(self, shape: str, cut_lsn: int) -> None:
        """A snapshot has its cut: transactions that commit before it will be in the table."""
        self._held.begin_copy(shape, cut_lsn)
        self.routes.copy_begins(shape, cut_lsn)

    def snapshotted(self, shape: str, cut_lsn: int, now: float) -> bool:
        """The snapshot was read back from the table; returns whether it counts: another may be due."""
        self.plan.finished(shape, whole(cut_lsn - 1), now)
        self._held.copied(shape, cut_lsn)
        self.end_copy(shape)
        if self.plan.awaits_snapshot(shape):
            return False
        self._noted.discard(shape)
        self.tracker.snapshotted(shape, cut_lsn, now)
        return True

    def flushed(self, shape: str, tx_offset: int, now: float, *, more: bool = False) -> None:
        """A flush was read back from the table; `more`: it ended there because it had enough."""
        self._held.flushed(shape, whole(tx_offset))
        self.passed(shape, tx_offset, now, more=more)

    def passed(self, shape: str, tx_offset: int, now: float, *, more: bool = False) -> None:
        """Nothing up to here is for the shape but what its table has."""
        held = max(self._held.passed(shape), whole(tx_offset))
        self.plan.finished(shape, held, now, more=more)
        self.tracker.flushed(shape, held, now)

    def _pin(self, shape: str, now: float) -> None:
        self.tracker.add(shape, flushed=LogOffset(self.tracker.frontier_lsn, 0), now=now)

    def _park(self, shape: str) -> None:
        """As long as a copy runs it stays pinned: what follows the copy's cut is for it."""
        if shape in self._noted and self.plan.awaits_snapshot(shape) and shape not in self._copied:
            self._parked.add(shape)
            self.tracker.remove(shape)

    def _received(self, last: LogOffset, end_lsn: int, sizes: Mapping[str, int], now: float) -> None:
        """Whole transactions are kept, `sizes` bytes of them for each shape that they touched."""
        self.tracker.committed(last, end_lsn, sizes.keys(), now)
        for shape, size_bytes in sizes.items():
            self.plan.sent(shape, last, size_bytes, now)
        self.transactions += 1
