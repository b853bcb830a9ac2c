"""Every metric of `penstock shapes`, and its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.process_collector import ProcessCollector

from penstock.ops.health import Phase
from penstock.ops.slot_metrics import SlotMetrics
from penstock.postgres.freshness import Freshness

if TYPE_CHECKING:
    from penstock.shapes.pipeline import ShapesPipeline


class ShapesMetrics:
    """What `penstock shapes` counts and measures."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, what: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"penstock_{name}", what, labels, registry=registry)

        def gauge(name: str, what: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"penstock_{name}", what, labels, registry=registry)

        self._phase = gauge("phase", "1 for the phase that the process is in", ["phase"])
        self.leaderships = counter("leaderships", "times this process became leader")
        self.slot_creations = counter("slot_creations", "times the replication slot had to be created")
        self.slot = SlotMetrics(registry)
        self.dropped_by_server = counter(
            "stream_dropped_by_server",
            "updates and deletes that wal2json left out for want of a replica identity",
        )
        self._line_age_seconds = gauge("stream_line_age_seconds", "age of the last sign of leadership")
        self._received_lsn = gauge("stream_received_lsn", "the highest LSN heard of")
        self._frontier_lsn = gauge("frontier_lsn", "everything at or below it is durable")
        self._transactions = gauge("log_transactions", "transactions read in this leadership")
        self._changes = gauge("log_changes", "changes that this leadership put into the log")
        self._log_bytes = gauge("log_bytes", "size of the log of changes")
        self._log_full = gauge("log_full", "1 while reading waits for room in the log")
        self.snapshots_needed = counter(
            "shape_snapshots_needed", "times a shape had to be snapshotted, at a start", ["shape"]
        )
        self._offset_lsn = gauge("shape_offset_lsn", "what the shape's table holds", ["shape"])
        self._lag_bytes = gauge("shape_lag_bytes", "WAL that the shape's table is behind", ["shape"])
        self._lag_seconds = gauge(
            "shape_lag_seconds", "age of the oldest transaction that is not in the shape's table", ["shape"]
        )
        self._rows = gauge("shape_rows", "changes applied and rows copied in this leadership", ["shape"])
        self._failing = gauge("shape_failing", "1 if the shape's last job failed", ["shape"])

    def set_phase(self, phase: Phase) -> None:
        """The process is in this phase and in no other."""
        for each in Phase:
            self._phase.labels(each.value).set(each is phase)

    def note(self, pipeline: ShapesPipeline, freshness: Freshness, now: float) -> None:
        """Take over the current state of a leadership."""
        ledger = pipeline.ledger
        self._line_age_seconds.set(freshness.age_s(now))
        self._received_lsn.set(ledger.collector.received_lsn)
        self._frontier_lsn.set(ledger.tracker.frontier_lsn)
        self._transactions.set(ledger.transactions)
        self._changes.set(ledger.changes)
        self._log_bytes.set(ledger.log.size_bytes)
        self._log_full.set(pipeline.reader.is_paused)
        for line in pipeline.lines(now):
            shape = line.status.shape
            self._offset_lsn.labels(shape).set(max(0, line.status.offset.tx_offset))
            self._lag_bytes.labels(shape).set(line.lag_bytes)
            self._lag_seconds.labels(shape).set(line.status.pending_s)
            self._rows.labels(shape).set(line.rows)
            self._failing.labels(shape).set(line.status.error is not None)

    def exposition(self) -> bytes:
        """The text for Prometheus."""
        return generate_latest(self.registry)
