"""Gauges: once a second, what the parts hold, for metrics and health."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.capture.wiring import Pipeline
from penstock.clock import awake_or_asleep
from penstock.postgres.leader.freshness import Freshness
from penstock.status.capture_metrics import CaptureMetrics
from penstock.status.health import Health

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

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            self.sample(awake_or_asleep())
            await asyncio.sleep(_INTERVAL_S)

    def sample(self, now: float) -> None:
        """Take over the current state."""
        pipeline, metrics = self._pipeline, self._metrics
        tracker, queue = pipeline.tracker, pipeline.queue
        metrics.line_age_seconds.set(self._freshness.age_s(now))
        metrics.received_lsn.set(pipeline.walk.received_lsn)
        metrics.frontier_lsn.set(tracker.frontier_lsn)
        metrics.pending.set(tracker.pending_count)
        metrics.queue_events.set(queue.qsize())
        metrics.inflight_bytes.set(queue.bytes_inflight)
        # What counts is what Postgres may be told: accepted records that are not noted are pending, too.
        behind = pipeline.noted.is_behind
        self._health.note_frontier(
            pipeline.noted.frontier_lsn,
            tracker.pending_count + behind,
            now,
            done=0 if behind else tracker.done_count,
        )
        self._count()

    def leave(self) -> None:
        """The leadership is over: what it held is held no more."""
        for gauge in (self._metrics.pending, self._metrics.queue_events, self._metrics.inflight_bytes):
            gauge.set(0)

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
