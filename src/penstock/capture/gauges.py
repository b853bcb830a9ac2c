"""Gauges: what the parts hold: once a second for health, and for the status when that is asked for."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.capture.wiring import Pipeline
from penstock.clock import awake_or_asleep
from penstock.postgres.leader.freshness import Freshness
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics
from penstock.status.model import CaptureReading

_INTERVAL_S: Final = 1.0


class Gauges:
    """Reads the pipeline's state, so that its hot path doesn't have to report."""

    def __init__(
        self, pipeline: Pipeline, freshness: Freshness, health: Health, metrics: CaptureMetrics
    ) -> None:
        self._pipeline = pipeline
        self._freshness = freshness
        self._health = health
        self._metrics = metrics
        self._reported = (0, 0, 0, 0)
        self._delivered_lsn = 0

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample(awake_or_asleep())
            await asyncio.sleep(_INTERVAL_S)

    def sample(self, now: float) -> None:
        """Take over the current state."""
        pipeline, tracker = self._pipeline, self._pipeline.tracker
        # What counts is what Postgres may be told: accepted records that are not noted are pending, too.
        behind = pipeline.noted.is_behind or (pipeline.marker is not None and pipeline.marker.is_behind)
        self._health.note_frontier(
            pipeline.noted.frontier_lsn,
            tracker.pending_count + behind,
            now,
            done=0 if behind else tracker.done_count,
        )
        self._count()

    def reading(self) -> CaptureReading:
        """What the leadership does now."""
        tracker, queue = self._pipeline.tracker, self._pipeline.queue
        delivered_lsn = self._delivered()
        undelivered = self._pipeline.intake.commit_times.oldest(delivered_lsn)
        return CaptureReading(
            line_age_s=self._freshness.age_s(awake_or_asleep()),
            received_lsn=self._pipeline.walk.received_lsn,
            frontier_lsn=delivered_lsn,
            pending=tracker.pending_count,
            queue_events=queue.qsize(),
            inflight_bytes=queue.bytes_inflight,
            records=self._metrics.accepted,
            oldest_lsn=0 if undelivered is None else undelivered.commit_lsn,
            oldest_committed_at=None if undelivered is None else undelivered.committed_at,
            quarantined=self._metrics.quarantined,
            pending_limit=self._pipeline.intake.window,
            queue_limit=queue.max_messages,
            inflight_limit_bytes=queue.max_bytes,
        )

    def _delivered(self) -> int:
        """The frontier; in a marked stream a record that no manifest speaks of is not delivered."""
        marker, tracker = self._pipeline.marker, self._pipeline.tracker
        now = tracker.frontier_lsn if marker is None else marker.delivered_lsn()
        # Manifests may lag behind a stretch without records, which was delivered all the same.
        self._delivered_lsn = max(self._delivered_lsn, now)
        return self._delivered_lsn

    def _count(self) -> None:
        totals, metrics = self._pipeline.intake.totals, self._metrics
        counters = (
            metrics.changes,
            metrics.transactions,
            metrics.messages,
            metrics.stream_bytes,
        )
        now = (totals.changes, totals.transactions, self._pipeline.walk.messages, totals.bytes)
        for counter, value, before in zip(counters, now, self._reported, strict=True):
            counter.inc(value - before)
        self._reported = now
