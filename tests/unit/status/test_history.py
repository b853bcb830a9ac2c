"""The last hour, in bounded memory."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.status.history import SERIES, History
from penstock.status.model import CaptureReading, ShapeReading, ShapesReading, SlotReading, Status

SLOT = SlotReading(1.0, exists=True, retained_bytes=123_456)
STANDBY = Status("capture", "standby", ready=True, reasons=[], slot=SLOT, leader="another")


def leader(records: int, **more: int) -> Status:
    reading = CaptureReading(0.1, 500, 300, 0, 0, 0, records)
    return Status(
        "capture",
        "streaming",
        ready=True,
        reasons=[],
        slot=SLOT,
        behind_s=1.23456,
        capture=msgspec.structs.replace(reading, **more),
    )


def values(history: History, series: str) -> list[float | None]:
    return [point.values[SERIES.index(series)] for point in history.points]


def test_what_a_leader_measures() -> None:
    history = History()
    history.take(leader(100), 1000.0)
    history.take(leader(600), 1010.0)

    assert [point.at for point in history.points] == [1000, 1010]
    assert values(history, "rate") == [None, 50.0]
    assert values(history, "behind_s") == [1.235, 1.235]
    assert values(history, "lag_bytes") == [200, 200]
    assert values(history, "retained_bytes") == [123_500, 123_500]
    assert values(history, "log_bytes") == [None, None]


def test_the_fullest_limit_counts() -> None:
    history = History()
    full = {
        "pending": 10,
        "pending_limit": 100,
        "queue_events": 3,
        "queue_limit": 4,
        "inflight_limit_bytes": 7,
    }
    history.take(leader(0, **full), 1000.0)

    assert values(history, "fill") == [75]


def test_a_standby_measures_the_slot_alone() -> None:
    history = History()
    history.take(STANDBY, 1000.0)

    assert history.points[0].values == tuple(123_500 if each == "retained_bytes" else None for each in SERIES)


def test_shapes() -> None:
    history = History()
    shapes = [
        ShapeReading("a", "idle", 1, 0, 0.0, 0, None),
        ShapeReading("b", "backing off", 1, 0, 0.0, 0, "it fails"),
    ]
    reading = ShapesReading(0.1, 500, 300, 0, 70, 4096, log_is_full=False, shapes=shapes)
    status = Status("shapes", "streaming", ready=True, reasons=[], slot=SLOT, shapes=reading)
    history.take(status, 1000.0)
    history.take(msgspec.structs.replace(status, shapes=msgspec.structs.replace(reading, changes=90)), 1010.0)

    assert values(history, "failing") == [1, 1]
    assert values(history, "log_bytes") == [4096, 4096]
    assert values(history, "rate") == [None, 2.0]


def test_no_rate_over_a_gap_or_a_new_beginning() -> None:
    history = History()
    for records, at in ((100, 1000.0), (200, 1010.0), (50, 1020.0), (60, 1030.0), (90, 1090.0)):
        history.take(leader(records), at)
    history.take(STANDBY, 1100.0)
    history.take(leader(500), 1110.0)

    assert values(history, "rate") == [None, 10.0, None, 1.0, None, None, None]


@pytest.mark.parametrize("at", [1000.0, 1005.0, 1008.9])
def test_a_status_that_comes_too_soon_is_left_out(at: float) -> None:
    history = History()
    assert history.take(leader(0), 1000.0) is not None
    assert history.take(leader(0), at) is None
    assert len(history.points) == 1


@given(st.lists(st.floats(-4000, 4000), max_size=200))
def test_it_is_bounded_and_in_order_whatever_the_clock_does(steps: list[float]) -> None:
    history, at = History(interval_s=10, kept_s=300), 1e6
    for step in steps:
        at += step
        history.take(leader(0), at)
        times = [point.at for point in history.points]
        assert times == sorted(set(times))
        assert len(times) <= 31
        assert all(math.floor(at) - each <= 301 for each in times)
        assert times[-1] <= at
