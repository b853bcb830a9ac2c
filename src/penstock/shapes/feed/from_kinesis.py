"""KinesisFeed: changes from a marked stream. The driver reads manifests; jobs read the ranges they name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Self

import structlog

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.chain import Chain, Link
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.manifest_log import Arrived, Place
from penstock.kinesis.read.marked_plan import PATIENCE_S
from penstock.kinesis.read.marked_stream import AT_ONCE, MarkedStream
from penstock.model.lsn import format_lsn
from penstock.model.stream_position import History, StreamPosition
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.feed.stream_ledger import StreamLedger
from penstock.shapes.registry.keeper import Confirmed

_POLL_EVERY_S: Final = 0.4
"""Five calls a second are allowed to all readers of a shard together, and jobs read it, too."""
_TELL_EVERY_S: Final = 10.0

_log = structlog.get_logger()


class _Said(NamedTuple):
    """What tells a manifest from another."""

    by: str
    since: str
    resolved: str

    @classmethod
    def by_manifest(cls, manifest: Manifest) -> Self:
        return cls(manifest.by, manifest.since, manifest.resolved)


class KinesisFeed:
    """See Feed.

    1. Manifests are put in order (Chain), and each link goes into the books: who was touched, and how far,
       and when its manifest came, however long that was held back.
    2. A manifest that doesn't come within a patience is a gap: shapes that lack what it spoke of are
       snapshotted again, and the others go on. Of a stream that is read long after it was written, the times
       of arrival tell how long that was. At the start it doesn't wait: everything that is there has been
       read in order. Nor does it where the chain is full.
    3. What a former primary wrote and the server doesn't have never happened: its manifests are left out. The
       capture that goes on writes from where the server's slot stands; else there is a gap.
    4. A timeline that the server doesn't have, another system under the slot's name: an error, which ends the
       leadership. The next one looks at server and tables again.
    5. The source that is told is the slot which the shapes had when they read from Postgres, if there is one:
       it is moved along, so that it keeps no WAL, and nothing is missing for who goes back to it.
    """

    def __init__(
        self,
        stream: MarkedStream,
        chain: Chain[Place | None],
        ledger: StreamLedger,
        confirmed: Confirmed,
        resnapshots: Resnapshots,
        *,
        history: History,
        move_slot: Callable[[int], Awaitable[None]],
        on_links: Callable[[], None],
    ) -> None:
        """`chain` begins where `stream` does; `on_links` wakes those who wait for something to flush.

        `move_slot` tells the shapes' own slot how far the tables are.
        """
        self._stream = stream
        self._chain = chain
        self._ledger = ledger
        self._confirmed = confirmed
        self._resnapshots = resnapshots
        self._history = history
        self._move_slot = move_slot
        self._on_links = on_links
        self._held_at: str | None = None
        """The place in the chain behind which something is missing, or was."""
        self._held_since = 0.0
        self._arrivals: dict[_Said, datetime] = {}
        """Of those that are held back, and maybe of others that said nothing new."""
        self._newest_at: datetime | None = None
        self._came_at = self._moved_at = time.monotonic()
        self._is_first = True
        self._has_left_out = False
        self._expired: set[str] = set()
        """Shards that manifests speak of, and that are gone: whoever reads there gets an error."""

    @property
    def received_lsn(self) -> int:
        """See Feed: where the last manifest of the chain ends."""
        return StreamPosition.parse(self._chain.applied or "").commit_lsn

    @property
    def confirmed_lsn(self) -> int:
        """See Feed."""
        return self._confirmed.frontier_lsn

    @property
    def is_paused(self) -> bool:
        """See Feed: the stream itself has the room."""
        return False

    def stalled(self, now: float, after_s: float, waits_since: float | None) -> str | None:
        """See Feed. At rest a manifest comes every ten seconds that says nothing new."""
        silent_s = now - self._came_at
        if waits_since is not None:
            silent_s = max(silent_s, now - max(self._moved_at, waits_since))
        if silent_s < after_s:
            return None
        return (
            f"no manifest has gone beyond {format_lsn(self.received_lsn)} for {silent_s:.0f} s. Fix: see"
            " whether penstock capture runs and is ready"
        )

    async def read(self) -> None:
        """See Feed."""
        while True:
            arrived = await asyncio.to_thread(self._stream.more)
            for each in filter(self._has_happened, arrived):
                # A former primary's capture may write on and on: that nothing else comes has to show.
                self._came_at = time.monotonic()
                self._arrivals.setdefault(_Said.by_manifest(each.manifest), each.at)
                self._newest_at = max(self._newest_at or each.at, each.at)
                await self._take(self._chain.take(each.manifest, each.place))
            # A busy stream always has more: whether something is missing shows while others come.
            has_all = len(arrived) < AT_ONCE
            await self._look_for_gap(time.monotonic(), at_once=self._is_first and has_all)
            if has_all:
                self._is_first = False
                await asyncio.sleep(_POLL_EVERY_S)

    async def report(self) -> None:
        """See Feed."""
        while True:
            await asyncio.sleep(_TELL_EVERY_S)
            await self._move_slot(self._confirmed.frontier_lsn)

    def tell_if_moved(self) -> None:
        """See Feed: the slot is moved now and then."""

    def last_word(self) -> None:
        """See Feed: nothing is lost if the slot stays where it is."""

    async def _take(self, links: Sequence[tuple[Link, Place | None]]) -> None:
        for link, _ in links:
            arrived = self._arrivals.pop(_Said.by_manifest(link.manifest))
            if unknown := self._ledger.backlog.unknown_shards(link) - self._expired:
                self._ledger.backlog.know(await asyncio.to_thread(self._stream.shards))
                self._expired |= unknown & self._ledger.backlog.unknown_shards(link)
            again = self._ledger.take(link, arrived, time.monotonic())
            self._moved_at = time.monotonic()
            if again:
                await self._resnapshots.note(again)
        if links:
            self._on_links()

    async def _look_for_gap(self, now: float, *, at_once: bool) -> None:
        gap, applied = self._chain.gap, self._chain.applied
        if gap is None:
            self._arrivals.clear()
            return
        if applied != self._held_at:
            self._held_at, self._held_since = applied, now
        waited_s = max(now - self._held_since, self._held_s(applied or ""))
        if not at_once and not self._chain.is_full and waited_s < PATIENCE_S:
            return
        _log.error("stream_gap", detail=str(gap))
        position, links = self._chain.leap()
        start = StreamPosition.parse(position)
        self._moved_at = now
        self._ledger.backlog.restart(start)
        again = self._ledger.lost(start.commit_lsn, str(gap), now)
        if again:
            await self._resnapshots.note(again)
        await self._take(links)

    def _held_s(self, applied: str) -> float:
        """For how long others came, by Kinesis' clock, since the first that is held back."""
        self._arrivals = {said: at for said, at in self._arrivals.items() if said.resolved > applied}
        if self._newest_at is None or not self._arrivals:
            return 0.0
        return (self._newest_at - min(self._arrivals.values())) / timedelta(seconds=1)

    def _has_happened(self, arrived: Arrived) -> bool:
        """Whether the server has all that a manifest speaks of; another server's is refused by the chain."""
        manifest, end = arrived.manifest, arrived.manifest.resolved_position
        if manifest.system != self._chain.system or self._history.has(end):
            return True
        if end.timeline > self._history.timeline:
            raise StreamReadError(
                f"the stream is on timeline {end.timeline}, and the server on {self._history.timeline}:"
                " another one was promoted. Fix: connect to the present primary"
            )
        if not self._has_left_out:
            self._has_left_out = True
            _log.warning(
                "manifests_left_out",
                detail=f"the stream goes up to {end.described()}, which the server, on timeline"
                f" {self._history.timeline}, doesn't have: a standby was promoted that had not all of it",
            )
        return False
