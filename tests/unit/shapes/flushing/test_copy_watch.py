"""A copy of which nobody takes the rows is given up; one that is merely slow never is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from penstock.errors import LineLost
from penstock.lake.errors import SparkGone
from penstock.postgres.snapshot.copying import CopySession
from penstock.shapes.flushing import copy_watch
from penstock.shapes.flushing.copy_watch import CopyHangs, CopyWatch, Standstill

PATIENCE_S = 600.0
EVERY_S = 30.0
STUCK = CopySession(7, "10:00", "10:01", "Client", 1000, 10)
WORKS = STUCK._replace(waits_for=None)


def stood_still_at(looks: Sequence[Sequence[CopySession]]) -> int | None:
    """At which of the looks, one every EVERY_S, it has stood still for long enough."""
    still = Standstill(PATIENCE_S)
    assert still.look_every_s == EVERY_S
    found = [still.looked(sessions, 1000.0 + EVERY_S * place) for place, sessions in enumerate(looks)]
    return found.index(True) if True in found else None


def test_sessions_that_wait_for_their_client_and_send_nothing_stand_still() -> None:
    assert stood_still_at([[STUCK]] * 40) == 20
    assert stood_still_at([[WORKS]] * 5 + [[STUCK]] * 40) == 25


@pytest.mark.parametrize(
    "now_and_then",
    [
        pytest.param([], id="no session: it is sorted or written, or can't be seen"),
        pytest.param([WORKS], id="the server works"),
        pytest.param([STUCK._replace(waits_for="IO")], id="the server waits for its disk"),
        pytest.param([STUCK._replace(waits_for="Lock")], id="the server waits for a lock"),
        pytest.param([STUCK._replace(bytes_sent=1001)], id="a byte was sent"),
        pytest.param([STUCK._replace(rows_sent=11)], id="a row was sent"),
        pytest.param([STUCK._replace(last_statement="10:02")], id="a statement has begun or ended"),
        pytest.param([STUCK._replace(began="10:02")], id="another session of that pid"),
        pytest.param([STUCK, STUCK._replace(pid=8)], id="one more session"),
        pytest.param([STUCK, WORKS._replace(pid=8)], id="another session works"),
    ],
)
def test_whatever_moves_between_proves_nothing(now_and_then: list[CopySession]) -> None:
    assert stood_still_at([[STUCK] if place % 19 else now_and_then for place in range(200)]) is None


def test_looks_that_are_far_apart_prove_nothing() -> None:
    still = Standstill(PATIENCE_S)
    assert not any(still.looked([STUCK], 100.0 * place) for place in range(100))


class Copy:
    """A copy that ends when it is told to."""

    def __init__(self) -> None:
        self.ends: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.cancels = 0

    async def run(self) -> int:
        return await self.ends

    def cancel(self) -> None:
        self.cancels += 1
        if self.cancels == 2:
            self.ends.get_loop().call_soon_threadsafe(self.ends.set_exception, RuntimeError("cancelled"))


class Sessions:
    """What the server answers, time after time."""

    def __init__(self, *answers: list[CopySession] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, _connection: object, snapshot_name: str) -> list[CopySession]:
        self.asked.append(snapshot_name)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Session:
    """Of the one who looks."""

    def __init__(self) -> None:
        self.pgconn = self

    def finish(self) -> None:
        pass


def watch(monkeypatch: pytest.MonkeyPatch, sessions: Sessions) -> CopyWatch:
    async def connect(_parameters: object) -> Session:
        return Session()

    monkeypatch.setattr(copy_watch, "connect", connect)
    monkeypatch.setattr(copy_watch, "copy_sessions", sessions)
    monkeypatch.setattr(copy_watch, "_CANCEL_EVERY_S", 0.001)
    return CopyWatch({}, patience_s=0.02)


async def test_a_copy_that_hangs_is_cancelled_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    copy, sessions = Copy(), Sessions([], LineLost("gone"), [STUCK])
    with (
        capture_logs() as logs,
        pytest.raises(CopyHangs, match="shape a: nobody has taken a row of its copy"),
    ):
        await watch(monkeypatch, sessions).run("a", "0003-1", copy.run, cancel=copy.cancel)
    assert copy.cancels == 2
    assert set(sessions.asked) == {"0003-1"}
    assert [(each["event"], each["log_level"], each["shape"]) for each in logs] == [
        ("snapshot_hangs", "error", "a")
    ]


async def test_a_copy_that_ends_after_all_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Copy()

    def cancel() -> None:
        copy.ends.get_loop().call_soon_threadsafe(copy.ends.set_result, 5)

    assert await watch(monkeypatch, Sessions([STUCK])).run("a", "0003-1", copy.run, cancel=cancel) == 5


async def test_a_spark_that_is_gone_is_no_copy_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the process; the other would be tried again."""
    copy = Copy()

    def cancel() -> None:
        copy.ends.get_loop().call_soon_threadsafe(copy.ends.set_exception, SparkGone("code 137"))

    with pytest.raises(SparkGone):
        await watch(monkeypatch, Sessions([STUCK])).run("a", "0003-1", copy.run, cancel=cancel)


@pytest.mark.parametrize("error", [None, RuntimeError("no space")])
async def test_a_copy_that_ends_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    copy = Copy()
    watching = watch(monkeypatch, Sessions([WORKS]))
    running = asyncio.create_task(watching.run("a", "s", copy.run, cancel=copy.cancel))
    await asyncio.sleep(0)
    if error is None:
        copy.ends.set_result(5)
        assert await running == 5
    else:
        copy.ends.set_exception(error)
        with pytest.raises(RuntimeError, match="no space"):
            await running
    assert copy.cancels == 0


async def test_who_stops_waiting_leaves_no_watch_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Copy()
    watching = watch(monkeypatch, Sessions([WORKS]))
    running = asyncio.create_task(watching.run("a", "s", copy.run, cancel=copy.cancel))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert copy.cancels == 0
