"""Is a reader so far behind that the stream may soon forget what it needs? Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from penstock.model.stream_position import StreamPosition

LATE: Final = 0.5
"""Of the stream's retention: whoever is further behind than this is complained of."""
LEAST: Final = timedelta(hours=24)
"""No stream keeps records for less."""
KEEP_LONGER: Final = "aws kinesis increase-stream-retention-period"
CATCH_UP: Final = f"nothing, if that may be; else let them catch up from Postgres. And {KEEP_LONGER}"


def is_late(age: timedelta, retention: timedelta) -> bool:
    """Whether records of this age are needed for too long already."""
    return age >= LATE * retention


def late_sentence(who: str, age: timedelta, retention: timedelta) -> str:
    """What is said of somebody who needs records of this age."""
    return (
        f"{who} needs changes that came into the stream {_hours(age):.1f} h ago, which keeps records for"
        f" {_hours(retention):.0f} h. Fix: let it keep them longer ({KEEP_LONGER}) until the shape has caught"
        " up; else it is snapshotted again"
    )


def too_short(begins: StreamPosition, needed: StreamPosition) -> str:
    """What is said of manifests that don't reach back to what the tables hold."""
    return (
        f"they begin at {begins.described()}, and the slowest shape needs them from {needed.described()} on:"
        " all that are behind would be snapshotted again"
    )


def _hours(time: timedelta) -> float:
    return time.total_seconds() / 3600
