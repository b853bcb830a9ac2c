"""What Postgres tells of a service: its slot, its leader, its processes, its note."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, LiteralString, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection

from penstock.errors import ConnectionFailed, PostgresError
from penstock.postgres.connection import (
    application_name,
    connect,
    connect_replication,
    connection_parameters,
    one_line,
)
from penstock.postgres.leader.lock import LockHolder, lock_holder, slot_hash64
from penstock.postgres.slot.note import SlotNote, read_note
from penstock.postgres.slot.state import SlotState, read_slot
from penstock.postgres.timeline import ServerIdentity, flushed_lsn, identify
from penstock.settings.postgres import LeaderSettings, ReplicationSettings

_Answer = TypeVar("_Answer")

ANSWER_S: Final = 10.0
"""How long a question may take."""

_SESSION: LiteralString = """
SELECT application_name || coalesce(' at ' || pg_catalog.host(client_addr), '')
FROM pg_catalog.pg_stat_activity WHERE pid = %s
"""
_PROCESSES: LiteralString = """
SELECT count(*) FROM pg_catalog.pg_stat_activity
WHERE application_name = %s AND datname = pg_catalog.current_database()
"""


class PostgresFacts(NamedTuple):
    """All of it. Read in the order in which a service writes: the slot first, what it rests on later."""

    slot: SlotState | None
    slot_read_at: float
    """By the monotonic clock."""
    holder: LockHolder | None
    """Of the slot's lock."""
    reader: str | None
    """The session that reads the slot."""
    processes: int
    """That watch the slot."""
    note: SlotNote | None = None
    server: ServerIdentity | None = None
    unknown: tuple[str, ...] = ()
    """What could not be told, a sentence each."""


class PostgresLook:
    """Looks at one slot on a session of its own. It changes nothing."""

    def __init__(self, replication: ReplicationSettings, leader: LeaderSettings) -> None:
        self._slot = replication.slot
        override = leader.lock_key_override
        self._key = slot_hash64(replication.slot) if override is None else override
        self._timeout_s = leader.timeout_s
        self._parameters = connection_parameters(
            connect_timeout_s=replication.connect_timeout_s, silence_limit_s=ANSWER_S, role="status"
        )
        self._session: AsyncConnection | None = None
        self._server: ServerIdentity | None = None
        """A primary stays on its timeline for as long as a session to it lives."""

    async def look(self) -> PostgresFacts:
        """Ask everything but `wal_lsn`. PostgresError if the server can't be asked."""
        return await self._answered(self._look())

    async def wal_lsn(self) -> int:
        """Up to where the server's WAL is on disk now. PostgresError if the server can't be asked."""

        async def ask() -> int:
            return await flushed_lsn(await self._open())

        return await self._answered(ask())

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.pgconn.finish()
        self._session = self._server = None

    async def _look(self) -> PostgresFacts:
        session = await self._open()
        asked_at = time.monotonic()
        slot = await read_slot(session, self._slot)
        holder = await lock_holder(session, self._key)
        reader = None
        if slot is not None and slot.active_pid is not None:
            reader = _session_text(slot.active_pid, await self._row(_SESSION, slot.active_pid))
        processes = await self._row(_PROCESSES, application_name(f"slot monitor {self._slot}"))
        unknown: list[str] = []
        note = await _or_unknown(lambda: read_note(session, self._slot), "the slot's note", unknown)
        server = await _or_unknown(self._identify, "the server's timeline", unknown)
        return PostgresFacts(slot, asked_at, holder, reader, processes or 0, note, server, tuple(unknown))

    async def _identify(self) -> ServerIdentity:
        if self._server is not None:
            return self._server
        line = await connect_replication(self._parameters, wal_sender_timeout_s=self._timeout_s)
        try:
            self._server = await identify(line)
        finally:
            line.pgconn.finish()
        return self._server

    async def _open(self) -> AsyncConnection:
        if self._session is None:
            self._session = await connect(self._parameters)
        return self._session

    async def _row(self, query: LiteralString, value: object) -> Any:
        row = await (await (await self._open()).execute(query, (value,))).fetchone()
        return None if row is None else row[0]

    async def _answered(self, answer: Awaitable[_Answer]) -> _Answer:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        except psycopg.Error as error:
            self.close()
            raise ConnectionFailed(f"Postgres could not be asked: {one_line(error)}") from error
        except TimeoutError:
            self.close()
            raise ConnectionFailed(f"no answer from Postgres within {ANSWER_S:.0f} s") from None


def _session_text(pid: int, description: str | None) -> str:
    return f"pid {pid}" + (f" ({description})" if description else "")


def holder_text(holder: LockHolder) -> str:
    """Who holds the lock, for people."""
    return _session_text(holder.pid, holder.description)


async def _or_unknown(ask: Callable[[], Awaitable[_Answer]], what: str, unknown: list[str]) -> _Answer | None:
    """The answer; or None, and a sentence more of what can't be told."""
    try:
        return await ask()
    except (psycopg.Error, PostgresError) as error:
        unknown.append(f"{what}: {one_line(error)}")
        return None
