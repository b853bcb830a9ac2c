"""StreamLedger: the books of a leadership whose changes stay in a marked stream."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.kinesis.read.chain import Link
from penstock.model.log_offset import LogOffset
from penstock.model.snapshot_again import SnapshotAgain
from penstock.model.stream_position import StreamPosition
from penstock.shapes.feed.books import ShapeBooks
from penstock.shapes.feed.stream_backlog import StreamBacklog, bytes_of, touches
from penstock.shapes.feed.stream_routes import StreamRoutes
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole


class StreamLedger(ShapeBooks):
    """See ShapeBooks. A manifest counts as one transaction, whose commit LSN lies just below its end.

    So what a flush writes is `resolved - 1`, as a copy with the cut P writes P - 1: all that commits below is
    in the table, and no transaction has that commit LSN itself.
    """

    routes: StreamRoutes
    backlog: StreamBacklog

    def __init__(
        self,
        *,
        held: Held,
        routes: StreamRoutes,
        backlog: StreamBacklog,
        tracker: FlushTracker,
        plan: FlushPlan,
    ) -> None:
        """`held`: the one that the plan has, without any shape yet."""
        super().__init__(held=held, tracker=tracker, plan=plan)
        self.routes = routes
        self.backlog = backlog

    def skip(self, shape: str, offset: LogOffset) -> None:
        """The registry knows that the shape's table has everything up to here that is for it."""
        self._held.skip(shape, offset)

    def take(self, link: Link, arrived: datetime, now: float) -> list[SnapshotAgain]:
        """The next link; returns shapes that are pinned, and of which the registry has to know."""
        start = whole(StreamPosition.parse(link.start).commit_lsn - 1)
        end_lsn = link.manifest.resolved_position.commit_lsn
        last = whole(end_lsn - 1)
        sizes: dict[str, int] = {}
        for table in self.routes.tables:
            size_bytes = bytes_of(link, self.routes.relations_of(table))
            if not size_bytes:
                continue
            for shape in self.routes.followers(table) - self._parked:
                if self._held[shape] >= last:
                    continue
                if self.tracker.progress(shape) is None:
                    # It has all that was ever sent to it, and nothing else was for it.
                    self._held.skip(shape, start)
                sizes[shape] = size_bytes
        self.backlog.append(link, arrived)
        self._received(last, end_lsn, sizes, now)
        self.changes += link.manifest.changes if sizes else 0
        again = self.routes.reached(end_lsn)
        self.begin_again(again, now)
        return again

    def lost(self, up_to_lsn: int, reason: str, now: float) -> list[SnapshotAgain]:
        """The stream lacks changes below this: whoever needs some of them begins again.

        So does a shape that is being copied, if the copy's cut is below: changes behind that are missing.
        Nothing more is to come from below, and on an idle server nothing at all: the frontier may go there
        as soon as nobody is behind.
        """
        again = [
            SnapshotAgain(shape, reason)
            for shape in self._held
            if self._held[shape].tx_offset + 1 < up_to_lsn
            and (shape in self._copied or not self.plan.awaits_snapshot(shape))
        ]
        self.begin_again(again, now)
        self.tracker.keepalive(up_to_lsn)
        return again

    def oldest_needed(self, at: datetime, now: float) -> tuple[str, timedelta]:
        """Who is furthest behind, and how old the records are that it needs; 0 if nobody needs any.

        `at` is now by the clock that Kinesis has, too.
        """
        behind = self.tracker.stalled(now, 0.0)
        oldest = self.backlog.oldest_needed(behind[0].offset) if behind else None
        return ("", timedelta()) if oldest is None else (behind[0].shape, max(timedelta(), at - oldest))


def count_readers(routes: StreamRoutes, link: Link) -> int:
    """How many shapes a link may have changes for."""
    return sum(
        len(routes.followers(table)) for table in routes.tables if touches(link, routes.relations_of(table))
    )
