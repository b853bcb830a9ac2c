"""The leader's line: competing, starting the stream, its last word; everything closed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Any

import psycopg
import pytest
from psycopg import errors
from structlog.testing import capture_logs

from penstock.decoding.wal2json import Wal2Json
from penstock.errors import (
    LineLost,
    LockLost,
    PluginForbidden,
    PluginOptionRefused,
    SlotBusy,
    SlotInvalid,
    SlotMoved,
    SynchronousStandby,
    WalLevelTooLow,
)
from penstock.postgres.leader import line as line_module
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.line import UNREAD_S, AnotherLeads, LeaderLine
from penstock.postgres.leader.lock import LockHolder, Session
from penstock.settings.postgres import LeaderSettings, ReplicationSettings
from penstock.settings.timings import Timings
from tests.fake_session import Answer, FakeSession

PID = 4711
TRY, HOLDER, SLOT = "pg_try_advisory_lock", "pg_locks", "pg_replication_slots WHERE slot_name"
IDLE = ("logical", "wal2json", "db", False, None, "0/100", "0/50", "reserved", None, "db", 10)
READ = (*IDLE[:4], 99, *IDLE[5:])
MADE = (*IDLE[:5], None, *IDLE[6:])
"""A slot that is still being made."""


class Clock:
    """Stands in for the module `time`, and for `awake_or_asleep`."""

    def __init__(self) -> None:
        self.now = 500.0

    def monotonic(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class Server:
    """Gives sessions that answer alike, and streams as the test has put them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.answers: dict[str, Answer | list[Answer]] = {
            TRY: (True, PID, 3.5),
            HOLDER: (PID, "penstock capture s", "s"),
            SLOT: IDLE,
            "SELECT 1": (1,),
        }
        self.sessions: list[FakeSession] = []
        self.starts: list[Any] = []
        self.start_takes_s = 0.0

    async def connect(self, *_: object, **__: object) -> FakeSession:
        self.sessions.append(FakeSession(self.answers, pause=self.clock.pass_by))
        return self.sessions[-1]

    async def start(self, *_: object, **__: object) -> Any:
        self.clock.pass_by(self.start_takes_s)
        start = self.starts.pop(0) if len(self.starts) > 1 else self.starts[0]
        if isinstance(start, Exception):
            raise start
        return start


class Stream:
    """Frames as the test has put them; then the line is lost."""

    def __init__(self, *reads: list[memoryview]) -> None:
        self.reads = list(reads)
        self.closed = False

    async def read(self) -> list[memoryview]:
        await asyncio.sleep(0)  # as the real one does
        if not self.reads:
            raise LineLost("cut")
        return self.reads.pop(0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    clock = Clock()
    made = Server(clock)
    monkeypatch.setattr(line_module, "connect", made.connect)
    monkeypatch.setattr(line_module, "connect_replication", made.connect)
    monkeypatch.setattr(line_module, "ReplicationStream", made)
    monkeypatch.setattr(line_module, "time", clock)
    monkeypatch.setattr(line_module, "awake_or_asleep", clock.monotonic)
    monkeypatch.setattr(line_module, "_BUSY_RETRY_S", 0.0)
    return made


@pytest.fixture
def line(server: Server) -> LeaderLine:
    replication = ReplicationSettings.model_validate({"REPLICATION_SLOT": "s"})
    return LeaderLine(replication, LeaderSettings(), role="capture")


def keepalive(server_time_s: float) -> memoryview:
    since_2000 = int((server_time_s - 946_684_800) * 1_000_000)
    return memoryview(struct.pack("!cqqB", b"k", 1, since_2000, 0))


@pytest.mark.parametrize(
    ("holder", "slot", "expected"),
    [
        ((8, "a", "s"), READ, AnotherLeads(LockHolder(8, "a", "s"), "s", True, 0x100)),
        ((8, "a", None), IDLE, AnotherLeads(LockHolder(8, "a", None), "s", False, 0x100)),
        ((8, "a", None), MADE, AnotherLeads(LockHolder(8, "a", None), "s", False)),
        ((8, None, None), None, AnotherLeads(LockHolder(8, None, None), "s", slot_is_read=False)),
        (None, READ, AnotherLeads(None, "s", True, 0x100)),
    ],
)
async def test_who_loses_learns_who_leads_and_whether_the_slot_is_read(
    line: LeaderLine, server: Server, holder: Answer, slot: Answer, expected: AnotherLeads
) -> None:
    server.answers |= {TRY: (False, PID), HOLDER: holder, SLOT: slot}
    assert await line.take_lock() == expected
    assert line.held is None


async def test_who_wins_asks_nobody_who_leads(line: LeaderLine, server: Server) -> None:
    assert await line.take_lock() is None
    assert server.sessions[0].asked == [TRY]
    assert line.held == Session(PID, 3.5)


async def test_a_lock_that_is_freed_between_two_questions_is_tried_again(
    line: LeaderLine, server: Server
) -> None:
    server.answers |= {TRY: [(False, PID, 3.5), (True, PID, 3.5)], HOLDER: None}
    assert await line.take_lock() is None
    assert server.sessions[0].asked == [TRY, HOLDER, TRY]


LOST = (*IDLE[:7], "lost", *IDLE[8:])
SERVER, SYNCHRONOUS = "wal_level", "synchronous_standby_names"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, None),
        ({SLOT: None}, None),
        ({SLOT: LOST}, SlotInvalid),
        ({SERVER: ("replica", None)}, WalLevelTooLow),
        ({SERVER: ("logical", "pgoutput, test_decoding")}, PluginForbidden),
        ({SYNCHRONOUS: ("*", "penstock capture s")}, SynchronousStandby),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
