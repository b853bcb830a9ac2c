"""History: the last hour in a few numbers, for the page's charts."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from penstock.status.model import CaptureReading, Status
from penstock.status.pace import Pace

INTERVAL_S: Final = 10.0
KEPT_S: Final = 3600.0

SERIES: Final = ("behind_s", "lag_bytes", "rate", "fill", "retained_bytes", "log_bytes", "failing")
"""What a point holds, in this order."""


class Point(NamedTuple):
    """One moment; None where there is nothing to measure."""

    at: int
    """Unix seconds."""
    values: tuple[float | None, ...]


class History:
    """Takes a status now and then, and keeps what is needed of it in bounded memory. Time is an argument.

    1. Points are at least INTERVAL_S apart: a status that comes sooner is left out.
    2. Those older than KEPT_S are forgotten; there are never more than fit into that time.
    3. A clock that was set back takes its points with it: time only ever goes on.
    4. A rate is that since the point before, as Pace says.
    """

    def __init__(self, *, interval_s: float = INTERVAL_S, kept_s: float = KEPT_S) -> None:
        self._interval_s = interval_s
        self._kept_s = kept_s
        self._points: deque[Point] = deque(maxlen=int(kept_s / interval_s) + 1)
        self._pace = Pace(interval_s - 1)

    @property
    def points(self) -> list[Point]:
        """The oldest first."""
        return list(self._points)

    def take(self, status: Status, at: float) -> Point | None:
        """Keep this status; returns its point, or None if the last one is too near."""
        points = self._points
        while points and points[-1].at > at:
            points.pop()
        if points and at - points[-1].at < self._interval_s - 1:
            return None
        while points and at - points[0].at > self._kept_s:
            points.popleft()
        point = Point(int(at), self._values(status, at))
        points.append(point)
        return point

    def _values(self, status: Status, at: float) -> tuple[float | None, ...]:
        capture, shapes = status.capture, status.shapes
        leading = capture or shapes
        return tuple(
            None if value is None else float(f"{value:.4g}")
            for value in (
                None if status.leader is not None else status.behind_s,
                None if leading is None else max(0, leading.received_lsn - leading.frontier_lsn),
                self._pace.note(status.counted, at),
                None if capture is None else _fill(capture),
                status.slot.retained_bytes if status.slot.exists else None,
                None if shapes is None else shapes.log_bytes,
                None if shapes is None else sum(shape.error is not None for shape in shapes.shapes),
            )
        )


def _fill(reading: CaptureReading) -> float:
    """The fullest of the limits at which reading pauses, in percent."""
    shares = (
        (reading.pending, reading.pending_limit),
        (reading.queue_events, reading.queue_limit),
        (reading.inflight_bytes, reading.inflight_limit_bytes),
    )
    return 100 * max(used / limit if limit else 0.0 for used, limit in shares)
