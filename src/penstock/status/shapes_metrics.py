"""Every metric of `penstock shapes`, and its name."""

from __future__ import annotations

from contextlib import suppress

from penstock.status.model import Status
from penstock.status.service_metrics import ServiceMetrics


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
        self._expires.set(float("inf") if expires_s is None else expires_s)
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