async def test_a_look_finds_what_would_stop_a_leader_and_takes_nothing(
    line: LeaderLine, server: Server, answers: dict[str, Answer], expected: type[Exception] | None
) -> None:
    server.answers |= {SERVER: ("logical", None), SYNCHRONOUS: ("", "penstock capture s"), **answers}
    with contextlib.nullcontext() if expected is None else pytest.raises(expected):
        await line.look()
    (session,) = server.sessions
    assert session.closed
    assert set(session.asked) <= {SERVER, SYNCHRONOUS, SLOT}


async def test_who_reads_no_slot_looks_at_none(server: Server) -> None:
    server.answers[SLOT] = LOST
    line = LeaderLine(
        ReplicationSettings.model_validate({"REPLICATION_SLOT": "s"}),
        LeaderSettings(),
        role="shapes",
        reads_slot=False,
    )
    await line.look()
    assert server.sessions[0].asked == []


@pytest.mark.parametrize(
    ("reads", "unread_s", "says"),
    [
        ("mine", 0.0, None),
        ("mine", UNREAD_S, None),
        (None, UNREAD_S, None),
        (None, UNREAD_S + 1, "nobody has read slot 'mine' for 61 s"),
        ("mine", UNREAD_S + 1, "nobody has read slot 'mine' for 61 s"),
        ("other", 0.0, "reads slot 'other', not 'mine'"),
        ("other", UNREAD_S + 1, "reads slot 'other', not 'mine'"),
    ],
)
def test_when_standing_by_is_no_use(reads: str | None, unread_s: float, says: str | None) -> None:
    trouble = AnotherLeads(LockHolder(8, "a", reads), "mine", slot_is_read=False).trouble(unread_s=unread_s)
    if says is None:
        assert trouble is None
    else:
        assert trouble is not None
        assert says in trouble
        assert "Fix: " in trouble


