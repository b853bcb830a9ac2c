"""Parking: a shape that fails must not hold a full log for the others."""

from __future__ import annotations

import structlog

from penstock.model.snapshot_again import SnapshotAgain
from penstock.shapes.feed.books import ShapeBooks
from penstock.shapes.feed.port import Feed
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.flushing.complaints import failing_holder

_log = structlog.get_logger()


class Parking:
    """Finds the one that nobody should wait for any more. It is snapshotted when it works again."""

    def __init__(self, ledger: ShapeBooks, feed: Feed, resnapshots: Resnapshots) -> None:
        self._ledger = ledger
        self._feed = feed
        self._resnapshots = resnapshots

    async def look(self, now: float, stall_s: float) -> None:
        """Park the shape that holds the log, if it fails and others could go on.

        At half of the log's bound already, so that reading doesn't have to stop.
        """
        is_full = self._feed.is_paused
        if not is_full and not self._ledger.backlog.is_half_full:
            return
        behind = self._ledger.tracker.stalled(now, 0.0)
        statuses = self._ledger.plan.status(now)
        holder = failing_holder(statuses, behind, log_is_full=is_full, stall_s=stall_s)
        if holder is not None:
            fill = "full" if is_full else "half full"
            reason = f"the log is {fill}, and it held it: {holder.error or 'its job does not end'}"
            _log.error("shape_parked", shape=holder.shape, detail=reason)
            await self._resnapshots.need([SnapshotAgain(holder.shape, reason)])
