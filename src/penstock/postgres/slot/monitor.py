"""SlotMonitor: how the slot is, whatever this process is doing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Self

import psycopg
from psycopg import AsyncConnection

from penstock.errors import PostgresError
from penstock.postgres.connection import connect, connection_parameters
from penstock.postgres.slot.state import SlotState, read_slot
from penstock.settings.postgres import LeaderSettings, ReplicationSettings
from penstock.settings.timings import Timings

# A slot that is lost makes every process unready within 5 s.
_EVERY_S: Final = 4.0
# Whoever starts makes or takes the slot within a moment, and must not be told for seconds that there is none.
_UNREAD_EVERY_S: Final = 1.0
_CLOCK: Final = "SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8"


class SlotMonitor:
    """Reads the slot every few seconds on a session of its own, from the process's start to its end.

    A slot needs watching most when nobody reads it: while its leader is gone or has given it up, WAL piles
    up on the server. A server that doesn't answer is asked again; the age of the last reading tells.
    """

    def __init__(
        self,
        parameters: dict[str, Any],
        slot: str,
        *,
        on_slot: Callable[[SlotState | None, float], None],
        on_clock: Callable[[float], None],
        every_s: float = _EVERY_S,
    ) -> None:
        """`on_slot` gets the slot, or None if there is none of that name, and when it was asked for.

        `on_clock` gets by how much the server's clock is ahead of ours.
        """
        self._parameters = parameters
        self._slot = slot
        self._on_slot = on_slot
        self._on_clock = on_clock
        self._every_s = every_s
        self._is_read = False
        self._session: AsyncConnection | None = None

    @classmethod
    def of(
        cls,
        replication: ReplicationSettings,
        leader: LeaderSettings,
        *,
        on_slot: Callable[[SlotState | None, float], None],
        on_clock: Callable[[float], None],
    ) -> Self:
        """The monitor of the slot that the settings name."""
        parameters = connection_parameters(
            connect_timeout_s=replication.connect_timeout_s,
            silence_limit_s=Timings.of(leader.timeout_s).answer_s,
            role=f"slot monitor {replication.slot}",
        )
        return cls(parameters, replication.slot, on_slot=on_slot, on_clock=on_clock)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._every_s * 2):
                        await self._look()
                except (PostgresError, psycopg.Error, TimeoutError):
                    self._hang_up()
                await asyncio.sleep(self._every_s if self._is_read else min(_UNREAD_EVERY_S, self._every_s))
        finally:
            self._hang_up()

    async def _look(self) -> None:
        if self._session is None:
            self._session = await connect(self._parameters)
        asked_at = time.monotonic()
        slot = await read_slot(self._session, self._slot)
        self._is_read = slot is not None and slot.active_pid is not None
        self._on_slot(slot, asked_at)
        self._on_clock(await self._clock_offset_s(self._session))

    async def _clock_offset_s(self, session: AsyncConnection) -> float:
        """As exact as half of the way there and back."""
        before = time.time()
        row = await (await session.execute(_CLOCK)).fetchone()
        assert row is not None, "a SELECT without FROM has a row"
        return float(row[0]) - (before + time.time()) / 2

    def _hang_up(self) -> None:
        if self._session is not None:
            self._session.pgconn.finish()
            self._session = None
