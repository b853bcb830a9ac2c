"""`penstock status`, against a real ops port."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.local.free_ports import free_port
from penstock.ops.server import OpsServer
from penstock.ops.status_command import NoAnswer, as_json, as_text, ask, exit_code
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.slot.state import SlotState
from penstock.status.board import StatusBoard
from penstock.status.capture_metrics import CaptureMetrics
from penstock.status.health import Fault, Health
from penstock.status.model import CaptureReading, ShapeReading, ShapesReading, SlotReading, Status
from tests.servers.slots import HEALTHY

SLOT = HEALTHY._replace(confirmed_flush_lsn=0x16B374D848, retained_bytes=2_345_678)

READING = CaptureReading(
    line_age_s=0.1,
    received_lsn=0x16B374D848 + 1500,
    frontier_lsn=0x16B374D848,
    pending=0,
    queue_events=0,
    inflight_bytes=0,
    records=12_345,
)


class Service:
    """The ops port of a capture."""

    def __init__(self) -> None:
        self.metrics = CaptureMetrics()
        self.health = Health()
        self.board = StatusBoard("capture", self.health)
        self.ops = OpsServer(self.health, self.board.read, self.metrics.exposition)
        self.url = ""

    def lead(self) -> None:
        now = time.monotonic()
        self.health.start_streaming(Freshness(limit_s=60, now=now), now)
        self.board.note_slot(SLOT, now)
        self.board.lead(lambda: READING)

    async def status(self) -> Status:
        return await asyncio.to_thread(ask, self.url)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    service.url = await service.ops.start("127.0.0.1", 0)
    yield service
    await service.ops.stop()


async def test_a_leader(service: Service) -> None:
    service.lead()

    status = await service.status()

    assert exit_code(status) == 0
    assert as_text(status, service.url).splitlines() == [
        f"streaming, ready ({service.url})",
        "  leader   this process",
        "  frontier 16/B374D848, 1.5 kB behind what was received (16/B374DE24)",
        "  slot     confirmed 16/B374D848, keeps 2.2 MB of WAL on the server (read 0 s ago)",
        "  stream   12,345 records accepted, 0 pending",
    ]


@pytest.mark.parametrize(
    ("slot", "line"),
    [
        pytest.param(
            SLOT._replace(active_pid=None),
            "confirmed 16/B374D848, keeps 2.2 MB of WAL on the server, and nobody reads it (read 7 s ago)",
            id="unread",
        ),
        pytest.param(None, "does not exist, read 7 s ago", id="missing"),
    ],
)
async def test_a_standby_tells_of_the_slot(service: Service, slot: SlotState | None, line: str) -> None:
    service.health.stand_by()
    service.board.note_slot(slot, time.monotonic() - 7)

    status = await service.status()

    assert exit_code(status) == 0
    assert as_text(status, service.url).splitlines() == [
        f"standby, ready ({service.url})",
        f"  slot     {line}",
    ]


async def test_a_standby_of_a_lost_slot_is_not_ready(service: Service) -> None:
    service.health.stand_by()
    service.board.note_slot(
        SLOT._replace(wal_status="lost", active_pid=None, retained_bytes=None), time.monotonic() - 7
    )

    status = await service.status()

    assert exit_code(status) == 1
    headline, trouble, *rest = as_text(status, service.url).splitlines()
    assert headline == f"standby, NOT READY ({service.url})"
    assert trouble.startswith(f"  lost: replication slot '{SLOT.name}' is lost: Postgres removed WAL")
    assert "Fix: create a slot under a new name" in trouble
    assert rest == [
        "  slot     LOST, confirmed 16/B374D848, keeps 0 B of WAL on the server, and nobody reads it"
        " (read 7 s ago)"
    ]


async def test_a_slot_that_was_never_read_is_unknown(service: Service) -> None:
    assert "  slot     unknown, read 0 s ago" in as_text(await service.status(), service.url)


async def test_what_is_wrong_is_said(service: Service) -> None:
    service.lead()
    service.health.set_fault(Fault.STREAM, "no such stream. Fix: create it")

    status = await service.status()

    assert exit_code(status) == 1
    assert as_text(status, service.url).splitlines()[:2] == [
        f"streaming, NOT READY ({service.url})",
        "  stream: no such stream. Fix: create it",
    ]
    plain = json.loads(as_json(status))
    assert (plain["ready"], plain["reasons"]) == (False, ["stream: no such stream. Fix: create it"])
    assert plain["capture"]["records"] == 12_345


async def test_nobody_answers() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(NoAnswer, match=rf"^no penstock answers at {url}: .*refused. Fix: .*--url"):
        await asyncio.to_thread(ask, url)


async def test_somebody_else_answers() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NoAnswer, match="no penstock answers"):
            await asyncio.to_thread(ask, f"http://127.0.0.1:{port}")


def test_shapes_a_line_each() -> None:
    shapes = [
        ShapeReading("orders", "idle", 0x16B374D848, lag_bytes=0, lag_s=0.0, rows=1_234, error=None),
        ShapeReading("a", "idle", -1, lag_bytes=3 << 20, lag_s=2.25, rows=0, error="no such column"),
    ]
    reading = ShapesReading(0.1, 0x200, 0x100, 7, 9, 5 << 20, log_is_full=True, shapes=shapes)
    slot = SlotReading(1.0, exists=True, is_active=True, confirmed_lsn=0x100)
    status = Status("shapes", "streaming", ready=True, reasons=[], slot=slot, shapes=reading)

    assert as_text(status, "url").splitlines()[4:] == [
        "  log      5.0 MB, FULL: reading waits",
        "  shape    orders  16/B374D848, up to date, 1,234 rows since it leads",
        "  shape    a       0/0, 3.0 MB, 2.2 s behind, 0 rows since it leads, FAILING",
    ]
    assert msgspec.json.decode(as_json(status), type=Status) == status


async def test_metrics_say_what_the_status_says(service: Service) -> None:
    service.lead()

    text = service.metrics.exposition(service.board.read()).decode()
    service.board.rest()
    later = service.metrics.exposition(service.board.read()).decode()

    for line in ("penstock_frontier_lsn 9.7", "penstock_slot_active 1.0", 'phase{phase="streaming"} 1.0'):
        assert line in text
    assert "penstock_ack_pending 0.0" in later
