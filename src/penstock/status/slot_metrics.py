"""The slot in numbers."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from penstock.postgres.slot.state import SlotState


class SlotMetrics:
    """What pg_replication_slots says, as gauges, and how long ago it said so."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"penstock_slot_{name}", what, registry=registry)

        self._read_at = clock()
        age = gauge("read_age_seconds", "since the slot was read last: how old the other slot metrics are")
        age.set_function(lambda: clock() - self._read_at)
        self._missing = gauge("missing", "1 if the server has no slot of that name")
        self._active = gauge("active", "1 if a walsender uses the slot")
        self._lost = gauge("lost", "1 if the slot's WAL is gone")
        self._retained_bytes = gauge("retained_bytes", "WAL that the slot keeps on the server")
        self._safe_bytes = gauge("safe_bytes", "WAL that may still be written before the slot is lost")
        self._confirmed_lsn = gauge("confirmed_lsn", "the slot's confirmed_flush_lsn")
        self._restart_lsn = gauge("restart_lsn", "the slot's restart_lsn")

    def note(self, slot: SlotState | None, read_at: float) -> None:
        """Take over a slot's state, or that there is none."""
        self._read_at = read_at
        self._missing.set(slot is None)
        self._active.set(slot is not None and slot.active_pid is not None)
        self._lost.set(slot is not None and slot.wal_status == "lost")
        self._retained_bytes.set(0 if slot is None else slot.retained_bytes or 0)
        safe = None if slot is None else slot.safe_wal_bytes
        self._safe_bytes.set(float("inf") if safe is None else safe)
        self._confirmed_lsn.set(0 if slot is None else slot.confirmed_flush_lsn or 0)
        self._restart_lsn.set(0 if slot is None else slot.restart_lsn or 0)
