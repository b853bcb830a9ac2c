"""SlotMonitor: how often it looks, and what it does when the server doesn't answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

import psycopg
import pytest

from penstock.errors import ConnectionFailed
from penstock.postgres.slot import monitor as module
from penstock.postgres.slot.monitor import SlotMonitor
from penstock.postgres.slot.state import SlotState

READ = SlotState("s", "logical", "wal2json", "db", False, 4711, 0x300, 0x200, "reserved", None, "db", 10)
UNREAD = READ._replace(active_pid=None)
AHEAD_S = 40.0

Answer = SlotState | Exception | None


class Server:
    """Stands for the server, its sessions and cursors. When it has no more answers, the monitor ends."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.connected = self.finished = 0
        self.pauses: list[float] = []
        self.slots: list[SlotState | None] = []
        self.clocks: list[float] = []
        self.pgconn = self

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(module, "connect", self.connect)
        patch.setattr(module, "read_slot", self.read_slot)
        patch.setattr(asyncio, "sleep", self.sleep)

    async def watch(self) -> None:
        monitor = SlotMonitor(
            {}, "s", on_slot=lambda slot, _: self.slots.append(slot), on_clock=self.clocks.append, every_s=5.0
        )
        with pytest.raises(asyncio.CancelledError):
            await monitor.run()

    async def connect(self, _parameters: dict[str, Any]) -> Self:
        self.connected += 1
        return self

    async def read_slot(self, session: object, name: str) -> SlotState | None:
        assert (session, name) == (self, "s")
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def execute(self, _query: str) -> Self:
        return self

    async def fetchone(self) -> tuple[float]:
        return (time.time() + AHEAD_S,)

    def finish(self) -> None:
        self.finished += 1

    async def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        if not self.answers:
            raise asyncio.CancelledError


async def test_it_looks_more_often_while_nobody_reads_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(None, UNREAD, READ, UNREAD)
    server.install(monkeypatch)
    await server.watch()

    assert server.slots == [None, UNREAD, READ, UNREAD]
    assert server.pauses == [1.0, 1.0, 5.0, 1.0]
    assert (server.connected, server.finished) == (1, 1), "one session, which is closed at the end"


@pytest.mark.parametrize(
    "error", [ConnectionFailed("refused"), psycopg.OperationalError("closed"), TimeoutError()], ids=repr
)
async def test_a_server_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    server = Server(READ, error, READ)
    server.install(monkeypatch)
    await server.watch()

    assert server.slots == [READ, READ], "nothing is said of a slot that was not read"
    assert server.pauses == [5.0, 5.0, 5.0]
    assert (server.connected, server.finished) == (2, 2)


async def test_a_defect_is_not_taken_for_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(KeyError("slot"))
    server.install(monkeypatch)
    monitor = SlotMonitor({}, "s", on_slot=lambda *_: None, on_clock=lambda _: None)
    with pytest.raises(KeyError):
        await monitor.run()

    assert server.finished == 1


async def test_the_servers_clock_is_told_as_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(READ)
    server.install(monkeypatch)
    await server.watch()

    assert server.clocks == [pytest.approx(AHEAD_S, abs=5.0)]
