"""Issue 8, point 14: leadership is judged by a clock that a sleeping machine doesn't stop."""

from __future__ import annotations

import subprocess
import sys
import time

from penstock.clock import awake_or_asleep

ASLEEP_S = 1_000


def test_it_is_the_clock_that_counts_sleep() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before <= awake_or_asleep() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_sleep_makes_a_line_stale() -> None:
    """A time namespace in which the machine has slept: only that clock is ahead there."""
    code = "import time, penstock.clock; print(penstock.clock.awake_or_asleep() - time.monotonic())"
    enter = ["unshare", "--user", "--map-root-user", "--time", "--boottime", str(ASLEEP_S), "--fork"]
    own = awake_or_asleep() - time.monotonic()

    asleep = subprocess.run([*enter, sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert abs(float(asleep.stdout) - own - ASLEEP_S) < 1
