"""The watchdog: what each answer of the server means, and what no answer means."""

from __future__ import annotations

from types import SimpleNamespace

import psycopg
import pytest
from psycopg import errors

from penstock.errors import LineLost, LineStale, LockLost, SynchronousStandby
from penstock.postgres.leader import watchdog as watchdog_module
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.watchdog import Watchdog
from tests.fake_session import Answer, FakeSession

PID = 4711
INTERVAL_S = 1.0
LIMIT_S = 3.0
OURS = (PID, "penstock capture s", "s")
LOCK = "pg_locks"
SYNC_STATE = "sync_state"
SETTINGS = "synchronous_standby_names"


class Enough(Exception):
    """The test has seen enough."""


class Clock:
    """Stands in for `awake_or_asleep`."""

    def __init__(self) -> None:
        self.now = 500.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watchdog_module, "awake_or_asleep", made)
    return made


def session_of(clock: Clock, **answers: Answer | list[Answer]) -> FakeSession:
    """All is well but for what the arguments say."""
    lock = answers.get("lock", OURS)
    state = answers.get("state", ("async",))
    settings = answers.get("settings", ("*", "penstock capture s"))
    return FakeSession({LOCK: lock, SYNC_STATE: state, SETTINGS: settings}, pause=clock.pass_by)


def watchdog_of(session: FakeSession, freshness: Freshness) -> Watchdog:
    return Watchdog(
        session.as_connection(),
        lock_key=1,
        walsender_pid=PID,
        freshness=freshness,
        interval_s=INTERVAL_S,
    )


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param({"lock": None}, LockLost, id="nobody holds the lock"),
        pytest.param({"lock": (PID + 1, "another", "s")}, LockLost, id="another holds the lock"),
        pytest.param({"lock": [OURS, OURS, None]}, LockLost, id="it is lost later"),
        pytest.param({"lock": errors.AdminShutdown("terminating")}, LineLost, id="the server stops"),
        pytest.param({"lock": errors.CrashShutdown("crash")}, LineLost, id="the server crashes"),
        pytest.param({"lock": psycopg.OperationalError("no route")}, LineLost, id="the network is gone"),
        pytest.param({"lock": psycopg.InterfaceError("closed")}, LineLost, id="we hung up"),
        pytest.param({"state": errors.AdminShutdown("terminating")}, LineLost, id="it stops in between"),
        pytest.param({"state": ("sync",)}, SynchronousStandby, id="a synchronous standby"),
        pytest.param({"state": ("quorum",)}, SynchronousStandby, id="one of a quorum"),
        pytest.param({"state": ("potential",)}, SynchronousStandby, id="it would be the next"),
        pytest.param({"state": [("async",), ("sync",)]}, SynchronousStandby, id="the setting changes"),
    ],
)
async def test_an_answer_ends_the_leadership(
    clock: Clock, answers: dict[str, Answer | list[Answer]], expected: type[Exception]
) -> None:
    session = session_of(clock, **answers)
    with pytest.raises(expected) as raised:
        await watchdog_of(session, Freshness(limit_s=LIMIT_S, now=clock.now)).watch()
    assert type(raised.value) is expected


@pytest.mark.parametrize("state", [("async",), (None,), None])
async def test_a_walsender_that_nobody_waits_for_may_go_on(clock: Clock, state: Answer) -> None:
    """No state is none that we may see: a role sees little of other sessions."""
    session = session_of(clock, lock=[OURS] * 6 + [Enough()], state=state)
    with pytest.raises(Enough):
        await watchdog_of(session, Freshness(limit_s=LIMIT_S, now=clock.now)).watch()
    assert SETTINGS not in session.asked


async def test_a_shutdown_is_heard_while_it_listens(clock: Clock) -> None:
    """A server that stops says so to ordinary sessions while it goes on waiting for walsenders."""

    def shut_down(_: float) -> None:
        raise errors.AdminShutdown("terminating connection\nDETAIL: more")

    session = FakeSession({LOCK: OURS, SYNC_STATE: ("async",)}, pause=shut_down)
    with pytest.raises(LineLost, match="session ended: terminating connection") as raised:
        await watchdog_of(session, Freshness(limit_s=LIMIT_S, now=clock.now)).watch()
    assert isinstance(raised.value.__cause__, errors.AdminShutdown)
    assert "\n" not in str(raised.value)


async def test_it_asks_for_the_lock_at_every_look_and_for_the_state_now_and_then(clock: Clock) -> None:
    session = session_of(clock, lock=[OURS] * 11 + [Enough()])
    with pytest.raises(Enough):
        await watchdog_of(session, Freshness(limit_s=LIMIT_S, now=clock.now)).watch()

    looks = "".join("s" if words == SYNC_STATE else "l" for words in session.asked)
    assert looks == "lslllll" + "slllll" + "s" + "l"
    assert session.listened_s == [INTERVAL_S] * 11


async def test_it_vouches_for_the_moment_before_its_question(clock: Clock) -> None:
    """The answer may have lain in the socket of a process that was frozen."""
    freshness = Freshness(limit_s=LIMIT_S, now=clock.now)
    asked_at = []

    def frozen_for_long() -> tuple[object, ...]:
        asked_at.append(clock.now)
        clock.pass_by(3600)
        return OURS

    session = session_of(clock, lock=[frozen_for_long, Enough()], state=None)
    with pytest.raises(Enough):
        await watchdog_of(session, freshness).watch()

    assert freshness.age_s(clock.now) == clock.now - asked_at[0]
    assert not freshness.is_fresh(clock.now)


async def test_a_lock_that_is_gone_vouches_for_nothing(clock: Clock) -> None:
    freshness = Freshness(limit_s=LIMIT_S, now=clock.now)
    clock.pass_by(1.0)
    with pytest.raises(LockLost):
        await watchdog_of(session_of(clock, lock=None), freshness).watch()
    assert freshness.age_s(clock.now) == 1.0


async def test_the_guard_needs_no_answer(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that hangs must not keep the leader from seeing that nobody vouches for it."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.pass_by(seconds)

    monkeypatch.setattr(watchdog_module, "asyncio", SimpleNamespace(sleep=sleep))
    session = session_of(clock)
    freshness = Freshness(limit_s=LIMIT_S, now=clock.now)

    with pytest.raises(LineStale, match=r"no sign of leadership for 3\.5 s"):
        await watchdog_of(session, freshness).guard()

    assert slept == [INTERVAL_S / 2] * 7
    assert session.asked == []


async def test_the_guard_is_quiet_while_something_vouches(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    freshness = Freshness(limit_s=LIMIT_S, now=clock.now)
    vouching_ends = clock.now + 60

    async def sleep(seconds: float) -> None:
        clock.pass_by(seconds)
        if clock.now <= vouching_ends:
            freshness.lock_seen(clock.now)

    monkeypatch.setattr(watchdog_module, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(LineStale):
        await watchdog_of(session_of(clock), freshness).guard()
    assert vouching_ends + LIMIT_S < clock.now <= vouching_ends + LIMIT_S + INTERVAL_S / 2
