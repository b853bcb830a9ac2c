"""The watchdog: an ordinary session that sees whether our walsender still holds the lock."""

from __future__ import annotations

import asyncio
from typing import Final

import psycopg
from psycopg import AsyncConnection

from penstock.clock import awake_or_asleep
from penstock.errors import LineLost, LineStale
from penstock.postgres.connection import one_line
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.lock import see_lock
from penstock.postgres.leader.synchronous import check_walsender

_SYNCHRONOUS_EVERY_S: Final = 5.0


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
        freshness: Freshness,
        interval_s: float,
    ) -> None:
        self._connection = connection
        self._lock_key = lock_key
        self._walsender_pid = walsender_pid
        self._freshness = freshness
        self._interval_s = interval_s

    async def watch(self) -> None:
        """Ask and listen until cancelled; raises when the lock or this session is gone."""
        looked_at = float("-inf")
        try:
            while True:
                asked_at = awake_or_asleep()
                await see_lock(self._connection, key=self._lock_key, pid=self._walsender_pid)
                self._freshness.lock_seen(asked_at)
                if asked_at - looked_at >= _SYNCHRONOUS_EVERY_S:
                    looked_at = asked_at
                    await check_walsender(self._connection, self._walsender_pid)
                async for _ in self._connection.notifies(timeout=self._interval_s):
                    pass
        except psycopg.Error as error:
            raise LineLost(f"the watchdog's session ended: {one_line(error)}") from error

    async def guard(self) -> None:
        """Raise as soon as nothing vouches for the line; needs no answer from anybody."""
        while True:
            now = awake_or_asleep()
            if not self._freshness.is_fresh(now):
                raise LineStale(f"no sign of leadership for {self._freshness.age_s(now):.1f} s")
            await asyncio.sleep(self._interval_s / 2)
