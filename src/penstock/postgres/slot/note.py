"""The note: how far a slot was confirmed, kept in Postgres itself, where every process finds it.

A slot that somebody drops and creates again looks like ours, and starts behind changes that nobody carried.
To notice that, what was confirmed has to be known outside the slot and outside the process. It is kept in a
large object, which any role may make: it needs no table and no further right, it goes along to physical
standbys, and logical decoding leaves it out, so the note is in no stream.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
import structlog
from psycopg import AsyncConnection, errors
from psycopg.sql import SQL, Literal

from penstock.errors import LineLost, LockLost
from penstock.model.lsn import format_lsn, parse_lsn
from penstock.postgres.connection import one_line

_SIZE: Final = 256
"""A note is padded to this size: a shorter one must not leave the end of a longer one behind it."""
_NOTHING: Final = b"{}".ljust(_SIZE)
_CLAIMS: Final = 3
_REFUSALS: Final = (errors.InsufficientPrivilege, errors.UndefinedObject, errors.ReadOnlySqlTransaction)
"""What a server may answer whose role can't keep a note; it is said, and no reason to stop."""

# Of several with our label, the one that is ours: others may have made theirs on purpose.
_FIND: LiteralString = """
SELECT m.oid FROM pg_catalog.pg_description d
JOIN pg_catalog.pg_largeobject_metadata m ON m.oid = d.objoid
WHERE d.classoid = 'pg_catalog.pg_largeobject'::pg_catalog.regclass AND d.objsubid = 0
  AND d.description = %s
ORDER BY pg_catalog.pg_get_userbyid(m.lomowner) = current_user DESC, m.oid LIMIT 1
"""
_READ: LiteralString = "SELECT pg_catalog.lo_get(%s), pg_catalog.pg_current_wal_insert_lsn()::text"
_CREATE: LiteralString = "SELECT pg_catalog.lo_from_bytea(0, %s)"
_LABEL: Final = SQL("COMMENT ON LARGE OBJECT {note} IS {label}")
# It doesn't wait for synchronous standbys: their absence is no reason to hold the stream. Nor for locks of
# others, or holding one itself, for longer than a leadership can stand.
_BEGIN: LiteralString = """
BEGIN READ WRITE; SET LOCAL synchronous_commit = 'local'; SET LOCAL lock_timeout = '2s';
SET LOCAL idle_in_transaction_session_timeout = '2s'
"""
# One message to the server: a leader that freezes leaves no transaction open behind it.
_WRITE: LiteralString = (
    _BEGIN
    + """;
SELECT pg_catalog.lo_put(%(note)s, 0, %(content)s) WHERE pg_catalog.lo_get(%(note)s) = %(former)s;
COMMIT; SELECT pg_catalog.pg_current_wal_insert_lsn()::text
"""
)

_log = structlog.get_logger()


class SlotNote(NamedTuple):
    """What is known of a slot."""

    system_id: str
    timeline: int
    confirmed_lsn: int
    """Everything below is durable in the destination. Postgres has never been told more than this."""


