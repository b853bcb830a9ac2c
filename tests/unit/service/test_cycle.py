"""The leader cycle: when it tries again, what it says meanwhile, and what a stop does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from penstock.errors import (
    ConnectionFailed,
    DecodingFailed,
    KeyRecovered,
    LineLost,
    LockLingers,
    NeedsOperator,
    PenstockError,
    ProtocolViolation,
    SinkOutage,
    SlotBusy,
    SlotInvalid,
)
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.line import UNREAD_S, AnotherLeads
from penstock.postgres.leader.lock import LockHolder, Session
from penstock.service import cycle as cycle_module
from penstock.service.cycle import LeaderCycle
from penstock.service.retry_policy import QUICK_RETRY_S, SLOW_RETRY_S
from penstock.status.health import Fault, Health, Phase

STANDBY_S = 5.0
ANOTHER = AnotherLeads(LockHolder(7, "penstock capture s", reads_slot="s"), slot="s", slot_is_read=True)


class Clock:
    """Stands in for the module `time`; goes on only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Cycle(LeaderCycle):
    """Notes how long it would have waited, and lets that time pass."""

    def __init__(self, health: Health, clock: Clock) -> None:
        super().__init__(health, standby_retry_interval_s=STANDBY_S)
        self.clock = clock
        self.pauses: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.now += seconds


class Attempt:
    """A leadership that does what it is given."""

    def __init__(
        self,
        work: Callable[[], Awaitable[AnotherLeads | None]],
        *,
        has_led: bool = False,
        confirmed_lsn: int = 0,
        held: Session | None = None,
    ) -> None:
        self._work = work
        self.held = held
        self.has_led = has_led
        self.confirmed_lsn = confirmed_lsn
        self.cancelled = False

    async def run(self) -> AnotherLeads | None:
        try:
            return await self._work()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(cycle_module, "time", made)
    return made


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
async def cycle(health: Health, clock: Clock) -> Cycle:
    return Cycle(health, clock)


async def fail(cycle: Cycle, error: Exception, *, led_s: float = 0.0, confirmed_lsn: int = 0) -> None:
    """A leadership lasts so long, confirms this and ends with the error; then the cycle recovers.

    One that never led has taken its time as well: a server that is away lets connections time out.
    """

    async def work() -> None:
        cycle.clock.now += led_s or 5.0
        raise error

    with pytest.raises(type(error)):
        await cycle.attempt(Attempt(work, has_led=led_s > 0, confirmed_lsn=confirmed_lsn))
    await cycle.recover(error)


async def forever() -> None:
    await asyncio.Event().wait()


# A stop


@pytest.mark.parametrize("phase", sorted(set(Phase) - {Phase.STREAMING, Phase.DRAINING}))
async def test_a_stop_before_streaming_cancels(cycle: Cycle, health: Health, phase: Phase) -> None:
    health.enter(phase)
    leadership = Attempt(forever)
    cycle.stop.set()

    assert await cycle.attempt(leadership) is None
    assert leadership.cancelled


@pytest.mark.parametrize("phase", [Phase.STREAMING, Phase.DRAINING])
async def test_a_stop_while_streaming_waits_for_the_leadership(
    cycle: Cycle, health: Health, phase: Phase
) -> None:
    drained = asyncio.Event()
    health.enter(phase)

    async def work() -> None:
        await drained.wait()

    leadership = Attempt(work)
    cycle.stop.set()
    attempt = asyncio.create_task(cycle.attempt(leadership))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not attempt.done()

    drained.set()
    assert await attempt is None
    assert not leadership.cancelled


async def test_an_error_while_draining_is_raised(cycle: Cycle, health: Health) -> None:
    health.enter(Phase.DRAINING)
    cycle.stop.set()

    async def work() -> None:
        await asyncio.sleep(0)
        raise LineLost("cut")

    with pytest.raises(LineLost):
        await cycle.attempt(Attempt(work))


async def test_an_attempt_tells_who_leads(cycle: Cycle) -> None:
    async def work() -> AnotherLeads:
        return ANOTHER

    assert await cycle.attempt(Attempt(work)) == ANOTHER


async def test_a_stop_ends_a_pause(health: Health) -> None:
    cycle = LeaderCycle(health, standby_retry_interval_s=STANDBY_S)
    pausing = asyncio.create_task(cycle.pause(3600))
    await asyncio.sleep(0)
    assert not pausing.done()

    cycle.stop.set()
    async with asyncio.timeout(5):
        await pausing


