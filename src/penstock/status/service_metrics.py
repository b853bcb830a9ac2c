"""What the metrics of `penstock capture` and of `penstock shapes` have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest
from prometheus_client.process_collector import ProcessCollector

from penstock.status.health import Phase
from penstock.status.model import Status
from penstock.status.slot_metrics import SlotMetrics


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
