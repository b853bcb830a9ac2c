"""What counts of a time that tests measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.stopwatch import Stopwatch, fair_s, waited_s


@pytest.mark.parametrize(
    ("seconds", "waited", "counts"),
    [(2.0, 0.0, 2.0), (2.0, 0.5, 1.5), (3.0, 2.0, 1.0), (3.0, 2.5, 1.0), (3.0, 9.0, 1.0)],
)
def test_waiting_for_a_processor_does_not_count_but_a_third_always_does(
    seconds: float, waited: float, counts: float
) -> None:
    assert fair_s(seconds, waited) == pytest.approx(counts)


def test_what_the_kernel_tells(tmp_path: Path) -> None:
    told = tmp_path / "cpu"
    told.write_text(
        "some avg10=77.27 avg60=69.12 avg300=52.16 total=7235456363\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=11\n"
    )
    assert waited_s(told) == 7235.456363
    assert waited_s(tmp_path / "no such kernel") == 0


def test_no_more_counts_than_has_passed() -> None:
    watch = Stopwatch()
    assert 0 <= watch.seconds < 60
    assert 0.9 / 3 <= watch.fair(0.9) <= 0.9
