"""Ledger: the books of a leadership that keeps changes in a log of its own."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.changelog.log import ChangeLog
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.shapes.feed.books import ShapeBooks
from penstock.shapes.feed.collector import Append, Collector, Committed, Silence, Step
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held


class Ledger(ShapeBooks):
    """See ShapeBooks; here the log is in step, too.

    A commit goes to the log before the tracker hears of it, and nothing of it can be flushed before that: the
    log is persisted later.
    """

    collector: Collector
    log: ChangeLog

    def __init__(
        self, *, held: Held, collector: Collector, log: ChangeLog, tracker: FlushTracker, plan: FlushPlan
    ) -> None:
        """`held`: the one that the collector reads and the plan has, without any shape yet."""
        super().__init__(held=held, tracker=tracker, plan=plan)
        self.routes = self.collector = collector
        self.backlog = self.log = log
        self._open_bytes: dict[Relation, int] = {}
        """Of the open transaction: what was appended of each relation."""

    def carry_out(self, steps: Iterable[Step], now: float) -> list[SnapshotAgain]:
        """Do what the collector says; returns what the registry has to know before more is done."""
        again: list[SnapshotAgain] = []
        for step in steps:
            match step:
                case Append():
                    if self._parked and self.collector.followers(step.relation) <= self._parked:
                        continue
                    self.log.append(*step)
                    size = self._open_bytes.get(step.relation, 0) + len(step.payload)
                    self._open_bytes[step.relation] = size
                    self.changes += 1
                case Committed():
                    self._committed(step, now)
                case Silence():
                    self.tracker.keepalive(step.wal_end)
                case SnapshotAgain():
                    self.begin_again([step], now)
                    again.append(step)
        return again

    def _committed(self, step: Committed, now: float) -> None:
        touched = step.touched - self._parked
        # Something of it may have been appended before all of those were parked.
        if touched or self._open_bytes:
            self.log.commit(step.last.tx_offset)
        self._received(step.last, step.end_lsn, self._sizes(touched), now)
        self._open_bytes.clear()

    def _sizes(self, touched: frozenset[str]) -> dict[str, int]:
        """How much of the open transaction is for each shape that it touched."""
        if len(self._open_bytes) == 1:
            return dict.fromkeys(touched, *self._open_bytes.values())
        sizes = dict.fromkeys(touched, 0)
        for relation, size_bytes in self._open_bytes.items():
            for shape in self.collector.followers(relation) & touched:
                sizes[shape] += size_bytes
        return sizes
