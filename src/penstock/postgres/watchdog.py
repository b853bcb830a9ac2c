"""The watchdog: an ordinary session that sees whether our walsender still holds the lock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import AsyncConnection

from penstock.errors import LineLost, LineStale
from penstock.postgres.connection import one_line
from penstock.postgres.freshness import Freshness
from penstock.postgres.leader import see_lock
from penstock.postgres.slot import SlotState, read_slot

_SLOT_EVERY_S: Final = 5.0


class Watchdog:
    """Vouches for the line, and hears at once when the server shuts down.

    A server that stops tells ordinary sessions so (57P01) while it goes on waiting for walsenders. So this
    session listens between its questions, and its end is the end of the leadership.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        *,
        lock_key: int,
        walsender_pid: int,
        slot: str,
        freshness: Freshness,
        interval_s: float,
        on_slot: Callable[[SlotState], None],
    ) -> None:
        self._connection = connection
        self._lock_key = lock_key
        self._walsender_pid = walsender_pid
        self._slot = slot
        self._freshness = freshness
        self._interval_s = interval_s
        self._on_slot = on_slot

    async def watch(self) -> None:
        """Ask and listen until cancelled; raises when the lock or this session is gone."""
        slot_read_at = float("-inf")
        try:
            while True:
                asked_at = time.monotonic()
                await see_lock(self._connection, key=self._lock_key, pid=self._walsender_pid)
                self._freshness.lock_seen(asked_at)
                if asked_at - slot_read_at >= _SLOT_EVERY_S:
                    slot_read_at = asked_at
                    await self._look_at_slot()
                async for _ in self._connection.notifies(timeout=self._interval_s):
                    pass
        except psycopg.Error as error:
            raise LineLost(f"the watchdog's session ended: {one_line(error)}") from error

    async def guard(self) -> None:
        """Raise as soon as nothing vouches for the line; needs no answer from anybody."""
        while True:
            now = time.monotonic()
            if not self._freshness.is_fresh(now):
                raise LineStale(f"no sign of leadership for {self._freshness.age_s(now):.1f} s")
            await asyncio.sleep(self._interval_s / 2)

    async def _look_at_slot(self) -> None:
        slot = await read_slot(self._connection, self._slot)
        if slot is not None:
            self._on_slot(slot)
