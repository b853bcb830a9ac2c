"""`penstock status`, against a real ops port."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from importlib.resources import files

import msgspec
import pytest

from penstock.local.free_ports import free_port
from penstock.ops.address import own_url_of
from penstock.ops.bulletin import Bulletin
from penstock.ops.server import OpsServer
from penstock.ops.status_command import NoAnswer, as_json, as_text, ask, exit_code
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.slot.state import SlotState
from penstock.status.board import StatusBoard
from penstock.status.health import Fault, Health
from penstock.status.metrics import CaptureMetrics
from penstock.status.model import CaptureReading, ShapeReading, ShapesReading, SlotReading, Status
from penstock.status.shape_words import ROWS_MEAN
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
        "  slot     confirmed 16/B374D848, keeps 2.2 MB of WAL on the server (no limit) (read 0 s ago)",
        "  stream   12,345 records accepted, 0 pending",
    ]


@pytest.mark.parametrize(
    ("slot", "line"),
    [
        pytest.param(
            SLOT._replace(active_pid=None),
            "confirmed 16/B374D848, keeps 2.2 MB of WAL on the server (no limit), and nobody reads it"
            " (read 7 s ago)",
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


@pytest.mark.parametrize("host", ["::1", "::"])
async def test_a_port_of_ipv6_answers_where_it_says(service: Service, host: str) -> None:
    ops = OpsServer(service.health, service.board.read, service.metrics.exposition)
    url = await ops.start(host, 0)
    try:
        assert url.startswith(f"http://[{host}]:")
        own = own_url_of(host, url.rpartition(":")[2])
        assert (await asyncio.to_thread(ask, own)).phase == "starting"
    finally:
        await ops.stop()


async def test_somebody_else_answers() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NoAnswer, match="no penstock answers"):
            await asyncio.to_thread(ask, f"http://127.0.0.1:{port}")


def shapes_status(*shapes: ShapeReading) -> Status:
    reading = ShapesReading(0.1, 0x200, 0x100, 7, 9, 5 << 20, log_is_full=True, shapes=list(shapes))
    slot = SlotReading(1.0, exists=True, is_active=True, confirmed_lsn=0x100)
    return Status("shapes", "streaming", ready=True, reasons=[], slot=slot, shapes=reading)


def test_shapes_a_line_each() -> None:
    status = shapes_status(
        ShapeReading("orders", "idle", 0x16B374D848, 0, 0.0, 1_234, None, flushed_s=5.2, due_s=2.6),
        ShapeReading("a", "backing off", -1, 3 << 20, 2.25, 0, "no column x. Fix: add it", due_s=0.2),
        ShapeReading("b", "waiting", 0x100, 0, 0.0, 0, None, flushed_s=300.0, waits_for="an old transaction"),
        ShapeReading("c", "snapshotting", -1, 0, 0.0, 0, None),
    )

    assert as_text(status, "url").splitlines() == [
        "streaming, ready (url)",
        "  shape a fails: no column x. Fix: add it",
        "  leader   this process",
        "  frontier 0/100, 256 B behind what was received (0/200)",
        "  slot     confirmed 0/100, keeps 0 B of WAL on the server (no limit) (read 1 s ago)",
        "  log      5.0 MB, FULL: reading waits",
        "  shape    orders  idle, at 16/B374D848, up to date, 1,234 rows written since it leads,"
        " last flush 5 s ago, next flush in 3 s",
        "  shape    a       FAILING, backing off, no table yet, 3.0 MB, 2.2 s behind, 0 rows written"
        " since it leads, next flush due: no column x. Fix: add it",
        "  shape    b       waiting, at 0/100, up to date, 0 rows written since it leads,"
        " last flush 5 min ago: an old transaction",
        "  shape    c       snapshotting, no table yet, nothing to add yet, 0 rows written since it leads",
    ]
    assert msgspec.json.decode(as_json(status), type=Status) == status


def test_the_terminal_says_whatever_the_page_says() -> None:
    status = msgspec.structs.replace(
        shapes_status(
            ShapeReading("a", "stopped", 0x100, 9, 2.0, 7, "no column x. Fix: add it"),
            ShapeReading("b", "waiting", 0x100, 9, 2.0, 7, None, waits_for="an old transaction"),
        ),
        ready=False,
        reasons=["postgres: gone", "phase is postgres down"],
        behind_s=3.0,
    )
    bulletin = Bulletin()
    bulletin.restart(status, 1_800_000_000.0, 0.0)
    view = bulletin.all
    text = as_text(status, "url")

    for what, do in view["troubles"] + view["warnings"]:
        assert what in text
        assert do
        assert do in text
    for label, sentence in view["facts"].items():
        assert f"  {label:<8} {sentence}\n" in text
    for name, row in view["shapes"].items():
        [line] = [line for line in text.splitlines() if line.startswith(f"  shape    {name} ")]
        for column in ("state", "rows", "position", "lag", "note"):
            assert row[column] in line


def test_the_page_names_the_rows_as_the_terminal_does() -> None:
    page = files("penstock.ops") / "page"
    assert f'<th scope="col">{ROWS_MEAN}</th>' in (page / "index.html").read_text()
    assert f'rows: "{ROWS_MEAN}"' in (page / "page.js").read_text()


async def test_metrics_say_what_the_status_says(service: Service) -> None:
    service.lead()

    text = service.metrics.exposition(service.board.read()).decode()
    service.board.rest()
    later = service.metrics.exposition(service.board.read()).decode()

    for line in ("penstock_frontier_lsn 9.7", "penstock_slot_active 1.0", 'phase{phase="streaming"} 1.0'):
        assert line in text
    assert "penstock_ack_pending 0.0" in later
