"""Gauges: what is shown of a pipeline whose parts are in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from penstock.capture.commit_times import CommitTimes
from penstock.capture.gauges import Gauges
from penstock.capture.wiring import Pipeline
from penstock.postgres.leader.freshness import Freshness
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics
from penstock.status.model import CaptureReading


class Marker:
    delivered = 100

    def delivered_lsn(self) -> int:
        return self.delivered


class Shown:
    """Two transactions were read and accepted, up to 130."""

    def __init__(self, marker: Marker | None) -> None:
        times = CommitTimes()
        times.note(110, 1_000.0)
        times.note(120, 2_000.0)
        self.tracker = SimpleNamespace(frontier_lsn=130, pending_count=0)
        pipeline = SimpleNamespace(
            tracker=self.tracker,
            marker=marker,
            queue=SimpleNamespace(qsize=lambda: 0, bytes_inflight=0, max_messages=9, max_bytes=9),
            intake=SimpleNamespace(commit_times=times, window=9),
            walk=SimpleNamespace(received_lsn=140),
        )
        freshness = Freshness(limit_s=3.0, now=0.0)
        self._gauges = Gauges(cast(Pipeline, pipeline), freshness, Health(), CaptureMetrics())

    def __call__(self) -> tuple[int, int, float | None]:
        reading: CaptureReading = self._gauges.reading()
        return reading.frontier_lsn, reading.oldest_lsn, reading.oldest_committed_at


def test_in_a_plain_stream_what_is_accepted_is_delivered() -> None:
    assert Shown(None)() == (130, 0, None)


@pytest.mark.parametrize(
    ("delivered", "oldest"),
    [(100, (110, 1_000.0)), (115, (120, 2_000.0)), (130, (0, None))],
    ids=["no manifest yet", "one", "all"],
)
def test_in_a_marked_stream_what_no_manifest_speaks_of_is_late(
    delivered: int, oldest: tuple[int, float | None]
) -> None:
    marker = Marker()
    marker.delivered = delivered
    assert Shown(marker)() == (delivered, *oldest)


def test_what_was_delivered_stays_so() -> None:
    """At rest manifests come every ten seconds, and the next record waits for one that says where it is."""
    marker = Marker()
    marker.delivered = 130
    shown = Shown(marker)
    shown()
    marker.delivered = 100
    assert shown() == (130, 0, None)