def test_a_holder_that_went_away_is_somebody() -> None:
    gone = AnotherLeads(None, "s", slot_is_read=False)
    assert gone.description == "somebody"
    assert "though somebody holds its lock" in (gone.trouble(unread_s=UNREAD_S + 1) or "")


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (None, None),
        (errors.AdminShutdown("terminating\nDETAIL: more"), LineLost),
        (psycopg.OperationalError("cut"), LineLost),
        (LockLost("lost"), LockLost),
        (KeyError("bug"), KeyError),
    ],
)
async def test_whatever_happens_inside_every_connection_is_closed(
    line: LeaderLine, server: Server, inside: Exception | None, expected: type[Exception] | None
) -> None:
    stream = Stream()
    server.starts = [stream]

    async def lead() -> None:
        async with line.open():
            await line.take_lock()
            await line.start_stream(Wal2Json(), {}, on_dropped=lambda _: None)
            await line.connect()
            if inside is not None:
                raise inside

    if expected is None:
        await lead()
    else:
        with pytest.raises(expected) as raised:
            await lead()
        assert type(raised.value) is expected
        assert "\n" not in str(raised.value)
    assert [session.closed for session in server.sessions] == [True, True]
    assert stream.closed


async def test_a_slot_that_is_busy_for_a_moment_is_tried_again(line: LeaderLine, server: Server) -> None:
    stream = Stream()
    server.starts = [SlotBusy("active"), SlotBusy("active"), stream]
    server.start_takes_s = 1.0
    await line.take_lock()
    started: object = await line.start_stream(Wal2Json(), {}, on_dropped=lambda _: None)
    assert started is stream


async def test_a_slot_that_stays_busy_is_told_after_the_leaders_timeout(
    line: LeaderLine, server: Server
) -> None:
    """By then the server has ended the walsender of a former leader that is silent."""
    server.starts = [SlotBusy("active")]
    server.start_takes_s = 1.0
    began_at = server.clock.now
    await line.take_lock()
    with pytest.raises(SlotBusy):
        await line.start_stream(Wal2Json(), {}, on_dropped=lambda _: None)
    assert server.clock.now - began_at == line.timings.timeout_s


async def test_only_the_start_that_succeeds_leaves_its_ear(line: LeaderLine, server: Server) -> None:
    """A start may be refused and tried again with other options: a notice must not be heard twice."""
    server.starts = [PluginOptionRefused("unknown option"), Stream()]
    await line.take_lock()
    with pytest.raises(PluginOptionRefused):
        await line.start_stream(Wal2Json(), {"a": "b"}, on_dropped=lambda _: None)
    assert server.sessions[0].notice_handlers == []

    await line.start_stream(Wal2Json(), {}, on_dropped=lambda _: None)
    assert len(server.sessions[0].notice_handlers) == 1


async def test_a_line_is_vouched_for_from_before_the_question(line: LeaderLine, server: Server) -> None:
    await line.take_lock()
    began_at = server.clock.now

    def slow() -> tuple[object, ...]:
        server.clock.pass_by(100.0)
        return (PID, "us", "s")

    server.answers[HOLDER] = slow
    freshness, _ = await line.vouch()
    assert freshness.age_s(server.clock.now) == server.clock.now - began_at
    assert not freshness.is_fresh(server.clock.now)


@pytest.mark.parametrize("holder", [None, (PID + 1, "another", "s")])
async def test_nobody_leads_whose_lock_another_session_does_not_see(
    line: LeaderLine, server: Server, holder: Answer
) -> None:
    await line.take_lock()
    server.answers[HOLDER] = holder
    with pytest.raises(LockLost, match=str(PID)):
        await line.vouch()


SERVER_IS_WELL: dict[str, Answer | list[Answer]] = {
    SERVER: ("logical", None),
    SYNCHRONOUS: ("", "penstock capture s"),
}
MOVED = (*IDLE[:5], "0/900", *IDLE[6:])


