"""The slot's note: what a server's answer means for the leadership that wanted to write it."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, errors

from penstock.errors import ConnectionFailed, LineLost, LockLost, PostgresError
from penstock.postgres.slot.note import NoteImpossible, NoteRefused, NoteStore, NoteUnwritten, SlotNote
from tests.fake_session import FakeCursor, FakeSession

FIND, READ, WRITE, CREATE = "pg_description", "lo_get(%s), ", "lo_put", "lo_from_bytea"
NOTE = SlotNote("7", 1, 42)


class Session(FakeSession):
    """Holds one note; writes meet the errors that they are given, in this order, and then succeed."""

    def __init__(self, *failures: Exception | None) -> None:
        answers: Any = {WRITE: None, CREATE: (16400,), FIND: (16400,), READ: self.read}
        rest: Any = {"ROLLBACK": None, "BEGIN": None, "COMMENT": None, "COMMIT": None}
        super().__init__({**answers, **rest}, pause=lambda _: None)
        self.failures = list(failures)
        self.content = b""
        self.broken = False

    def read(self) -> tuple[object, ...] | None:
        return (self.content, "0/FFFF")

    async def execute(self, query: Any, parameters: Any = None) -> Any:
        text = query if isinstance(query, str) else "COMMENT"
        if FIND in text and not self.content:
            return FakeCursor(None)
        if WRITE not in text and CREATE not in text:
            return await super().execute(text, parameters)
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, Late):
            self.content = self.content if failure.is_lost else parameters["content"]
            await asyncio.sleep(10)
        if failure is not None:
            self.broken = isinstance(failure, errors.AdminShutdown)
            raise failure
        if CREATE in text:
            self.content = parameters[0]
            return FakeCursor((16400,))
        is_former = parameters["former"] == self.content
        if is_former:
            self.content = parameters["content"]
        return Results([[("",)] if is_former else [], [("0/99",)]])


class Late(Exception):
    """No answer comes; it is carried out all the same, unless it is lost."""

    def __init__(self, *, is_lost: bool = False) -> None:
        self.is_lost = is_lost


class Results:
    """What a message of several statements gives."""

    description = "rows"

    def __init__(self, results: list[list[tuple[object, ...]]]) -> None:
        self._results = results

    async def results(self) -> Any:
        for rows in self._results:
            self._rows = rows
            yield self

    async def fetchall(self) -> list[tuple[object, ...]]:
        return self._rows


def store_on(session: Session) -> NoteStore:
    async def connect() -> AsyncConnection:
        return session.as_connection()

    return NoteStore(connect, "s", answer_s=0.05)


def at(lsn: int) -> SlotNote:
    return NOTE._replace(confirmed_lsn=lsn)


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (errors.LockNotAvailable("x"), NoteUnwritten),
        (errors.QueryCanceled("x"), NoteUnwritten),
        (errors.DeadlockDetected("x"), NoteUnwritten),
        (errors.InternalError_("tuple concurrently updated"), NoteUnwritten),
        (errors.ProgramLimitExceeded("not accepting commands that assign new XIDs"), NoteImpossible),
        (errors.DiskFull("x"), NoteImpossible),
        (errors.OutOfMemory("x"), NoteImpossible),
        (errors.UndefinedFunction("x"), NoteImpossible),
        (errors.InsufficientPrivilege("x"), NoteRefused),
        (errors.ReadOnlySqlTransaction("x"), NoteRefused),
        (errors.AdminShutdown("x"), LineLost),
        (psycopg.OperationalError("the connection is lost"), LineLost),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_what_an_answer_means(answer: psycopg.Error, meaning: type[PostgresError]) -> None:
    """As long as the session lives, so does the leadership."""
    session = Session(None, answer)
    store = store_on(session)
    await store.take_over(at(42))
    with pytest.raises(PostgresError) as raised:
        await store.write(at(43))
    assert type(raised.value) is meaning
    if meaning is not LineLost:
        assert session.asked[-1] == "ROLLBACK"
        await store.write(at(44))
        assert b'"0/2C"' in session.content


@pytest.mark.parametrize("answer", [errors.LockNotAvailable("x"), errors.DiskFull("x")])
async def test_a_note_that_can_only_be_read_is_known_all_the_same(answer: psycopg.Error) -> None:
    session = Session(None, answer, answer)
    await store_on(session).take_over(at(42))
    store = store_on(session)
    assert await store.claim() == at(42)
    with pytest.raises(NoteUnwritten):
        await store.take_over(at(43))
    await store.write(at(44))
    assert b'"0/2C"' in session.content


async def test_a_note_that_could_not_be_made_is_made_later() -> None:
    session = Session(errors.DiskFull("x"))
    store = store_on(session)
    assert await store.claim() is None
    with pytest.raises(NoteImpossible):
        await store.take_over(at(42))
    await store.write(at(43))
    assert b'"0/2B"' in session.content


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_write_that_was_given_up_may_come_after_all(is_lost: bool) -> None:
    """It is ours, and no other leader's."""
    session = Session(None, Late(is_lost=is_lost))
    store = store_on(session)
    await store.take_over(at(42))
    with pytest.raises(NoteUnwritten, match="no answer"):
        await store.write(at(43))
    assert session.closed
    if not is_lost:
        with pytest.raises(NoteUnwritten, match="came first"):
            await store.write(at(44))
    await store.write(at(45))
    assert b'"0/2D"' in session.content


async def test_before_the_stream_begins_no_answer_is_the_end_of_the_line() -> None:
    with pytest.raises(LineLost, match="no answer"):
        await store_on(Session(Late(is_lost=True))).take_over(at(42))


async def test_another_leaders_note_ends_the_leadership() -> None:
    session = Session()
    former, latter = store_on(session), store_on(session)
    await former.take_over(at(42))
    assert await latter.claim() == at(42)
    with pytest.raises(LockLost):
        await former.write(at(43))


async def test_a_note_that_another_leader_made_meanwhile_ends_the_leadership() -> None:
    session = Session(errors.DiskFull("x"))
    store = store_on(session)
    with pytest.raises(NoteImpossible):
        await store.take_over(at(42))
    await store_on(session).take_over(at(42))
    with pytest.raises(LockLost):
        await store.write(at(43))


async def test_no_room_for_another_session_is_no_end() -> None:
    session = Session(None, Late(is_lost=True))
    sessions: list[Session | Exception] = [session, ConnectionFailed("too many clients"), session]

    async def connect() -> AsyncConnection:
        found = sessions.pop(0)
        if isinstance(found, Exception):
            raise found
        return found.as_connection()

    store = NoteStore(connect, "s", answer_s=0.05)
    await store.take_over(at(42))
    for why in ("no answer", "too many clients"):
        with pytest.raises(NoteUnwritten, match=why):
            await store.write(at(43))
    await store.write(at(44))
    assert b'"0/2C"' in session.content
