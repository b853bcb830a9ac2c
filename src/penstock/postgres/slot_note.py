"""The note: how far a slot was confirmed, kept in Postgres itself, where every process finds it.

A slot that somebody drops and creates again looks like ours, and starts behind changes that nobody carried.
To notice that, what was confirmed has to be known outside the slot and outside the process. It is kept in a
large object, which any role may make: it needs no table, no owner and no further right, it goes along to
physical standbys, and logical decoding leaves it out, so the note is in no stream.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.sql import SQL, Literal

from penstock.errors import LineLost, LockLost
from penstock.lsn import format_lsn, parse_lsn
from penstock.postgres.connection import one_line

_SIZE: Final = 256
"""A note is padded to this size: a shorter one must not leave the end of a longer one behind it."""

_FIND: LiteralString = """
SELECT m.oid FROM pg_catalog.pg_description d
JOIN pg_catalog.pg_largeobject_metadata m ON m.oid = d.objoid
WHERE d.classoid = 'pg_catalog.pg_largeobject'::pg_catalog.regclass AND d.objsubid = 0
  AND d.description = %s
ORDER BY m.oid LIMIT 1
"""
_READ: LiteralString = "SELECT pg_catalog.lo_get(%s)"
_CREATE: LiteralString = "SELECT pg_catalog.lo_from_bytea(0, %s)"
_LABEL: Final = SQL("COMMENT ON LARGE OBJECT {note} IS {label}")
# Replicas may have roles of their own. There is nothing in it but positions.
_SHARE: Final = SQL("GRANT SELECT, UPDATE ON LARGE OBJECT {note} TO PUBLIC")
_WRITE: LiteralString = "SELECT pg_catalog.lo_put(%(note)s, 0, %(content)s)"
_WRITE_IF_OURS: LiteralString = _WRITE + " WHERE pg_catalog.lo_get(%(note)s) = %(former)s"
_WHERE_WAL_IS: LiteralString = "SELECT pg_catalog.pg_current_wal_insert_lsn()::text"


class SlotNote(NamedTuple):
    """What is known of a slot."""

    system_id: str
    timeline: int
    confirmed_lsn: int
    """Everything below is durable in the destination. Postgres has never been told more than this."""


class NoteStore:
    """One slot's note. A leadership opens it, and then is the only one that can write it."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncConnection]], slot: str) -> None:
        self._connect = connect
        self._slot = slot
        self._label = f"penstock: how far replication slot {slot} was confirmed"
        self._session: AsyncConnection | None = None
        self._oid: int | None = None
        self._content = b""
        """What we wrote last."""

    async def read(self) -> SlotNote | None:
        """The note, or None if there is none that can be read."""
        session = await self._open()
        row = await (await session.execute(_FIND, (self._label,))).fetchone()
        if row is None:
            return None
        try:
            found = await (await session.execute(_READ, (row[0],))).fetchone()
        except (errors.InsufficientPrivilege, errors.UndefinedObject):
            return None
        assert found is not None, "a SELECT without FROM has a row"
        self._oid = row[0]
        return _decode(bytes(found[0]))

    async def take_over(self, note: SlotNote) -> str | None:
        """Write as the new leader, whoever wrote before; returns why it can't be kept, or None.

        Without a note everything works, but a slot that somebody replaced isn't noticed after a restart.
        """
        content = self._encode(note)
        try:
            async with self._transaction() as session:
                if self._oid is None:
                    self._oid = await self._create(session, content)
                else:
                    await session.execute(_WRITE, {"note": self._oid, "content": content})
        except (errors.InsufficientPrivilege, errors.UndefinedObject, errors.ReadOnlySqlTransaction) as error:
            self._oid = None
            return one_line(error)
        self._content = content
        return None

    async def write(self, note: SlotNote) -> int:
        """Replace our own note; returns where the server's WAL is afterwards. LockLost if it isn't ours."""
        content = self._encode(note)
        values = {"note": self._oid, "content": content, "former": self._content}
        try:
            async with self._transaction() as session:
                written = (await session.execute(_WRITE_IF_OURS, values)).rowcount
            row = await (await session.execute(_WHERE_WAL_IS)).fetchone()
        except psycopg.Error as error:
            raise LineLost(f"the slot's note can't be written: {one_line(error)}") from error
        if not written:
            raise LockLost("another leader has written the slot's note")
        self._content = content
        assert row is not None, "a SELECT without FROM has a row"
        return parse_lsn(row[0])

    async def _create(self, session: AsyncConnection, content: bytes) -> int:
        row = await (await session.execute(_CREATE, (content,))).fetchone()
        assert row is not None, "a SELECT without FROM has a row"
        note = Literal(row[0])
        await session.execute(_LABEL.format(note=note, label=Literal(self._label)))
        await session.execute(_SHARE.format(note=note))
        return int(row[0])

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        """A durable transaction, also where sessions are read-only by default.

        It doesn't wait for synchronous standbys: their absence is no reason to hold the stream.
        """
        session = await self._open()
        await session.execute("BEGIN READ WRITE; SET LOCAL synchronous_commit = 'local'")
        try:
            yield session
            await session.execute("COMMIT")
        except psycopg.Error:
            if not session.broken:
                await session.execute("ROLLBACK")
            raise

    async def _open(self) -> AsyncConnection:
        if self._session is None:
            self._session = await self._connect()
        return self._session

    def _encode(self, note: SlotNote) -> bytes:
        content = {
            "slot": self._slot,
            "system": note.system_id,
            "timeline": note.timeline,
            "confirmed": format_lsn(note.confirmed_lsn),
        }
        return json.dumps(content).encode().ljust(_SIZE)


def _decode(content: bytes) -> SlotNote | None:
    """A note that somebody else has damaged is none."""
    try:
        fields = json.loads(content)
        return SlotNote(str(fields["system"]), int(fields["timeline"]), parse_lsn(fields["confirmed"]))
    except (ValueError, LookupError, TypeError):
        return None