async def test_what_may_hang_is_left_behind_when_a_stop_comes(cycle: Cycle) -> None:
    cancelled = asyncio.Event()

    async def hang() -> int:
        try:
            await forever()
        finally:
            cancelled.set()
        return 1

    async def answer() -> int:
        return 2

    waiting = asyncio.create_task(cycle.unless_stopped(hang()))
    await asyncio.sleep(0)
    assert not waiting.done()
    cycle.stop.set()

    assert await waiting is None
    async with asyncio.timeout(5):
        await cancelled.wait()
    cycle.stop.clear()
    assert await cycle.unless_stopped(answer()) == 2


async def test_the_error_of_what_may_hang_is_raised(cycle: Cycle) -> None:
    async def refuse() -> None:
        raise ConnectionFailed("refused")

    with pytest.raises(ConnectionFailed):
        await cycle.unless_stopped(refuse())


async def test_grace_begins_with_the_stop(cycle: Cycle) -> None:
    serving = asyncio.create_task(forever())
    waiting = asyncio.create_task(cycle.ends_in_time(serving, grace_s=0.0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done(), "no stop, no grace to count"

    cycle.stop.set()
    assert not await waiting
    serving.cancel()


async def test_a_loop_that_ends_by_itself_ends_in_time(cycle: Cycle) -> None:
    async def serve() -> None:
        await asyncio.sleep(0)

    assert await cycle.ends_in_time(asyncio.create_task(serve()), grace_s=0.0)
    assert not cycle.stop.is_set()


# How soon to try again


@pytest.mark.parametrize(
    ("error", "expected_s", "level"),
    [
        (ConnectionFailed("x"), 0.25, "warning"),
        (LineLost("x"), 0.25, "warning"),
        (KeyRecovered("x"), 0.25, "warning"),
        (SlotBusy("x"), 0.25, "error"),
        (DecodingFailed("x"), 0.25, "error"),
        (ProtocolViolation("x"), 0.25, "error"),
        (PenstockError("x"), 0.25, "error"),
        (KeyError("x"), 0.25, "error"),
        (NeedsOperator("x"), SLOW_RETRY_S, "error"),
        (SlotInvalid("x"), SLOW_RETRY_S, "error"),
        (SinkOutage("x"), STANDBY_S, "error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_each_error_has_its_pace_and_its_level(
    cycle: Cycle, error: Exception, expected_s: float, level: str
) -> None:
    with capture_logs() as said:
        await cycle.recover(error)

    assert cycle.pauses == [expected_s]
    assert [(line["event"], line["log_level"]) for line in said] == [(type(error).__name__, level)]


async def test_failures_in_a_row_are_retried_later_and_later(cycle: Cycle) -> None:
    for _ in range(7):
        await fail(cycle, ConnectionFailed("refused"))
    assert cycle.pauses == [0.25, 0.5, 1.0, 2.0, QUICK_RETRY_S, QUICK_RETRY_S, QUICK_RETRY_S]


async def test_an_attempt_that_ends_well_makes_the_next_failure_the_first(cycle: Cycle) -> None:
    async def work() -> AnotherLeads:
        return ANOTHER

    for _ in range(4):
        await fail(cycle, ConnectionFailed("refused"))
    await cycle.attempt(Attempt(work))
    await fail(cycle, ConnectionFailed("refused"))

    assert cycle.pauses[-1] == 0.25


async def test_another_leader_that_gets_no_further_leaves_it_stuck(cycle: Cycle) -> None:
    async def work() -> AnotherLeads:
        return ANOTHER._replace(confirmed_lsn=7)

    for _ in range(3):
        await fail(cycle, DecodingFailed("can't decode"), led_s=0.5, confirmed_lsn=7)
        await cycle.attempt(Attempt(work))

    assert cycle.pauses == [0.25, 0.25, SLOW_RETRY_S]


class Looks:
    """Looks at a server that is found as told; the last finding stays."""

    def __init__(self, *findings: Exception | None) -> None:
        self.findings = list(findings)

    async def __call__(self) -> None:
        finding = self.findings.pop(0) if len(self.findings) > 1 else self.findings[0]
        if finding is not None:
            raise finding


@pytest.mark.parametrize(
    ("findings", "looks"),
    [
        pytest.param([SlotInvalid("lost"), SlotInvalid("lost"), None], 2, id="mended"),
        pytest.param([SlotInvalid("lost"), ConnectionFailed("refused")], 1, id="otherwise"),
        pytest.param([KeyError("a bug"), None], 1, id="a look that fails"),
        pytest.param([SlotInvalid("lost")], SLOW_RETRY_S / QUICK_RETRY_S, id="never mended"),
        pytest.param([None], SLOW_RETRY_S / QUICK_RETRY_S, id="not to be seen"),
    ],
)
async def test_what_an_operator_mends_is_met_at_the_next_look(
    cycle: Cycle, findings: list[Exception | None], looks: float
) -> None:
    with capture_logs() as said:
        await cycle.recover(SlotInvalid("lost"), look=Looks(*findings))

    assert cycle.pauses == [QUICK_RETRY_S] * int(looks)
    assert [line["event"] for line in said] == ["SlotInvalid"], "looks say nothing"


async def test_only_what_needs_an_operator_is_looked_for(cycle: Cycle) -> None:
    await cycle.recover(LineLost("cut"), look=Looks(AssertionError("it is tried at once")))
    assert cycle.pauses == [0.25]


async def test_a_stop_ends_the_looks(cycle: Cycle) -> None:
    cycle.stop.set()
    await cycle.recover(SlotInvalid("lost"), look=forever)
    assert cycle.pauses == []


@pytest.mark.parametrize(("at_once", "pauses"), [(False, []), (True, [STANDBY_S])])
async def test_a_sink_that_answers_at_once_and_took_nothing_is_left_to_another_first(
    cycle: Cycle, health: Health, at_once: bool, pauses: list[float]
) -> None:
    reasons: list[list[str]] = []

    async def wait_for_sink() -> bool:
        reasons.append(health.readiness(cycle.clock.now).reasons)
        health.clear_fault(Fault.SINK)
        return at_once

    await cycle.recover(SinkOutage("nothing accepted"), wait_for_sink=wait_for_sink)

    assert cycle.pauses == pauses
    assert reasons == [["sink: nothing accepted", "phase is waiting"]], "it is said before the sink answers"
    assert health.readiness(cycle.clock.now).reasons == ["phase is waiting"]


async def test_another_error_does_not_wait_for_the_sink(cycle: Cycle) -> None:
    async def wait_for_sink() -> bool:
        pytest.fail("the sink has nothing to do with it")

    await cycle.recover(LineLost("cut"), wait_for_sink=wait_for_sink)


# What people are told


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (LineLost("the line was cut"), "postgres: the line was cut"),
        (SlotInvalid("the slot is lost"), "postgres: the slot is lost"),
        (PenstockError("the log is broken"), "service: the log is broken"),
        (ValueError("row value 4711"), "service: ValueError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_a_failure_is_a_fault_until_the_next_stream(
    cycle: Cycle, health: Health, error: Exception, fault: str
) -> None:
    """The text of an error that isn't ours may hold a row's values: only its kind is shown."""
    await cycle.recover(error)
    assert health.readiness(cycle.clock.now).reasons == [fault, "phase is waiting"]

    health.start_streaming(Freshness(limit_s=3.0, now=cycle.clock.now), cycle.clock.now)
    assert health.readiness(cycle.clock.now).ready


async def test_a_new_failure_takes_the_place_of_the_former_one(cycle: Cycle, health: Health) -> None:
    await cycle.recover(PenstockError("the log is broken"))
    await cycle.recover(LineLost("cut"))
    assert health.readiness(cycle.clock.now).reasons == ["postgres: cut", "phase is waiting"]


async def test_the_stream_that_fails_at_one_place_needs_a_person(cycle: Cycle, health: Health) -> None:
    with capture_logs() as said:
        for _ in range(4):
            await fail(cycle, DecodingFailed("can't decode"), led_s=0.5, confirmed_lsn=0x1_0000_0002)

    assert cycle.pauses[2:] == [SLOW_RETRY_S, SLOW_RETRY_S]
    assert cycle.pauses[0] == 0.25
    (reason, _) = health.readiness(cycle.clock.now).reasons
    assert "always behind 1/2: it needs a person" in reason
    assert f"every {SLOW_RETRY_S:.0f} s" in reason
    assert [line["log_level"] for line in said][-1] == "error"
    assert "it needs a person" in said[-1]["detail"]


async def test_one_short_leadership_that_failed_leaves_no_doubt(cycle: Cycle, health: Health) -> None:
    await fail(cycle, LineLost("cut"), led_s=3.0)

    now = cycle.clock.now
    health.start_streaming(Freshness(limit_s=3.0, now=now), now)
    assert health.readiness(now).ready


async def test_leaderships_that_fail_one_after_the_other_are_doubted(cycle: Cycle, health: Health) -> None:
    for led_s in (3.0, 20.0, 1.0):
        await fail(cycle, LineLost("cut"), led_s=led_s)

    now = cycle.clock.now
    health.start_streaming(Freshness(limit_s=3.0, now=now), now)

    (reason,) = health.readiness(now).reasons
    assert reason == "3 leaderships in a row ended without headway, the last with: cut"


async def test_doubt_ends_when_a_leadership_outlasts_the_longest_that_failed(
    cycle: Cycle, health: Health
) -> None:
    health.note_frontier(7, 0, cycle.clock.now)
    for led_s in (3.0, 20.0, 1.0):
        await fail(cycle, LineLost("cut"), led_s=led_s)
    began_at = cycle.clock.now
    health.start_streaming(Freshness(limit_s=100.0, now=began_at), began_at)

    answers = []
    for lasted_s in (0.0, 21.0, 29.9, 30.0):
        health.note_frontier(7, 0, began_at + lasted_s)
        answers.append(health.readiness(began_at + lasted_s).ready)
    assert answers == [False, False, False, True]


async def test_attempts_that_never_led_are_not_doubted(cycle: Cycle, health: Health) -> None:
    """A server that was away and is back is simply well."""
    for _ in range(5):
        await fail(cycle, ConnectionFailed("refused"))
    now = cycle.clock.now
    health.start_streaming(Freshness(limit_s=3.0, now=now), now)
    assert health.readiness(now).ready


async def test_in_another_history_a_lower_position_is_headway(cycle: Cycle) -> None:
    for _ in range(3):
        await fail(cycle, LineLost("cut"), led_s=1.0, confirmed_lsn=900)
    await fail(cycle, LineLost("cut"), led_s=1.0, confirmed_lsn=100)
    assert cycle.pauses == [0.25, 0.5, 1.0, 2.0]

    cycle.forget_positions()
    await fail(cycle, LineLost("cut"), led_s=1.0, confirmed_lsn=100)
    assert cycle.pauses[-1] == 0.25


async def test_what_one_attempt_confirmed_is_not_counted_for_the_next(cycle: Cycle) -> None:
    """An error outside an attempt (of the outer loop) has led nothing."""
    for _ in range(2):
        await fail(cycle, DecodingFailed("x"), led_s=1.0, confirmed_lsn=7)
    for _ in range(3):
        await cycle.recover(DecodingFailed("x"))
    assert SLOW_RETRY_S not in cycle.pauses


# Standing by


async def test_a_standby_is_ready_and_says_who_leads(cycle: Cycle, health: Health) -> None:
    await cycle.recover(LineLost("cut"))
    with capture_logs() as said:
        await cycle.stand_by(ANOTHER)

    assert health.readiness(cycle.clock.now) == (True, Phase.STANDBY, [])
    assert cycle.pauses[-1] == STANDBY_S
    assert [(line["event"], line["detail"]) for line in said] == [
        ("standby", "penstock capture s, pid 7, leads")
    ]


OURS = Session(7, 100.5)
LINGERING = ANOTHER._replace(holder=LockHolder(7, "penstock capture s", "s", began_at=100.5))


@pytest.mark.parametrize("in_between", [0, 1, 3])
async def test_nobody_stands_by_for_a_former_session_of_his_own(
    cycle: Cycle, health: Health, in_between: int
) -> None:
    """What ailed the leader isn't over, and its failures are still in a row."""

    async def lead() -> None:
        cycle.clock.now += 2.0
        raise LineLost("cut")

    async def compete() -> AnotherLeads:
        return LINGERING

    health.set_fault(Fault.STREAM, "AccessDenied")
    for failures in (1, 2):
        with pytest.raises(LineLost):
            await cycle.attempt(Attempt(lead, has_led=True, held=OURS))
        await cycle.recover(LineLost("cut"))
        for _ in range(in_between):
            with pytest.raises(LockLingers, match="pid 7, still holds the lock") as lingers:
                await cycle.attempt(Attempt(compete))
            await cycle.recover(lingers.value)
            assert health.readiness(cycle.clock.now).ready is False
            assert health.phase is Phase.WAITING
        health.start_streaming(Freshness(limit_s=9, now=cycle.clock.now), cycle.clock.now)
        reasons = health.readiness(cycle.clock.now).reasons
        assert reasons[0] == "stream: AccessDenied"
        assert [reason for reason in reasons if " in a row " in reason] == reasons[1:]
        assert len(reasons) == failures
    assert max(cycle.pauses) <= QUICK_RETRY_S


@pytest.mark.parametrize("holder", [None, (8, 100.5), (7, 100.75), (7, None)])
async def test_whoever_has_its_pid_only_or_nothing_in_common_is_another(
    cycle: Cycle, holder: tuple[int, float | None] | None
) -> None:
    other = None if holder is None else LockHolder(holder[0], "a", "s", began_at=holder[1])

    async def lead() -> None:
        return None

    async def compete() -> AnotherLeads:
        return LINGERING._replace(holder=other)

    await cycle.attempt(Attempt(lead, has_led=True, held=OURS))
    assert await cycle.attempt(Attempt(compete)) == LINGERING._replace(holder=other)


async def test_a_lock_whose_slot_nobody_reads_is_trouble_after_a_while(cycle: Cycle, health: Health) -> None:
    unread = ANOTHER._replace(slot_is_read=False, holder=LockHolder(7, "psql", None))
    began_at = cycle.clock.now
    ready = []
    while cycle.clock.now <= began_at + UNREAD_S + STANDBY_S:
        looked_after_s = cycle.clock.now - began_at
        await cycle.stand_by(unread)
        ready.append((looked_after_s, health.readiness(cycle.clock.now).ready))

    assert ready == [(looked_after_s, looked_after_s <= UNREAD_S) for looked_after_s, _ in ready]
    assert ready[-1][1] is False
    (reason,) = health.readiness(cycle.clock.now).reasons
    assert reason.startswith("slot: nobody has read slot 's' for 65 s, though psql, pid 7, holds its lock")

    await cycle.stand_by(ANOTHER)
    assert health.readiness(cycle.clock.now).ready


@pytest.mark.parametrize("in_between", ["read", "failed"])
async def test_the_wait_for_a_reader_starts_again(cycle: Cycle, health: Health, in_between: str) -> None:
    unread = ANOTHER._replace(slot_is_read=False)
    for _ in range(12):
        await cycle.stand_by(unread)
    if in_between == "read":
        await cycle.stand_by(ANOTHER)
    else:
        await cycle.recover(ConnectionFailed("the server restarts"))
    await cycle.stand_by(unread)
    await cycle.stand_by(unread)

    assert health.readiness(cycle.clock.now).ready


async def test_a_lock_of_another_slot_is_trouble_at_once(cycle: Cycle, health: Health) -> None:
    with capture_logs() as said:
        await cycle.stand_by(ANOTHER._replace(slot="mine"))

    (reason,) = health.readiness(cycle.clock.now).reasons
    assert "reads slot 's', not 'mine'" in reason
    assert [(line["event"], line["log_level"]) for line in said] == [("standby_in_vain", "error")]
    assert Fault.SLOT in reason
    assert cycle.pauses == [QUICK_RETRY_S], "whoever waits in vain looks more often"


async def test_a_lock_that_no_walsender_holds_is_trouble_at_once(cycle: Cycle, health: Health) -> None:
    stranger = LockHolder(7, "psql", None, is_walsender=False)
    await cycle.stand_by(ANOTHER._replace(holder=stranger, slot_is_read=False))

    (reason,) = health.readiness(cycle.clock.now).reasons
    assert reason.startswith("slot: the lock is held by psql, pid 7, which can't read slot 's'")
    assert "Fix: end that session" in reason


# Saying


async def test_the_same_sentence_is_said_once_in_a_while(cycle: Cycle) -> None:
    said_at = []
    began_at = cycle.clock.now
    for after_s in (0.0, 1.0, 29.9, 30.0, 31.0, 60.1):
        cycle.clock.now = began_at + after_s
        with capture_logs() as said:
            cycle.say("info", "standby", "somebody leads")
        said_at += [after_s] * len(said)
    assert said_at == [0.0, 30.0, 60.1]


async def test_another_sentence_is_said_at_once_and_the_first_again_after_it(cycle: Cycle) -> None:
    with capture_logs() as said:
        for sentence in ("a", "b", "b", "a"):
            cycle.say("info", "standby", sentence)
    assert [line["detail"] for line in said] == ["a", "b", "a"]


async def test_a_bug_is_logged_with_its_trace_and_our_own_errors_without(cycle: Cycle) -> None:
    bug = KeyError("x")
    with capture_logs() as said:
        await cycle.recover(bug)
        await cycle.recover(LineLost("cut"))
    assert [line.get("exc_info") for line in said] == [bug, None]
