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
from typing import Any, Final, LiteralString, NamedTuple, NoReturn

import psycopg
import structlog
from psycopg import AsyncConnection, errors
from psycopg.sql import SQL, Literal

from penstock.errors import ConnectionFailed, LineLost, LockLost, PostgresError
from penstock.model.lsn import format_lsn, parse_lsn
from penstock.postgres.connection import one_line

_SIZE: Final = 256
"""A note is padded to this size: a shorter one must not leave the end of a longer one behind it."""
_NOTHING: Final = b"{}".ljust(_SIZE)
_CLAIMS: Final = 3
_REFUSALS: Final = ("42501", "42704", "25006")
"""What a server answers whose role can't keep a note: no right to it, no such object, read only."""
_IN_VAIN: Final = ("25", "42", "53", "54")
"""Classes of answers that waiting doesn't change: what we may not do, and what the server has run out of.

The latter may be our own slot's doing: it keeps WAL on a disk that is full, and its catalog_xmin keeps vacuum
from giving back the transaction ids that are used up.
"""
_ENDED: Final = ("08", "57P")
"""What a server answers whose session is over."""

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
# others until we give up: an answer leaves the session usable. Nor does it hold one while it is idle.
_BEGIN: LiteralString = """
BEGIN READ WRITE; SET LOCAL synchronous_commit = 'local'; SET LOCAL lock_timeout = %(patience_ms)s;
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


class NoteUnwritten(PostgresError):
    """The note can't be written now. Whether the line is still good is for those to say who watch it."""


class NoteImpossible(NoteUnwritten):
    """The note can't be written, and waiting doesn't help or makes it worse."""


class NoteRefused(NoteImpossible):
    """Our role can't keep a note."""


class SlotNote(NamedTuple):
    """What is known of a slot."""

    system_id: str
    timeline: int
    confirmed_lsn: int
    """Everything below is durable in the destination. Postgres has never been told more than this."""


async def read_note(session: AsyncConnection, slot: str) -> SlotNote | None:
    """What a slot's note says, for somebody who only looks; None if there is none that can be used."""
    row = await (await session.execute(_FIND, (_label(slot),))).fetchone()
    found = None if row is None else await (await session.execute(_READ, row)).fetchone()
    return None if found is None else _decode(bytes(found[0]))


