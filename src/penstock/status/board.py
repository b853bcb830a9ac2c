"""StatusBoard: where the parts of a service leave what they know, and from which its Status is read."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.clock import awake_or_asleep
from penstock.postgres.slot.state import SlotState
from penstock.status.health import Health
from penstock.status.model import CaptureReading, ShapesReading, SlotReading, Status

Leading = Callable[[], CaptureReading | ShapesReading]


class StatusBoard:
    """One a process. `read` asks a leader for its numbers at that moment; nothing is sampled ahead."""

    def __init__(self, service: str, health: Health, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._health = health
        self._clock = clock
        self._slot: SlotState | None = None
        self._slot_read_at = clock()
        self._slot_was_read = False
        self._leading: Leading | None = None

    def note_slot(self, slot: SlotState | None, asked_at: float) -> None:
        """The server was asked for the slot at that moment, and has this one, or none."""
        self._slot, self._slot_read_at, self._slot_was_read = slot, asked_at, True

    def lead(self, leading: Leading) -> None:
        """This process leads, and can be asked what it does."""
        self._leading = leading

    def rest(self) -> None:
        """It leads no more."""
        self._leading = None

    def read(self) -> Status:
        """The status now."""
        ready, phase, reasons = self._health.readiness(awake_or_asleep())
        reading = None if self._leading is None else self._leading()
        return Status(
            service=self._service,
            phase=phase.value,
            ready=ready,
            reasons=reasons,
            slot=self._slot_reading(),
            capture=reading if isinstance(reading, CaptureReading) else None,
            shapes=reading if isinstance(reading, ShapesReading) else None,
        )

    def _slot_reading(self) -> SlotReading:
        age_s, slot = self._clock() - self._slot_read_at, self._slot
        if slot is None:
            return SlotReading(age_s, exists=False if self._slot_was_read else None)
        return SlotReading(
            age_s,
            exists=True,
            is_active=slot.active_pid is not None,
            is_lost=slot.wal_status == "lost",
            retained_bytes=slot.retained_bytes or 0,
            safe_bytes=slot.safe_wal_bytes,
            confirmed_lsn=slot.confirmed_flush_lsn or 0,
            restart_lsn=slot.restart_lsn or 0,
        )
