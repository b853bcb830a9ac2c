"""Shapes are exact whatever is killed, and whenever: at the worst places, and at random moments."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.faults.shapes_load import Bank, Reader, assert_history_is_right, flushes_more, process_groups
from tests.servers.capture_site import wait_until
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesProcess, ShapesSite

WORST_PLACES = ("snapshot.copying", "flush.committed:2")
# A second snapshot is there to be killed only as long as nobody has taken them all.
ALL_PLACES = (
    "snapshot.copying",
    "snapshot.committed:2",
    "flush.committed:2",
    "log.written:3",
    "registry.written:1",
    "registry.written:4",
)
LONG_S = 240.0


@pytest.fixture
def site(shapes_site: ShapesSite) -> ShapesSite:
    return shapes_site


def java_is_gone(process: ShapesProcess) -> bool:
    """Whether nothing is left of a killed process's group."""
    return all(group != process.pid for _, group in process_groups())


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("fault_points", "power_cuts"),
    [
        pytest.param(WORST_PLACES, 1, id="worst"),
        pytest.param(ALL_PLACES, 3, id="all", marks=pytest.mark.long),
    ],
)
def test_tables_are_exact_after_kills_at_the_worst_places(
    site: ShapesSite, run_once: RunOnce, fault_points: tuple[str, ...], power_cuts: int
) -> None:
    rng = random.Random(31)
    bank, reader = Bank(site, seed=31), Reader(site)
    bank.write_file()
    with bank.writing(), reader.reading():
        for fault_point in fault_points:
            with site.shapes(PENSTOCK_FAULT_POINT=fault_point) as process:
                assert process.wait(LONG_S) == -signal.SIGKILL, fault_point
                wait_until(lambda: java_is_gone(process), "Java ends with Python", LONG_S)
            bank.assert_slot_holds_what_is_missing()
        for _ in range(power_cuts):
            with site.shapes() as process:
                process.wait_for_log("streaming", LONG_S)
                flushes_more(site, process, rng.randint(1, 4))
                time.sleep(rng.uniform(0, 0.5))
                process.kill9()
            bank.assert_slot_holds_what_is_missing()
    site.wait_until_nobody_leads()
    assert run_once(site, STALL_S=str(LONG_S)) == 0
    bank.assert_exact()
    assert_history_is_right(site)
    assert len(reader.versions) > len(fault_points)
    assert bank.rewrites > len(fault_points)