class NoteStore:
    """One slot's note. A leadership claims it, and then is the only one that can write it.

    It carries its writer's mark: a former leader that wakes up finds another content than the one it wrote,
    even if both stand at the same LSN.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[AsyncConnection]], slot: str, *, answer_s: float = 5.0
    ) -> None:
        """`answer_s`: how long the server may take."""
        self._connect = connect
        self._slot = slot
        self._answer_s = answer_s
        self._patience_ms = round(1000 * answer_s / 2)
        self._label = _label(slot)
        self._session: AsyncConnection | None = None
        self._oid: int | None = None
        self._mark = secrets.token_hex(8)
        self._content = b""
        """What it held when we last read or wrote it."""

    async def claim(self) -> SlotNote | None:
        """The note, which its former writer can't change any more, or None if there is none.

        None also if it can't be used; that is said. One that can only be read now is returned as it is: what
        it says was never too much, and whoever writes next finds out about the other.
        """
        for _ in range(_CLAIMS):
            note = await self._read()
            if note is None:
                return None
            try:
                async with self._answering():
                    await self._replace(self._encode(note))
            except NoteUnwritten:
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

    async def take_over(self, note: SlotNote) -> None:
        """Write as the new leader. NoteUnwritten if it can't be; LockLost if another one has.

        Without a note everything works, but a slot that somebody replaced isn't noticed after a restart.
        """
        content = self._encode(note)
        async with self._answering():
            if self._oid is None:
                await self._create(content)
            else:
                await self._replace(content)

    async def write(self, note: SlotNote) -> int:
        """Replace our own note; returns where the server's WAL is afterwards.

        NoteUnwritten if it can't be, or if the server takes too long; LockLost if it isn't ours.
        """
        try:
            async with self._answering(overdue=NoteUnwritten):
                return await self._write_ours(note)
        except ConnectionFailed as error:
            # The session was given up, and there is no other one.
            raise NoteUnwritten(f"the slot's note can't be written: {error}") from error

    async def forget(self) -> None:
        """Leave no note behind that will be wrong: this leadership keeps none. `claim` comes first.

        NoteUnwritten if it has to stay.
        """
        if self._oid is not None and self._content != _NOTHING:
            async with self._answering():
                await self._replace(_NOTHING)

    async def _write_ours(self, note: SlotNote) -> int:
        content = self._encode(note)
        try:
            if self._oid is not None:
                return await self._replace(content)
        except errors.UndefinedObject:
            # Nothing refers to it, so `vacuumlo` takes it for an orphan.
            await (await self._open()).execute("ROLLBACK")
        if await self._find_again():
            return await self._replace(content)
        await self._create(content)
        return note.confirmed_lsn

    async def _find_again(self) -> bool:
        """Whether there is a note of ours after all: one whose making we gave up, and which came to be."""
        session = await self._open()
        row = await (await session.execute(_FIND, (self._label,))).fetchone()
        if row is None:
            return False
        try:
            found = await (await session.execute(_READ, row)).fetchone()
        except (errors.InsufficientPrivilege, errors.UndefinedObject):
            return False
        assert found is not None, "a SELECT without FROM has a row"
        if not self._is_ours(bytes(found[0])):
            raise LockLost("another leader has made the slot's note")
        self._oid, self._content = row[0], bytes(found[0])
        return True

    async def _create(self, content: bytes) -> None:
        session = await self._open()
        await session.execute(_BEGIN, {"patience_ms": self._patience_ms})
        row = await (await session.execute(_CREATE, (content,))).fetchone()
        assert row is not None, "a SELECT without FROM has a row"
        await session.execute(_LABEL.format(note=Literal(row[0]), label=Literal(self._label)))
        await session.execute("COMMIT")
        self._oid, self._content = int(row[0]), content

    async def _replace(self, content: bytes) -> int:
        session = await self._open()
        values = {
            "note": self._oid,
            "content": content,
            "former": self._content,
            "patience_ms": self._patience_ms,
        }
        cursor = await session.execute(_WRITE, values)
        results = [await cursor.fetchall() async for cursor in cursor.results() if cursor.description]
        written, where = results
        if not written:
            await self._see_who_wrote(session)
        self._content = content
        return parse_lsn(where[0][0])

    async def _see_who_wrote(self, session: AsyncConnection) -> NoReturn:
        found = await (await session.execute(_READ, (self._oid,))).fetchone()
        assert found is not None, "a SELECT without FROM has a row"
        if not self._is_ours(bytes(found[0])):
            raise LockLost("another leader has written the slot's note")
        self._content = bytes(found[0])
        raise NoteUnwritten("the slot's note can't be written: an earlier one, given up before, came first")

    @asynccontextmanager
    async def _answering(self, *, overdue: type[PostgresError] = LineLost) -> AsyncIterator[None]:
        """An error leaves a usable session behind, or none. `overdue`: what it means if no answer comes."""
        try:
            async with asyncio.timeout(self._answer_s):
                try:
                    yield
                except psycopg.Error:
                    if self._session is not None and not self._session.broken:
                        await self._session.execute("ROLLBACK")
                    raise
        except psycopg.Error as error:
            is_over = self._session is None or self._session.broken
            meaning = LineLost if is_over else _meaning(error)
            raise meaning(f"the slot's note can't be written: {one_line(error)}") from error
        except TimeoutError:
            # It may still be carried out: the next one is then told so by what it finds.
            if self._session is not None:
                self._session.pgconn.finish()
                self._session = None
            raise overdue(f"the slot's note can't be written: no answer for {self._answer_s:.0f} s") from None

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

    def _is_ours(self, content: bytes) -> bool:
        return f'"mark": "{self._mark}"'.encode() in content

    def _encode(self, note: SlotNote) -> bytes:
        content = {
            "slot": self._slot,
            "system": note.system_id,
            "timeline": note.timeline,
            "confirmed": format_lsn(note.confirmed_lsn),
            "mark": self._mark,
        }
        return json.dumps(content).encode().ljust(_SIZE)


def _label(slot: str) -> str:
    """The comment by which the note is found."""
    return f"penstock: how far replication slot {slot} was confirmed"


def _meaning(error: psycopg.Error) -> type[PostgresError]:
    """What an error of a session means for its line, by its SQLSTATE; without one, nobody answered."""
    state = error.sqlstate
    if state is None or state.startswith(_ENDED):
        return LineLost
    if state in _REFUSALS:
        return NoteRefused
    return NoteImpossible if state.startswith(_IN_VAIN) else NoteUnwritten


def _decode(content: bytes) -> SlotNote | None:
    """A note that somebody else has damaged, in whatever way, is none."""
    try:
        fields: dict[str, Any] = json.loads(content)
        return SlotNote(str(fields["system"]), int(fields["timeline"]), parse_lsn(fields["confirmed"]))
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None
