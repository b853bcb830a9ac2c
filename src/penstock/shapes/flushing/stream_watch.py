"""StreamWatch: looks at the followed tables again and again, while their changes come late from a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from penstock.errors import ConnectionFailed
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.shapes.feed.stream_ledger import StreamLedger
from penstock.shapes.flushing.work import Work

_LOOK_EVERY_S: Final = 1.0


class StreamWatch:
    """Tells StreamRoutes what the catalog has, once a second, and the registry what was judged."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        *,
        catalog: ShapeCatalog,
        ledger: StreamLedger,
        work: Work,
        snapshot_again: Callable[[Sequence[SnapshotAgain]], Awaitable[None]],
    ) -> None:
        self._shapes = shapes
        self._catalog = catalog
        self._ledger = ledger
        self._work = work
        self._snapshot_again = snapshot_again
        self.looks = 0
        """How many looks have come to their end."""

    def stalled(self, now: float, after_s: float) -> str | None:
        """See TableWatch: a look that waits for the stream waits for its feed, which says so."""
        return None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._look()
            self.looks += 1
            await asyncio.sleep(_LOOK_EVERY_S)

    async def last_look(self) -> None:
        """All was flushed, and the end is near: whoever comes next should know that nothing was missed."""
        with suppress(ConnectionFailed):
            await self._look()

    async def _look(self) -> None:
        trees, lsn, _ = await self._catalog.look({shape.table for shape in self._shapes})
        routes = self._ledger.routes
        await self._snapshot_again(routes.look(trees, lsn))
        for shape in self._shapes:
            facts = self._work.facts(shape.name)
            is_judged = not routes.is_gone(shape.name) and not routes.is_waiting(shape.table)
            if facts is not None and is_judged and facts.tree != routes.tree_of(shape.table, shape.name):
                await self._work.judged(shape.name)
