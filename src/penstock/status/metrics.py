"""Every metric, with its name and its help text: of `penstock capture`, of `penstock shapes`, and of both."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Sequence
from contextlib import suppress

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.process_collector import ProcessCollector

from penstock.status.health import Phase
from penstock.status.model import SlotReading, Status
from penstock.status.shard_counts import ShardCounts
from penstock.status.wait_histogram import WaitHistogram

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class ServiceMetrics:
    """A registry of its own, and in it what every process that competes for a slot counts."""

    _behind_means = "since the commit of the oldest change that is not delivered; 0 if there is none"

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._phase = self._gauge("phase", "1 for the phase that the process is in", ["phase"])
        self._ready = self._gauge("ready", "1 if the process is ready, as /readyz says")
        self._behind_seconds = self._gauge("behind_seconds", self._behind_means)
        self._frontier_age_seconds = self._gauge(
            "frontier_age_seconds",
            "since when something is pending without headway, over all leaderships here; 0 if nothing is",
        )
        self._clock_offset_seconds = self._gauge(
            "clock_offset_seconds", "the server's clock minus ours; 0 before the server was asked"
        )
        self._credentials_expire_seconds = self._gauge(
            "credentials_expire_seconds",
            "until the AWS credentials at hand expire; +Inf: never, or none are known",
        )
        self.leaderships = self._counter("leaderships", "times this process became leader")
        self.slot_creations = self._counter("slot_creations", "times the replication slot had to be created")
        self._slot = SlotMetrics(self.registry)
        self._line_age_seconds = self._gauge("stream_line_age_seconds", "age of the last sign of leadership")
        self._received_lsn = self._gauge("stream_received_lsn", "the highest LSN heard of")
        self.dropped_by_server = self._counter(
            "stream_dropped_by_server",
            "updates and deletes that wal2json left out because their table has no replica identity",
        )
        self._frontier_lsn = self._gauge("frontier_lsn", "everything at or below it is durable")
        self._quarantined = self._counter(
            "undeliverable_quarantined", "records stored in quarantine since this process began"
        )
        self.quarantined = 0
        """As `undeliverable_quarantined`."""

    def exposition(self, status: Status) -> bytes:
        """The text for Prometheus: what was counted, and what the status says."""
        for each in Phase:
            self._phase.labels(each.value).set(each.value == status.phase)
        self._ready.set(status.ready)
        self._behind_seconds.set(status.behind_s)
        self._frontier_age_seconds.set(status.frontier_age_s)
        self._clock_offset_seconds.set(status.clock_offset_s or 0.0)
        expire_s = status.credentials_expire_s
        self._credentials_expire_seconds.set(math.inf if expire_s is None else expire_s)
        self._slot.take(status.slot)
        reading = status.capture or status.shapes
        if reading is not None:
            self._line_age_seconds.set(reading.line_age_s)
            self._received_lsn.set(reading.received_lsn)
            self._frontier_lsn.set(reading.frontier_lsn)
        self._take(status)
        return generate_latest(self.registry)

    def count_quarantined(self, records: int = 1) -> None:
        """So many more are in quarantine."""
        self._quarantined.inc(records)
        self.quarantined += records

    def _take(self, status: Status) -> None:
        """Take over what only this service has."""

    def _counter(self, name: str, what: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"penstock_{name}", what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"penstock_{name}", what, labels, registry=self.registry)


class SlotMetrics:
    """What pg_replication_slots says, as gauges, and how long ago it said so."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"penstock_slot_{name}", what, registry=registry)

        self._read_age = gauge(
            "read_age_seconds", "since the slot was read last: how old the other slot metrics are"
        )
        self._missing = gauge("missing", "1 if the server has no slot of that name")
        self._active = gauge("active", "1 if a walsender uses the slot")
        self._lost = gauge("lost", "1 if the slot's WAL is gone")
        self._retained_bytes = gauge("retained_bytes", "WAL that the slot keeps on the server")
        self._safe_bytes = gauge("safe_bytes", "WAL that may still be written before the slot is lost")
        self._confirmed_lsn = gauge("confirmed_lsn", "the slot's confirmed_flush_lsn")
        self._restart_lsn = gauge("restart_lsn", "the slot's restart_lsn")

    def take(self, slot: SlotReading) -> None:
        """Take over a reading."""
        self._read_age.set(slot.read_age_s)
        self._missing.set(slot.exists is False)
        self._active.set(slot.is_active)
        self._lost.set(slot.is_lost)
        self._retained_bytes.set(slot.retained_bytes)
        self._safe_bytes.set(math.inf if slot.safe_bytes is None else slot.safe_bytes)
        self._confirmed_lsn.set(slot.confirmed_lsn)
        self._restart_lsn.set(slot.restart_lsn)


