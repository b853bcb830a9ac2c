"""LogWriter: frames from the stream into the log, as fast as the disk allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Found
from penstock.postgres.leader.answering import Answering
from penstock.postgres.stream.replication import FrameSource
from penstock.shapes.feed.ledger import Ledger

_LOOK_FOR_ROOM_S: Final = 0.1
_LOOK_AGAIN_S: Final = 0.05
_PATIENCE_S: Final = 0.25
# A table that the catalog doesn't have was most likely dropped: many of them must not hold the stream up. If
# it was a partition all the same, the next look at the catalog finds that, and a snapshot mends it.
_WAIT_EVERY_S: Final = 5.0


class LogWriter:
    """Drives the collector. While the log is full it doesn't read, between transactions; feedback goes on."""

    def __init__(
        self,
        *,
        source: FrameSource,
        left_out: set[Relation],
        ledger: Ledger,
        look_up: Callable[[Relation], Awaitable[Found | None]],
        note_again: Callable[[Sequence[SnapshotAgain]], Awaitable[None]],
        snapshot_again: Callable[[Sequence[SnapshotAgain]], Awaitable[None]],
        on_commits: Callable[[], None],
        answering: Answering,
    ) -> None:
        """`left_out` gets the tables of which the source has left out changes, before it returns from `read`.

        `note_again` writes the registry, `snapshot_again` does that for shapes that are yet to be pinned, and
        `on_commits` wakes those who wait for something to flush.
        """
        self._source = source
        self._left_out = left_out
        self._ledger = ledger
        self._look_up = look_up
        self._note_again = note_again
        self._snapshot_again = snapshot_again
        self._on_commits = on_commits
        self._answering = answering
        self._wait_again_at = 0.0
        self.is_paused = False
        """Whether the log is full."""

    async def run(self) -> None:
        """Read until cancelled or until the line is lost."""
        collector, log = self._ledger.collector, self._ledger.log
        while True:
            frames = await self._source.read()
            collector.read_more()
            # Before the commits of those changes are taken.
            await self._mend_left_out()
            start = 0
            while start < len(frames):
                now = time.monotonic()
                taken = collector.take(frames, start, pause=log.is_over_limit)
                start = taken.next_frame
                before = self._ledger.transactions
                again = self._ledger.carry_out(taken.steps, now)
                self._answering.after_take()
                if again:
                    await self._note_again(again)
                if self._ledger.transactions != before:
                    self._on_commits()
                if log.write_due:
                    await asyncio.to_thread(log.write)
                if taken.unknown is not None:
                    await self._learn(taken.unknown, is_truncate=taken.is_truncate)
                elif start < len(frames):
                    await self._wait_for_room()

    async def _learn(self, relation: Relation, *, is_truncate: bool = False) -> None:
        found = await self._look_up(relation)
        if found is None and is_truncate:
            self._ledger.collector.pass_truncates(relation)
            return
        if found is None and time.monotonic() >= self._wait_again_at:
            # A commit may be streamed a moment before it is visible to others.
            deadline = time.monotonic() + _PATIENCE_S
            while found is None and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_AGAIN_S)
                found = await self._look_up(relation)
            if found is None:
                self._wait_again_at = time.monotonic() + _WAIT_EVERY_S
        await self._snapshot_again(self._ledger.collector.learn(relation, found))

    async def _mend_left_out(self) -> None:
        collector = self._ledger.collector
        while self._left_out:
            relation = self._left_out.pop()
            if not collector.knows(relation):
                await self._learn(relation)
            await self._snapshot_again(collector.left_out(relation))

    async def _wait_for_room(self) -> None:
        self.is_paused = True
        while self._ledger.log.is_over_limit:
            self._ledger.plan.make_room(time.monotonic())
            self._on_commits()
            await asyncio.sleep(_LOOK_FOR_ROOM_S)
        self.is_paused = False
