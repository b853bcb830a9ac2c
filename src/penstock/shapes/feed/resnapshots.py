"""Resnapshots: shapes that are snapshotted again, or parked, in the one order that loses nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from penstock.model.snapshot_again import SnapshotAgain
from penstock.shapes.feed.books import ShapeBooks
from penstock.shapes.registry.keeper import RegistryKeeper

_log = structlog.get_logger()


class Resnapshots:
    """What has to happen before a table no longer counts.

    1. The shape is pinned: nothing more is confirmed to Postgres.
    2. The registry has it: a restart doesn't go on from the table.
    3. Nobody waits for it any more, until its snapshot begins.
    """

    def __init__(
        self,
        ledger: ShapeBooks,
        keeper: RegistryKeeper,
        *,
        say_needed: Callable[[SnapshotAgain], None],
        wake: Callable[[], None],
    ) -> None:
        """`wake` is called when there is something to do."""
        self._ledger = ledger
        self._keeper = keeper
        self._say_needed = say_needed
        self._wake = wake

    async def need(self, again: Sequence[SnapshotAgain]) -> None:
        """These shapes have to be snapshotted again."""
        if again:
            self._ledger.begin_again(again, time.monotonic())
            await self.note(again)
            for shape, reason in again:
                if self._ledger.routes.is_gone(shape):
                    _log.error("shape_parked", shape=shape, detail=reason)

    async def note(self, again: Sequence[SnapshotAgain]) -> None:
        """The same for shapes that are pinned already."""
        await self._keeper.update(lambda registry: registry.all_awaiting(again))
        for each in again:
            self._ledger.noted(each.shape)
            self._say_needed(each)
        self._wake()

    async def park(self, shape: str, sentence: str) -> None:
        """A shape can't go on until somebody acts."""
        self._ledger.stop(shape, sentence, time.monotonic())
        await self._keeper.update(lambda registry: registry.awaiting(shape, sentence))
        self._ledger.noted(shape)
        _log.error("shape_parked", shape=shape, detail=sentence)
