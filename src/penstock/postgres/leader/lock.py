"""Leadership: the slot's advisory lock, held by the replication connection itself."""

from __future__ import annotations

import hashlib
from typing import LiteralString, NamedTuple

from psycopg import AsyncConnection

from penstock.errors import LockLost

_TRY: LiteralString = """
SELECT pg_catalog.pg_try_advisory_lock(%s), pg_catalog.pg_backend_pid(),
       (SELECT extract(epoch FROM a.backend_start)::float8
        FROM pg_catalog.pg_stat_activity a WHERE a.pid = pg_catalog.pg_backend_pid())
"""

# A bigint advisory lock shows up as its two halves, with objsubid 1.
_HOLDER: LiteralString = """
SELECT l.pid, a.application_name || coalesce(' at ' || host(a.client_addr), ''),
       (SELECT s.slot_name::text FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = l.pid LIMIT 1),
       EXISTS (SELECT FROM pg_catalog.pg_stat_replication w WHERE w.pid = l.pid),
       extract(epoch FROM a.backend_start)::float8
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND l.classid = ((%(key)s::int8 >> 32) & 4294967295)::text::oid
  AND l.objid = (%(key)s::int8 & 4294967295)::text::oid
"""


class Session(NamedTuple):
    """A session of the server's. Pids are used again."""

    pid: int
    began_at: float | None
    """By the server's clock; None if we may not see it."""


class LockHolder(NamedTuple):
    """Who holds the lock."""

    pid: int
    description: str | None
    reads_slot: str | None = None
    """The replication slot that this session reads."""
    is_walsender: bool = True
    """Whether it could read one; every leader holds the lock on such a session."""
    began_at: float | None = None

    @property
    def session(self) -> Session:
        """Which one it is."""
        return Session(self.pid, self.began_at)


def slot_hash64(slot: str) -> int:
    """A stable signed 64-bit lock key for a slot name."""
    return int.from_bytes(hashlib.sha256(slot.encode()).digest()[:8], "big", signed=True)


async def try_lock(connection: AsyncConnection, key: int) -> Session | None:
    """Take the lock on this connection; returns its session, or None if another holds the lock."""
    row = await (await connection.execute(_TRY, (key,))).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    locked, *session = row
    return Session(*session) if locked else None


async def see_lock(connection: AsyncConnection, *, key: int, pid: int) -> None:
    """See from another session that this backend holds the lock; LockLost if it doesn't."""
    holder = await lock_holder(connection, key)
    if holder is None or holder.pid != pid:
        raise LockLost(f"walsender {pid} no longer holds the lock")


async def lock_holder(connection: AsyncConnection, key: int) -> LockHolder | None:
    """Who holds the lock, as any session of this database can see."""
    row = await (await connection.execute(_HOLDER, {"key": key})).fetchone()
    return None if row is None else LockHolder(*row)
