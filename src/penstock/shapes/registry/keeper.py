"""RegistryKeeper: the one who writes the registry, a write at a time, off the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from penstock import fault_points
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.registry.registry import Ceiling, Registry, RegistryStore

_LOOK_EVERY_S: Final = 0.2


class RegistryKeeper:
    """Holds the registry as it is on disk. A RegistryError of a write ends the leadership."""

    def __init__(self, store: RegistryStore, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._turn = asyncio.Lock()

    @property
    def registry(self) -> Registry:
        """What is on disk."""
        return self._registry

    async def update(self, change: Callable[[Registry], Registry]) -> None:
        """Write a changed registry; it is durable when this returns. One that is equal is not written."""
        async with self._turn:
            changed = change(self._registry)
            if changed == self._registry:
                return
            await asyncio.to_thread(self._store.write, changed)
            self._registry = changed
        fault_points.reached(fault_points.REGISTRY_WRITTEN)


class Confirmed:
    """What may be confirmed to Postgres: the tracker's frontier, once the registry knows of it."""

    def __init__(
        self, tracker: FlushTracker, keeper: RegistryKeeper, offsets: Callable[[], Mapping[str, int]]
    ) -> None:
        """`offsets`: what each shape's table is known to hold."""
        self._tracker = tracker
        self._offsets = offsets
        self._keeper = keeper
        self._ceiling = Ceiling(keeper.registry.ceiling_lsn)

    @property
    def frontier_lsn(self) -> int:
        """The highest LSN that may be confirmed."""
        return self._ceiling.confirmable(self._tracker.frontier_lsn)

    async def raise_ceiling(self, now: float) -> bool:
        """Write the ceiling that is due; returns whether there was one."""
        due = self._ceiling.due(self._tracker.frontier_lsn, now)
        if due is None:
            return False
        try:
            offsets = self._offsets()
            await self._keeper.update(lambda registry: registry.with_ceiling(due, offsets))
        except BaseException:
            self._ceiling.failed()
            raise
        self._ceiling.written()
        return True

    async def run(self, on_moved: Callable[[], None]) -> None:
        """Keep the ceiling up with the frontier until cancelled."""
        while True:
            if await self.raise_ceiling(time.monotonic()):
                on_moved()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def catch_up(self) -> None:
        """Wait until all of the frontier may be confirmed."""
        while self._ceiling.confirmable(self._tracker.frontier_lsn) < self._tracker.frontier_lsn:
            if not await self.raise_ceiling(time.monotonic()):
                await asyncio.sleep(_LOOK_EVERY_S)