class CaptureMetrics(ServiceMetrics):
    """What `penstock capture` counts and measures."""

    def __init__(self) -> None:
        super().__init__()
        counter, gauge = self._counter, self._gauge

        def histogram(name: str, what: str) -> Histogram:
            return Histogram(f"penstock_{name}", what, buckets=_LATENCY_BUCKETS, registry=self.registry)

        def waits(name: str, what: str) -> WaitHistogram:
            return WaitHistogram(
                (f"penstock_{name}_seconds", what),
                longest=(f"penstock_{name}_longest_seconds", f"the longest since the start: {what}"),
                buckets=_LATENCY_BUCKETS,
                registry=self.registry,
            )

        self.gaps = counter("gaps", "times changes are known to be missing from the stream")
        self.timeline = gauge("timeline", "the server's timeline, as the last leadership here met it")
        self.timeline_switches = counter(
            "timeline_switches", "times the server had another timeline than the leadership before"
        )

        self.changes = counter("stream_changes", "row changes read")
        self.transactions = counter("stream_transactions", "committed transactions read")
        self.messages = counter("stream_messages", "logical messages read, which are not published")
        self.stream_bytes = counter("stream_bytes", "bytes of records made from frames")

        self._pending = gauge("ack_pending", "entries between the frontier and the newest frame")
        self._queue_events = gauge("queue_events", "events that wait in the queue")
        self._inflight_bytes = gauge("inflight_bytes", "bytes read and not yet durable")

        self.records = counter("sink_records", "records accepted by Kinesis")
        self.accepted = 0
        """As `sink_records`."""
        self.record_bytes = counter("sink_bytes", "bytes accepted by Kinesis")
        self.shards = ShardCounts(
            accepted=("penstock_kinesis_shard_records", "records accepted by Kinesis, by shard"),
            throttled=(
                "penstock_kinesis_shard_throttles",
                "records that Kinesis failed because a shard is at its limit",
            ),
            registry=self.registry,
        )
        self.record_errors = counter("sink_record_errors", "records that Kinesis failed", ["code"])
        self.out_of_order = counter(
            "sink_out_of_order", "requests whose records Kinesis took in another order; these are sent again"
        )
        self.request_errors = counter("sink_request_errors", "requests that failed as a whole", ["code"])
        self.put_records_seconds = histogram("sink_put_records_seconds", "duration of PutRecords")
        self.batch_wait_seconds = histogram(
            "batch_wait_seconds", "from the socket to the first request, the oldest record of each request"
        )
        self.batcher_wait = waits("batcher_wait", "from the batcher's hands into a request, each record")
        self.loop_late = waits("loop_late", "a wake-up of the event loop against when it was due")
        self.read_to_accepted_seconds = histogram(
            "read_to_accepted_seconds", "from the socket to accepted, the oldest record of each request"
        )
        self.manifests = counter("manifests", "manifests of a marked stream that Kinesis has accepted")
        self.manifest_errors = counter("manifest_errors", "manifests that failed", ["code"])
        self.blocked = counter("undeliverable_blocked", "records that can't be delivered and block")

    def _take(self, status: Status) -> None:
        reading = status.capture
        # A leadership that is over holds nothing any more.
        self._pending.set(0 if reading is None else reading.pending)
        self._queue_events.set(0 if reading is None else reading.queue_events)
        self._inflight_bytes.set(0 if reading is None else reading.inflight_bytes)

    def count_accepted(self, records: int, size_bytes: int, oldest_s: float) -> None:
        """Kinesis has these records; the oldest of them was read so long ago."""
        self.records.inc(records)
        self.accepted += records
        self.record_bytes.inc(size_bytes)
        self.read_to_accepted_seconds.observe(oldest_s)

    def count_record_errors(self, codes: Sequence[str | None]) -> None:
        """An error code, or None, for each record of a request."""
        for code, times in Tally(code for code in codes if code is not None).items():
            self.record_errors.labels(code).inc(times)


class ShapesMetrics(ServiceMetrics):
    """What `penstock shapes` counts and measures."""

    _behind_means = "since the oldest change was read that is not in its shape's table; 0 if there is none"

    def __init__(self) -> None:
        super().__init__()
        counter, gauge = self._counter, self._gauge
        self._transactions = gauge("log_transactions", "transactions read in this leadership")
        self._changes = gauge("log_changes", "changes that this leadership put into the log")
        self._log_bytes = gauge("log_bytes", "size of the log of changes")
        self._log_full = gauge("log_full", "1 while reading waits for room in the log")
        self._expires = gauge(
            "source_expires_seconds",
            "until the stream forgets changes that a shape still needs; infinite without a stream",
        )
        self._retention = gauge("source_retention_seconds", "for how long the stream keeps records")
        self.snapshots_needed = counter(
            "shape_snapshots_needed", "times a shape had to be snapshotted", ["shape"]
        )
        self._offset_lsn = gauge("shape_offset_lsn", "what the shape's table holds", ["shape"])
        self._lag_bytes = gauge("shape_lag_bytes", "WAL that the shape's table is behind", ["shape"])
        self._lag_seconds = gauge(
            "shape_lag_seconds", "age of the oldest transaction that is not in the shape's table", ["shape"]
        )
        self._rows = gauge("shape_rows", "changes applied and rows copied in this leadership", ["shape"])
        self._failing = gauge("shape_failing", "1 if the shape's last job failed", ["shape"])

    def forget(self, shape: str) -> None:
        """A shape is no longer in the file."""
        for gauge in (self._offset_lsn, self._lag_bytes, self._lag_seconds, self._rows, self._failing):
            # A shape that this process never led has none of them.
            with suppress(KeyError):
                gauge.remove(shape)

    def _take(self, status: Status) -> None:
        source, reading = status.source, status.shapes
        expires_s = None if source is None else source.expires_s
        self._expires.set(math.inf if expires_s is None else expires_s)
        self._retention.set(0.0 if source is None else source.retention_s or 0.0)
        if reading is None:
            return
        self._transactions.set(reading.transactions)
        self._changes.set(reading.changes)
        self._log_bytes.set(reading.log_bytes)
        self._log_full.set(reading.log_is_full)
        for shape in reading.shapes:
            self._offset_lsn.labels(shape.name).set(max(0, shape.offset_lsn))
            self._lag_bytes.labels(shape.name).set(shape.lag_bytes)
            self._lag_seconds.labels(shape.name).set(shape.lag_s)
            self._rows.labels(shape.name).set(shape.rows)
            self._failing.labels(shape.name).set(shape.error is not None)
