"""The status, as the parts have left it."""

from __future__ import annotations

from itertools import chain, repeat

import msgspec
import pytest

from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.slot.state import SlotState, slot_lost
from penstock.status.board import StatusBoard
from penstock.status.health import Fault, Health, Phase
from penstock.status.metrics import CaptureMetrics, ShapesMetrics
from penstock.status.model import CaptureReading, ShapeReading, ShapesReading, SlotReading, SourceReading
from tests.servers.slots import HEALTHY

READING = CaptureReading(0.1, 200, 100, 1, 0, 0, 0, oldest_lsn=120, oldest_committed_at=990.0)


class Process:
    """A capture, and the wall clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.passed_s = 0.0
        self.expire_at: float | None = None
        self.reading: CaptureReading | ShapesReading = READING
        self.health = Health()
        self.board = StatusBoard(
            "capture",
            self.health,
            clock=lambda: self.passed_s,
            wall_clock=lambda: self.now,
            credentials_expire_at=lambda: self.expire_at,
        )

    def lead(self) -> None:
        self.health.start_streaming(Freshness(limit_s=1e9, now=0.0), 0.0)
        self.board.lead(lambda: self.reading)


@pytest.fixture
def process() -> Process:
    return Process()


def test_how_late_by_the_servers_clock(process: Process) -> None:
    process.lead()
    assert process.board.read().behind_s == 10
    process.board.note_clock(2.5)
    assert process.board.read().behind_s == 12.5
    assert process.board.read().clock_offset_s == 2.5


def test_the_rate_of_the_last_seconds_in_this_leadership(process: Process) -> None:
    rates = []
    process.lead()
    for records in (0, 500, 1000, 1000):
        process.reading = msgspec.structs.replace(READING, records=records)
        rates.append(process.board.read().rate_per_s)
        process.passed_s += 10
    process.board.rest()
    rates.append(process.board.read().rate_per_s)
    process.lead()
    rates.append(process.board.read().rate_per_s)
    assert rates == [None, 50, 50, 0, None, None]


def test_what_a_leadership_leaves_undelivered_gets_later(process: Process) -> None:
    process.lead()
    process.board.rest()
    process.health.enter(Phase.SINK_DOWN)
    process.now += 60
    assert process.board.read().behind_s == 70

    process.reading = msgspec.structs.replace(READING, oldest_committed_at=None, frontier_lsn=110)
    process.lead()
    assert process.board.read().behind_s == 70, "it has read nothing yet"
    process.reading = msgspec.structs.replace(process.reading, frontier_lsn=130)
    assert process.board.read().behind_s == 0


def test_a_standby_knows_who_leads_and_is_not_late(process: Process) -> None:
    process.lead()
    process.board.rest()
    process.health.stand_by("penstock capture at 10.0.0.7, pid 42")

    status = process.board.read()

    assert (status.behind_s, status.leader) == (0, "penstock capture at 10.0.0.7, pid 42")
    process.health.enter(Phase.PREPARING)
    assert process.board.read().leader is None


@pytest.mark.parametrize("next_reading", [HEALTHY, None], ids=["replaced", "dropped"])
def test_a_lost_slot_makes_any_process_unready_until_a_good_reading(
    process: Process, next_reading: SlotState | None
) -> None:
    process.health.stand_by()
    process.board.note_slot(HEALTHY._replace(wal_status="lost"), 0.0)
    (reason,) = process.board.read().reasons
    assert reason == f"lost: {slot_lost(HEALTHY.name)}"
    process.health.stand_by()
    assert not process.board.read().ready, "that another leads changes nothing"

    process.board.note_slot(next_reading, 1.0)
    assert process.board.read().ready


def test_who_meets_the_lost_slot_itself_says_it_once(process: Process) -> None:
    process.board.note_slot(HEALTHY._replace(wal_status="lost"), 0.0)
    process.health.set_fault(Fault.POSTGRES, str(slot_lost(HEALTHY.name)))
    assert process.board.read().reasons == [f"postgres: {slot_lost(HEALTHY.name)}", "phase is starting"]

    process.lead()
    assert process.board.read().ready, "a stream of it proves that it isn't lost"


def test_another_history(process: Process) -> None:
    process.lead()
    process.board.rest()
    process.board.forget_positions()
    assert process.board.read().behind_s == 0


def test_shapes_are_as_late_as_the_last_of_them(process: Process) -> None:
    shapes = [
        ShapeReading("a", "idle", 1, 0, 0.0, 0, None),
        ShapeReading("b", "flushing", 1, 9, 7.5, 0, None),
    ]
    process.reading = ShapesReading(0.1, 200, 100, 0, 0, 0, log_is_full=False, shapes=shapes)
    process.lead()
    assert process.board.read().behind_s == 7.5


def test_the_metrics_of_a_status(process: Process) -> None:
    metrics = CaptureMetrics()
    process.lead()
    assert "penstock_credentials_expire_seconds +Inf" in metrics.exposition(process.board.read()).decode()
    process.expire_at = 1090.0
    process.health.set_fault(Fault.SINK, "it is down")
    metrics.shards.count_accepted({"shardId-1": 2, "shardId-0": 1})
    metrics.shards.count_throttled(["unknown"])
    text = metrics.exposition(process.board.read()).decode()

    for line in (
        "penstock_credentials_expire_seconds 90.0",
        "penstock_ready 0.0",
        "penstock_behind_seconds 10.0",
        "penstock_frontier_age_seconds 0.0",
        "penstock_clock_offset_seconds 0.0",
        'penstock_kinesis_shard_records_total{shard="shardId-1"} 2.0',
        'penstock_kinesis_shard_throttles_total{shard="unknown"} 1.0',
    ):
        assert line in text.splitlines()


def source_metrics(board: StatusBoard) -> set[str]:
    lines = ShapesMetrics().exposition(board.read()).decode().splitlines()
    return {line for line in lines if line.startswith(("penstock_source_", "penstock_slot_read_age"))}


def test_a_stream_in_place_of_a_slot() -> None:
    board = StatusBoard("shapes", Health(), clock=chain([0.0], repeat(90.0)).__next__)
    nothing = {"penstock_source_expires_seconds +Inf", "penstock_source_retention_seconds 0.0"}
    assert source_metrics(board) == nothing | {"penstock_slot_read_age_seconds 90.0"}
    board.note_source(86_400.0, 3_600.0)
    assert board.read().source is None

    board = StatusBoard("shapes", Health(), clock=lambda: 0.0, source=SourceReading("shop", "etl"))
    unread = {"penstock_slot_read_age_seconds 0.0"}
    assert source_metrics(board) == nothing | unread
    board.note_source(86_400.0, 3_600.0)
    assert source_metrics(board) == unread | {
        "penstock_source_expires_seconds 82800.0",
        "penstock_source_retention_seconds 86400.0",
    }
    board.rest()
    assert board.read().source == SourceReading("shop", "etl")


def test_a_slot_that_was_left_behind_beside_a_stream() -> None:
    health = Health()
    health.enter(Phase.STANDBY)
    board = StatusBoard("shapes", health, clock=lambda: 5.0, source=SourceReading("shop", "etl"))
    left = SlotState("s", "logical", "wal2json", "db", False, None, 0x300, 0x200, "reserved", None, "db", 10)
    board.note_slot(left, 2.0)
    found = board.read().slot
    assert (found.exists, found.retained_bytes, found.read_age_s, board.slot) == (True, 10, 3.0, left)

    # One that is gone, or lost, keeps nothing, and nobody lacks it.
    for gone in (None, left._replace(wal_status="lost")):
        board.note_slot(gone, 5.0)
        assert (board.read().slot, board.slot) == (SlotReading(0.0), None)
        assert board.read().ready
