"""Every metric of `penstock capture`, and its name."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import Histogram

from penstock.status.model import Status
from penstock.status.service_metrics import ServiceMetrics
from penstock.status.shard_counts import ShardCounts
from penstock.status.wait_histogram import WaitHistogram

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class CaptureMetrics(ServiceMetrics):
    """What `penstock capture` counts and measures."""

    def __init__(self) -> None:
        super().__init__()
        counter, gauge = self._counter, self._gauge

        def histogram(name: str, what: str) -> Histogram:
            return Histogram(f"penstock_{name}", what, buckets=_LATENCY_BUCKETS, registry=self.registry)

        def waits(name: str, what: str) -> WaitHistogram:
            return WaitHistogram(f"penstock_{name}", what, buckets=_LATENCY_BUCKETS, registry=self.registry)

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
        self.shards = ShardCounts(self.registry)
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
