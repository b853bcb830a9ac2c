"""The end of a leadership on a real server: when another can lead, and what is on its way then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from penstock.capture.leadership import Leadership
from penstock.capture.slot_memory import SlotMemory
from penstock.errors import LineLost, PenstockError, ProtocolViolation
from penstock.kinesis.aws.outcome import Failed, MarkResult, Result, Unsent
from penstock.kinesis.write.event import ChangeEvent
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.postgres.leader.watchdog import Watchdog
from penstock.settings.loading import load_capture_settings
from penstock.status.board import StatusBoard
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics
from tests.kinesis_answers import accepted
from tests.servers.capture_site import CaptureSite

LOCKS = """
    SELECT l.pid FROM pg_locks l JOIN pg_replication_slots s ON s.active_pid = l.pid
    WHERE l.locktype = 'advisory' AND s.slot_name = '{}'
"""


class SlowSink:
    """Lets one request leave, and answers it when told to."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.may_answer = threading.Event()

    def put_records(self, events: Sequence[ChangeEvent], may_send: Callable[[], bool]) -> Result:
        if not may_send():
            return Unsent()
        self.left.set()
        self.may_answer.wait(20)
        return accepted(events)

    def put_mark(self, data: bytes, key: str, after: str | None, may_send: Callable[[], bool]) -> MarkResult:
        raise AssertionError("the stream is not marked")

    def probe(self) -> Failed | None:
        return None

    def complaint(self) -> str | None:
        return None

    def credentials_expire_at(self) -> float | None:
        return None

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "keeps"), [(ProtocolViolation("an unknown frame"), True), (LineLost("cut"), False)]
)
async def test_a_request_that_has_left_is_over_before_another_can_lead(
    postgres: PrivatePostgres,
    database: str,
    kinesis: LocalKinesis,
    monkeypatch: pytest.MonkeyPatch,
    error: PenstockError,
    keeps: bool,
) -> None:
    """Unless the line itself is lost: then the server may have given the lock away already."""
    site = CaptureSite(postgres, database, kinesis, "unused", LEADER_TIMEOUT_S=10)
    fails = asyncio.Event()

    async def watch(_: Watchdog) -> None:
        await fails.wait()
        raise error

    monkeypatch.setattr(Watchdog, "watch", watch)
    for name, value in postgres.env(database).items():
        monkeypatch.setenv(name, value)
    sink, health = SlowSink(), Health()
    leadership = Leadership(
        load_capture_settings(site.env(), dotenv=None),
        sink=sink,
        memory=SlotMemory(),
        health=health,
        metrics=CaptureMetrics(),
        board=StatusBoard("capture", health),
        stop=asyncio.Event(),
        on_new_history=lambda: None,
    )
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    leading = asyncio.create_task(leadership.run())
    await until(lambda: leadership.has_led)
    site.psql("INSERT INTO t VALUES (1)")
    await until(sink.left.is_set)
    assert site.psql(LOCKS.format(site.slot))

    fails.set()
    if keeps:
        await asyncio.sleep(0.5)
        assert site.psql(LOCKS.format(site.slot))
    else:
        await until(lambda: not site.psql(LOCKS.format(site.slot)))
    assert not leading.done()
    sink.may_answer.set()
    with pytest.raises(type(error)):
        await leading
    await until(lambda: not site.psql(LOCKS.format(site.slot)))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.01)
