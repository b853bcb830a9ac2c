"""The clock by which leadership is judged."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def awake_or_asleep() -> float:
    """Seconds on a clock that never goes back, and that goes on while the machine sleeps.

    CLOCK_MONOTONIC stands still in a suspended machine: a leader that wakes up there would think that the
    server vouched for it a moment ago. (A hypervisor that pauses a guest without its knowledge stops both.)
    """
    return time.clock_gettime(_CLOCK)