class TestSlotMovedMeanwhile:
    """Somebody without the lock reads the slot while we wait for it, and confirms."""

    @pytest.fixture(autouse=True)
    def _well(self, server: Server) -> None:
        server.answers |= SERVER_IS_WELL
        server.starts = [SlotBusy("active"), Stream()]

    async def start(self, line: LeaderLine) -> None:
        await line.start_stream(Wal2Json(), {}, on_dropped=lambda _: None)
        await line.vouch()

    async def test_nobody_leads_from_where_the_slot_was(self, line: LeaderLine, server: Server) -> None:
        server.answers[SLOT] = [IDLE, MOVED]
        await line.take_lock()
        await line.ensure_slot()
        with pytest.raises(SlotMoved, match="'s' was moved from 0/100 to 0/900"):
            await self.start(line)

    async def test_what_was_read_first_counts(self, line: LeaderLine, server: Server) -> None:
        """Shapes decide on an early look, and prepare for long before they make sure of the slot."""
        server.answers[SLOT] = [IDLE, MOVED, MOVED]
        await line.take_lock()
        await line.read_slot()
        await line.ensure_slot()
        with pytest.raises(SlotMoved):
            await self.start(line)

    @pytest.mark.parametrize("looks", [[IDLE, READ], [None, IDLE, READ]], ids=["found", "made"])
    async def test_one_that_stands_where_it_was_is_led_from(
        self, line: LeaderLine, server: Server, looks: list[Answer]
    ) -> None:
        server.answers |= {"backend_xid": (0,), "pg_create_logical": ("0/100",)}
        server.answers[SLOT] = looks
        await line.take_lock()
        await line.ensure_slot()
        await self.start(line)
        assert server.sessions[1].asked == [HOLDER, SLOT], "a session in COPY can't be asked"


class TestKeptAwake:
    """Something else is done before the stream begins, and the server would end an idle session."""

    @pytest.fixture(autouse=True)
    def _soon(self, line: LeaderLine) -> None:
        line.timings = Timings.of(0.004)

    async def test_the_session_is_used_until_it_is_done(self, line: LeaderLine, server: Server) -> None:
        await line.take_lock()
        used_three_times = asyncio.Event()

        def third() -> tuple[object, ...]:
            used_three_times.set()
            return (1,)

        server.answers["SELECT 1"] = [(1,), (1,), third, (1,)]

        async def work() -> str:
            await used_three_times.wait()
            return "done"

        async with asyncio.timeout(5):
            assert await line.kept_awake(work()) == "done"

    async def test_its_error_is_raised(self, line: LeaderLine) -> None:
        await line.take_lock()

        async def work() -> None:
            raise KeyError("bug")

        with pytest.raises(KeyError):
            await line.kept_awake(work())

    async def test_it_ends_with_the_session(self, line: LeaderLine, server: Server) -> None:
        cancelled = asyncio.Event()
        await line.take_lock()
        server.answers["SELECT 1"] = errors.AdminShutdown("terminating")

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        with pytest.raises(errors.AdminShutdown):
            await line.kept_awake(work())
        async with asyncio.timeout(5):
            await cancelled.wait()


@pytest.mark.parametrize(
    ("server_times_s", "within_s", "answered"),
    [
        pytest.param([-1.0, 0.5], 5.0, True, id="a frame that was sent after it"),
        pytest.param([-1.0, -0.5], 5.0, False, id="the line is lost before"),
        pytest.param([], 5.0, False, id="the line is lost at once"),
        pytest.param([0.5], 0.0, False, id="no time is left"),
    ],
)
async def test_the_last_status_is_seen_answered(
    line: LeaderLine, server: Server, server_times_s: list[float], within_s: float, answered: bool
) -> None:
    """The server's clock is an hour ahead; frames of before the last word answer nothing."""
    ahead_s, now = 3600.0, server.clock.now
    server_epoch_s = 1_800_000_000.0
    freshness = Freshness(limit_s=3.0, now=now)
    freshness.frame_sent(server_epoch_s + ahead_s - 10.0, now=now - 10.0)
    stream = Stream(*([keepalive(server_epoch_s + ahead_s + time_s)] for time_s in server_times_s))
    server.starts = [stream]
    await line.take_lock()
    await line.start_stream(Wal2Json(), {}, on_dropped=lambda _: None)
    sent: list[int] = []

    with capture_logs() as said:
        await line.last_word(lambda: sent.append(len(stream.reads)), freshness, within_s=within_s)

    assert sent == [len(server_times_s)], "it is sent once, before anything is read"
    assert [entry["event"] for entry in said] == ([] if answered else ["last_status_unanswered"])
