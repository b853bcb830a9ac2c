"""The slot in numbers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from penstock.status.model import SlotReading


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
        self._safe_bytes.set(float("inf") if slot.safe_bytes is None else slot.safe_bytes)
        self._confirmed_lsn.set(slot.confirmed_lsn)
        self._restart_lsn.set(slot.restart_lsn)
