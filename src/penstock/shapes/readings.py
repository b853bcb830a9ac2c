"""Readings: what the shapes of a leadership are doing, in numbers and sentences."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from penstock.model.log_offset import BEFORE_ALL
from penstock.shapes.feed.books import ShapeBooks
from penstock.shapes.feed.port import Feed
from penstock.shapes.flushing.complaints import complaints
from penstock.shapes.pace.shape_plan import ShapeState, ShapeStatus
from penstock.status.model import ShapeReading, ShapesReading


class ShapeLine(NamedTuple):
    """A shape in a line, for people and for metrics."""

    status: ShapeStatus
    rows: int
    """Changes applied and rows copied in this leadership."""
    lag_bytes: int
    """WAL between what its table holds and what was received; 0 if it has everything."""


class Readings:
    """Reads the books of one leadership, and changes nothing."""

    def __init__(self, ledger: ShapeBooks, feed: Feed, rows: Mapping[str, int]) -> None:
        """`rows`: changes applied and rows copied so far, by shape."""
        self._ledger = ledger
        self._feed = feed
        self._rows = rows

    def lines(self, now: float) -> list[ShapeLine]:
        """Every shape."""
        return [
            ShapeLine(status, self._rows[status.shape], self._lag_bytes(status))
            for status in self._ledger.plan.status(now)
        ]

    def reading(self, line_age_s: float, now: float, *, quarantined: int = 0) -> ShapesReading:
        """All of it in numbers; `quarantined`: by this process so far."""
        ledger = self._ledger
        return ShapesReading(
            line_age_s,
            self._feed.received_lsn,
            ledger.tracker.frontier_lsn,
            ledger.transactions,
            ledger.changes,
            ledger.backlog.size_bytes,
            self._feed.is_paused,
            [
                ShapeReading(
                    line.status.shape,
                    line.status.state.value,
                    line.status.offset.tx_offset,
                    line.lag_bytes,
                    line.status.pending_s,
                    line.rows,
                    line.status.error,
                    None if line.status.wrote_s == math.inf else line.status.wrote_s,
                    None if line.status.due_s == math.inf else max(0.0, line.status.due_s),
                    line.status.waits_for,
                )
                for line in self.lines(now)
            ],
            quarantined,
        )

    def awaits_snapshots(self) -> bool:
        """Whether some shape's table is still to be made, or may have to be; not if it was stopped."""
        return not self._ledger.routes.is_certain or any(
            self._ledger.plan.awaits_snapshot(status.shape) and status.state is not ShapeState.STOPPED
            for status in self._statuses()
        )

    def stopped_shapes(self) -> dict[str, str]:
        """The shapes that wait for somebody to act, with the sentence of each."""
        return {each.shape: each.error or "" for each in self._statuses() if each.state is ShapeState.STOPPED}

    def complaints(self, now: float, stall_s: float) -> dict[str, str]:
        """A sentence for each shape that holds something up."""
        return complaints(
            self._ledger.plan.stalled(now, stall_s),
            self._ledger.tracker.stalled(now, 0.0),
            log_is_full=self._feed.is_paused,
            stall_s=stall_s,
            log_is_half_full=self._ledger.backlog.is_half_full,
            copied={each.shape for each in self._statuses() if each.state is ShapeState.SNAPSHOTTING},
        )

    def unflushed_shapes(self) -> int:
        """How many shapes have something to flush; one that is parked or copied doesn't count."""
        return sum(self._has_to_flush(status.shape) for status in self._statuses())

    def is_flushed(self) -> bool:
        """Whether no shape has something to flush, but for those that fail or await a snapshot."""
        return not any(
            status.error is None and self._has_to_flush(status.shape) for status in self._statuses()
        )

    def _has_to_flush(self, shape: str) -> bool:
        progress = self._ledger.tracker.progress(shape)
        return progress is not None and not progress.pinned

    def _lag_bytes(self, status: ShapeStatus) -> int:
        ledger = self._ledger
        if ledger.tracker.progress(status.shape) is None and not ledger.is_parked(status.shape):
            return 0
        # Without a table: what was read for it. What the server wrote before that, it will get by its copy.
        has_table = status.offset > BEFORE_ALL
        held_lsn = status.offset.tx_offset if has_table else ledger.tracker.frontier_lsn
        return max(0, self._feed.received_lsn - held_lsn)

    def _statuses(self) -> list[ShapeStatus]:
        return self._ledger.plan.status(time.monotonic())
