"""IdleTables: looks for commits of others in tables that nothing is flushed to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from penstock.errors import PenstockError
from penstock.lake.errors import SparkGone
from penstock.shapes.registry.registry import RegistryError

EVERY_S: Final = 60.0
"""About how often each table is looked at. A flush looks at its own before it builds on it."""

_log = structlog.get_logger()


class IdleTables:
    """Looks at one table after the other, evenly over the time, so that many are no burst of requests."""

    def __init__(
        self, shapes: Iterable[str], look: Callable[[str], Awaitable[None]], *, every_s: float = EVERY_S
    ) -> None:
        self._next = deque(shapes)
        self._look = look
        self._pause_s = every_s / max(1, len(self._next))

    async def run(self) -> None:
        """Look until cancelled. What fails is said, and tried again in the next round."""
        while True:
            await asyncio.sleep(self._pause_s)
            if not self._next:
                continue
            shape = self._next[0]
            self._next.rotate(-1)
            try:
                await self._look(shape)
            except (SparkGone, RegistryError):
                raise
            except PenstockError as error:
                _log.warning("table_not_looked_at", shape=shape, detail=str(error))
