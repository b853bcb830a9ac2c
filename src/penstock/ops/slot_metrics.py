"""The slot in numbers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from penstock.postgres.slot import SlotState


class SlotMetrics:
    """What pg_replication_slots says, as gauges."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"penstock_slot_{name}", what, registry=registry)

        self._active = gauge("active", "1 if a walsender uses the slot")
        self._lost = gauge("lost", "1 if the slot's WAL is gone")
        self._retained_bytes = gauge("retained_bytes", "WAL that the slot keeps on the server")
        self._safe_bytes = gauge("safe_bytes", "WAL that may still be written before the slot is lost")
        self._confirmed_lsn = gauge("confirmed_lsn", "the slot's confirmed_flush_lsn")
        self._restart_lsn = gauge("restart_lsn", "the slot's restart_lsn")

    def note(self, slot: SlotState) -> None:
        """Take over a slot's state."""
        self._active.set(slot.active_pid is not None)
        self._lost.set(slot.wal_status == "lost")
        self._retained_bytes.set(slot.retained_bytes or 0)
        self._safe_bytes.set(float("inf") if slot.safe_wal_bytes is None else slot.safe_wal_bytes)
        self._confirmed_lsn.set(slot.confirmed_flush_lsn or 0)
        self._restart_lsn.set(slot.restart_lsn or 0)
