"""The parts of a leadership: they begin together, the first failure ends all, and one error is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from psycopg.errors import AdminShutdown

from penstock.decoding.wal2json import Wal2Json
from penstock.errors import (
    DecodingFailed,
    LineLost,
    LineStale,
    LockLost,
    PenstockError,
    PostgresError,
    ProtocolViolation,
    SinkOutage,
    SynchronousStandby,
)
from penstock.postgres.leader import line as line_module
from penstock.postgres.leader.line import LeaderLine, Work
from penstock.settings.postgres import LeaderSettings, ReplicationSettings
from tests.fake_session import FakeSession


class Stream:
    """A stream of which only the end is of interest."""

    def __init__(self) -> None:
        self.words: PostgresError | None = None
        self.closed = False

    def last_words(self) -> PostgresError | None:
        assert not self.closed, "nothing can be read from a closed stream"
        return self.words

    def close(self) -> None:
        self.closed = True


class Leading:
    """A line in mid-leadership: two sessions and a stream."""

    def __init__(self, line: LeaderLine, sessions: list[FakeSession], stream: Stream) -> None:
        self.line = line
        self.sessions = sessions
        self.stream = stream

    @property
    def is_closed(self) -> bool:
        closed = [session.closed for session in self.sessions] + [self.stream.closed]
        assert len(set(closed)) == 1, "all or none"
        return closed[0]


@pytest.fixture
async def leading(monkeypatch: pytest.MonkeyPatch) -> Leading:
    sessions: list[FakeSession] = []
    stream = Stream()

    async def connect(*_: object, **__: object) -> FakeSession:
        sessions.append(FakeSession({"pg_try_advisory_lock": (True, 7, 3.5)}, pause=lambda _: None))
        return sessions[-1]

    class ReplicationStream:
        @staticmethod
        async def start(*_: object, **__: object) -> Stream:
            return stream

    monkeypatch.setattr(line_module, "connect", connect)
    monkeypatch.setattr(line_module, "connect_replication", connect)
    monkeypatch.setattr(line_module, "ReplicationStream", ReplicationStream)
    line = LeaderLine(ReplicationSettings(), LeaderSettings(), role="capture")
    assert await line.take_lock() is None
    await line.start_stream(Wal2Json(), {}, on_dropped=lambda _: None)
    await line.connect()
    return Leading(line, sessions, stream)


class Part:
    """Runs until it is cancelled, unless it is given an error; notes its end."""

    def __init__(self, leading: Leading, *, fails: Exception | None = None, at_end: Exception | None = None):
        self._leading = leading
        self._fails = fails
        self._at_end = at_end
        self.was_cancelled = False
        self.saw_closed = False

    async def run(self) -> None:
        try:
            if self._fails is not None:
                await asyncio.sleep(0)
                raise self._fails
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            self.saw_closed = self._leading.is_closed
            if self._at_end is not None:
                raise self._at_end from None
            raise


async def no_drain(reading: asyncio.Task[None]) -> None:
    pytest.fail("nothing to drain after a failure")


async def run(
    leading: Leading,
    reader: Part,
    others: Mapping[str, Part],
    *,
    until: Callable[[], Work] | None = None,
    drain: Callable[[asyncio.Task[None]], Any] = no_drain,
    settle: Callable[[], Awaitable[None]] | None = None,
) -> None:
    async with asyncio.timeout(5):
        await leading.line.run_together(
            reader.run(),
            {name: part.run() for name, part in others.items()},
            until=(until or forever)(),
            drain=drain,
            settle=settle,
        )


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("failing", ["reader", "publisher", "watchdog"])
async def test_the_first_failure_ends_all_with_connections_closed_before(
    leading: Leading, failing: str
) -> None:
    """A part that is cancelled must not wait for an answer on a dead line."""
    error = LineLost("cut")
    parts = {
        name: Part(leading, fails=error if name == failing else None)
        for name in ("reader", "publisher", "watchdog")
    }
    reader = parts["reader"]

    with pytest.raises(LineLost) as raised:
        await run(leading, reader, {name: part for name, part in parts.items() if part is not reader})

    assert raised.value is error
    for name, part in parts.items():
        if name != failing:
            assert part.was_cancelled
            assert part.saw_closed
    assert leading.is_closed


@pytest.mark.parametrize(
    ("error", "settles"),
    [
        (ProtocolViolation("a frame that we don't know"), True),
        (SinkOutage("nothing accepted"), True),
        (SynchronousStandby("commits would wait for us"), True),
        (KeyError("a bug"), True),
        (LineLost("cut"), False),
        (DecodingFailed("the walsender is gone"), False),
        (LineStale("nobody vouches"), False),
        (LockLost("another has it"), False),
        (ExceptionGroup("of a part's own parts", [LineStale("nobody vouches")]), False),
        (ExceptionGroup("of a part's own parts", [SinkOutage("nothing accepted")]), True),
        (AdminShutdown("the server stops"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_the_lock_is_kept_until_all_is_settled_unless_the_line_is_lost(
    leading: Leading, error: Exception, settles: bool
) -> None:
    """A standby that gets it at once would be overtaken by a request that is under way."""
    seen: list[object] = []
    watchdog = Part(leading)

    async def settle() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append((leading.is_closed, watchdog.was_cancelled))

    with pytest.raises(Exception):  # noqa: B017 - which one is told is another test's
        await run(leading, Part(leading, fails=error), {"watchdog": watchdog}, settle=settle)

    assert seen == ([(False, False)] * 3 if settles else [])
    assert leading.is_closed


async def test_a_line_that_is_lost_meanwhile_is_hung_up_at_once(leading: Leading) -> None:
    settling = asyncio.Event()

    async def settle() -> None:
        settling.set()
        await forever()

    async def watch() -> None:
        await settling.wait()
        raise LineLost("the server stops")

    with pytest.raises(KeyError):
        async with asyncio.timeout(5):
            await leading.line.run_together(
                Part(leading, fails=KeyError("a bug")).run(),
                {"watchdog": watch()},
                until=forever(),
                drain=no_drain,
                settle=settle,
            )
    assert leading.is_closed


@pytest.mark.parametrize(
    ("reader", "other", "told"),
    [
        pytest.param(LineLost("a"), LineLost("b"), "a", id="the first of ours"),
        pytest.param(LineLost("a"), LineStale("b"), "a", id="the first of ours, whatever its kind"),
        pytest.param(LineLost("a"), ValueError("b"), "b", id="a bug before ours"),
        pytest.param(ValueError("a"), LineLost("b"), "a", id="a bug, and ours that follows"),
        pytest.param(ValueError("a"), KeyError("b"), "a", id="the first bug"),
        pytest.param(
            ExceptionGroup("inner", [LineLost("a"), ValueError("deep")]),
            LineLost("b"),
            "deep",
            id="a bug inside a group",
        ),
        pytest.param(
            ExceptionGroup("inner", [LineLost("deep"), LineLost("c")]),
            LineLost("b"),
            "deep",
            id="the first of a group",
        ),
    ],
)
async def test_of_several_failures_the_most_telling_is_raised(
    leading: Leading, reader: Exception, other: Exception, told: str
) -> None:
    """The reader fails first; the other one as it is cancelled."""
    with pytest.raises(Exception) as raised:
        await run(leading, Part(leading, fails=reader), {"other": Part(leading, at_end=other)})
    assert raised.value.args == (told,)


@pytest.mark.parametrize("words", [DecodingFailed("invalid memory alloc request"), None])
async def test_a_lost_lock_is_explained_by_the_servers_last_words(
    leading: Leading, words: PostgresError | None
) -> None:
    """The walsender died of something, and a reader that pauses has not read of what."""
    leading.stream.words = words
    lost = LockLost("no longer")

    with pytest.raises(LineLost) as raised:
        await run(leading, Part(leading), {"watchdog": Part(leading, fails=lost)})

    assert raised.value is (words or lost)
    assert leading.is_closed


async def test_another_failure_tells_enough_itself(leading: Leading) -> None:
    leading.stream.words = DecodingFailed("invalid memory alloc request")
    with pytest.raises(LineStale):
        await run(leading, Part(leading), {"guard": Part(leading, fails=LineStale("nobody vouches"))})


async def test_a_stop_drains_while_the_others_go_on(leading: Leading) -> None:
    reader, publisher, watchdog = Part(leading), Part(leading), Part(leading)
    stop = asyncio.Event()
    seen: list[object] = []

    async def until() -> None:
        await stop.wait()

    async def drain(reading: asyncio.Task[None]) -> None:
        seen.append(reading.get_name())
        reading.cancel()
        await asyncio.wait([reading])
        await asyncio.sleep(0)
        seen.append((reader.was_cancelled, publisher.was_cancelled, watchdog.was_cancelled))
        seen.append(leading.is_closed)

    running = asyncio.create_task(
        run(leading, reader, {"publisher": publisher, "watchdog": watchdog}, until=until, drain=drain)
    )
    for _ in range(5):
        await asyncio.sleep(0)
    assert seen == []
    stop.set()
    await running

    assert seen == ["reader", (True, False, False), False]
    assert publisher.was_cancelled
    assert watchdog.was_cancelled
    assert not leading.is_closed, "the last status may still be on its way; `open` closes"


async def nothing() -> None:
    pass


async def test_a_failure_while_draining_ends_the_drain(leading: Leading) -> None:
    fail_now, drained = asyncio.Event(), False

    async def watch() -> None:
        await fail_now.wait()
        raise LockLost("another leads")

    async def drain(_: asyncio.Task[None]) -> None:
        nonlocal drained
        fail_now.set()
        await forever()
        drained = True

    with pytest.raises(LockLost):
        async with asyncio.timeout(5):
            await leading.line.run_together(
                Part(leading).run(), {"watchdog": watch()}, until=nothing(), drain=drain
            )
    assert not drained
    assert leading.is_closed


async def test_a_drain_that_fails_is_told_and_ends_all(leading: Leading) -> None:
    reader, publisher = Part(leading), Part(leading)

    async def drain(_: asyncio.Task[None]) -> None:
        await asyncio.sleep(0)
        raise PenstockError("no time left")

    with pytest.raises(PenstockError, match="no time left"):
        await run(leading, reader, {"publisher": publisher}, until=nothing, drain=drain)
    assert reader.was_cancelled
    assert publisher.was_cancelled


async def test_a_failure_of_what_ends_it_is_a_failure(leading: Leading) -> None:
    async def until() -> None:
        raise PenstockError("a shape is stalled")

    with pytest.raises(PenstockError, match="stalled"):
        await run(leading, Part(leading), {}, until=until)
    assert leading.is_closed


async def test_who_cancels_the_leadership_cancels_its_parts(leading: Leading) -> None:
    reader, publisher = Part(leading), Part(leading)
    running = asyncio.create_task(run(leading, reader, {"publisher": publisher}))
    for _ in range(5):
        await asyncio.sleep(0)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert reader.was_cancelled
    assert publisher.was_cancelled