class NoteStore:
    """One slot's note. A leadership claims it, and then is the only one that can write it.

    It carries its writer's mark: a former leader that wakes up finds another content than the one it wrote,
    even if both stand at the same LSN.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncConnection]], slot: str, *, answer_s: float = 5.0
    ) -> None:
        """`answer_s`: how long the server may take; LineLost if it takes longer."""
        self._connect = connect
        self._slot = slot
        self._answer_s = answer_s
        self._label = f"penstock: how far replication slot {slot} was confirmed"
        self._session: AsyncConnection | None = None
        self._oid: int | None = None
        self._mark = secrets.token_hex(8)
        self._content = b""
        """What it held when we last read or wrote it."""

    async def claim(self) -> SlotNote | None:
        """The note, which its former writer can't change any more, or None if there is none.

        None also if it can't be used; that is said. One that we may only read is returned as it is.
        """
        for _ in range(_CLAIMS):
            note = await self._read()
            if note is None:
                return None
            try:
                async with self._answering():
                    await self._replace(self._encode(note))
            except _REFUSALS:
                return note
            except LockLost:
                # A former leader's last word was on its way.
                continue
            return note
        raise LockLost("another leader goes on writing the slot's note")

    async def _read(self) -> SlotNote | None:
        async with self._answering():
            session = await self._open()
            row = await (await session.execute(_FIND, (self._label,))).fetchone()
            if row is None:
                return None
            try:
                found = await (await session.execute(_READ, (row[0],))).fetchone()
            except (errors.InsufficientPrivilege, errors.UndefinedObject) as error:
                self._say_unusable(one_line(error))
                return None
        assert found is not None, "a SELECT without FROM has a row"
        self._oid, self._content = row[0], bytes(found[0])
        note = _decode(self._content)
        if self._content != _NOTHING and (note is None or note.confirmed_lsn > parse_lsn(found[1])):
            self._say_unusable("it holds something that Penstock never wrote")
            return None
        return note

    async def take_over(self, note: SlotNote) -> str | None:
        """Write as the new leader; returns why it can't be kept, or None. LockLost if another one has.

        Without a note everything works, but a slot that somebody replaced isn't noticed after a restart.
        """
        content = self._encode(note)
        try:
            async with self._answering():
                if self._oid is None:
                    await self._create(content)
                else:
                    await self._replace(content)
        except _REFUSALS as error:
            self._oid = None
            return one_line(error)
        return None

    async def write(self, note: SlotNote) -> int:
        """Replace our own note; returns where the server's WAL is afterwards. LockLost if it isn't ours."""
        content = self._encode(note)
        async with self._answering():
            try:
                return await self._replace(content)
            except errors.UndefinedObject:
                # Nothing refers to it, so `vacuumlo` takes it for an orphan.
                await (await self._open()).execute("ROLLBACK")
                await self._create(content)
                return note.confirmed_lsn

    async def forget(self) -> None:
        """Leave no note behind that will be wrong: this leadership keeps none. `claim` comes first."""
        if self._oid is not None and self._content != _NOTHING:
            async with self._answering():
                await self._replace(_NOTHING)

    async def _create(self, content: bytes) -> None:
        session = await self._open()
        await session.execute(_BEGIN)
        row = await (await session.execute(_CREATE, (content,))).fetchone()
        assert row is not None, "a SELECT without FROM has a row"
        await session.execute(_LABEL.format(note=Literal(row[0]), label=Literal(self._label)))
        await session.execute("COMMIT")
        self._oid, self._content = int(row[0]), content

    async def _replace(self, content: bytes) -> int:
        session = await self._open()
        values = {"note": self._oid, "content": content, "former": self._content}
        cursor = await session.execute(_WRITE, values)
        results = [await cursor.fetchall() async for cursor in cursor.results() if cursor.description]
        written, where = results
        if not written:
            raise LockLost("another leader has written the slot's note")
        self._content = content
        return parse_lsn(where[0][0])

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Errors that can be answered for pass through, in a session that is usable again."""
        try:
            async with asyncio.timeout(self._answer_s):
                try:
                    yield
                except psycopg.Error:
                    if self._session is not None and not self._session.broken:
                        await self._session.execute("ROLLBACK")
                    raise
        except _REFUSALS:
            raise
        except psycopg.Error as error:
            raise LineLost(f"the slot's note can't be written: {one_line(error)}") from error
        except TimeoutError:
            raise LineLost(
                f"the slot's note can't be written: no answer for {self._answer_s:.0f} s"
            ) from None

    def _say_unusable(self, why: str) -> None:
        _log.warning(
            "slot_note_unusable",
            slot=self._slot,
            detail=why,
            note="whether changes are missing since the slot was last confirmed can't be told",
        )

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
            "mark": self._mark,
        }
        return json.dumps(content).encode().ljust(_SIZE)


def _decode(content: bytes) -> SlotNote | None:
    """A note that somebody else has damaged, in whatever way, is none."""
    try:
        fields: dict[str, Any] = json.loads(content)
        return SlotNote(str(fields["system"]), int(fields["timeline"]), parse_lsn(fields["confirmed"]))
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None
