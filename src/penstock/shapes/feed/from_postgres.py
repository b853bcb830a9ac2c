"""PostgresFeed: changes from a replication stream of our own, through the log on disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from penstock.decoding.decoder import Decoder
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_tree import Found
from penstock.postgres.leader.answering import Answering
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.stream.feedback import Feedback, Frontier
from penstock.postgres.stream.replication import ReplicationStream
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.feed.log_writer import LogWriter
from penstock.shapes.feed.resnapshots import Resnapshots


class Incoming(NamedTuple):
    """The stream and what goes with it."""

    stream: ReplicationStream
    decoder: Decoder
    freshness: Freshness
    heartbeat_s: float
    left_out: set[Relation]
    """Gets the tables of which the server has left out changes."""

    def walk(self, start_lsn: int) -> FrameWalk:
        """A walk over its frames."""
        return FrameWalk(self.decoder, confirmed_lsn=start_lsn, needs_lsn=True)


class PostgresFeed:
    """See Feed."""

    def __init__(
        self,
        incoming: Incoming,
        walk: FrameWalk,
        ledger: Ledger,
        confirmed: Frontier,
        resnapshots: Resnapshots,
        *,
        look_up: Callable[[Relation], Awaitable[Found | None]],
        on_commits: Callable[[], None],
    ) -> None:
        """`walk` is the one that the ledger's collector stands on; `confirmed` is what may be told."""
        self._walk = walk
        self._feedback = Feedback(
            line=incoming.stream,
            tracker=confirmed,
            received_lsn=lambda: walk.received_lsn,
            heartbeat_s=incoming.heartbeat_s,
        )
        self._writer = LogWriter(
            source=incoming.stream,
            left_out=incoming.left_out,
            ledger=ledger,
            look_up=look_up,
            note_again=resnapshots.note,
            snapshot_again=resnapshots.need,
            on_commits=on_commits,
            answering=Answering(walk, self._feedback, incoming.freshness),
        )

    @property
    def received_lsn(self) -> int:
        """See Feed."""
        return self._walk.received_lsn

    @property
    def confirmed_lsn(self) -> int:
        """See Feed."""
        return self._feedback.confirmed_lsn

    @property
    def is_paused(self) -> bool:
        """See Feed."""
        return self._writer.is_paused

    def stalled(self, now: float, after_s: float, waits_since: float | None) -> str | None:
        """See Feed. The line's own watchdog finds a silent server."""
        return None

    async def read(self) -> None:
        """See Feed."""
        await self._writer.run()

    async def report(self) -> None:
        """See Feed."""
        await self._feedback.run()

    def tell_if_moved(self) -> None:
        """See Feed."""
        self._feedback.send_if_moved()

    def last_word(self) -> None:
        """See Feed."""
        self._feedback.send(reply_requested=True)
