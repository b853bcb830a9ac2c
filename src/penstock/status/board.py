"""StatusBoard: where the parts of a service leave what they know, and from which its Status is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from penstock.clock import awake_or_asleep
from penstock.postgres.slot.state import SlotState, slot_lost
from penstock.status.health import Fault, Health, Phase
from penstock.status.lateness import Lateness
from penstock.status.model import CaptureReading, ShapesReading, SlotReading, SourceReading, Status
from penstock.status.pace import Pace

Reading = CaptureReading | ShapesReading
Leading = Callable[[], Reading]

_RATE_OVER_S: Final = 10.0


class StatusBoard:
    """One a process. `read` asks a leader for its numbers at that moment; nothing is sampled ahead."""

    def __init__(
        self,
        service: str,
        health: Health,
        clock: Callable[[], float] = time.monotonic,
        *,
        wall_clock: Callable[[], float] = time.time,
        credentials_expire_at: Callable[[], float | None] = lambda: None,
        source: SourceReading | None = None,
    ) -> None:
        """`credentials_expire_at`: by the wall clock. `source`: the stream that is read instead of a slot."""
        self._service = service
        self._health = health
        self._clock = clock
        self._wall_clock = wall_clock
        self._credentials_expire_at = credentials_expire_at
        self._named_source = self._source = source
        self._slot: SlotState | None = None
        self._slot_read_at = clock()
        self._slot_was_read = False
        self._clock_offset_s: float | None = None
        self._lateness = Lateness()
        self._pace = Pace(_RATE_OVER_S)
        self._leading: Leading | None = None

    def note_slot(self, slot: SlotState | None, asked_at: float) -> None:
        """The server was asked for the slot at that moment, and has this one, or none.

        Beside a stream it is one that was left behind: it may be lost, or gone, and nobody lacks it.
        """
        if self._named_source is not None and slot is not None and slot.is_lost:
            slot = None
        self._slot, self._slot_read_at, self._slot_was_read = slot, asked_at, True
        if slot is not None and slot.is_lost:
            self._health.set_fault(Fault.LOST, str(slot_lost(slot.name)))
        else:
            self._health.clear_fault(Fault.LOST)

    @property
    def slot(self) -> SlotState | None:
        """As the server had it last."""
        return self._slot

    def note_source(self, retention_s: float, needed_s: float) -> None:
        """A leader knows for how long its stream keeps records, and how old those are that it still needs."""
        if self._named_source is not None:
            self._source = replace(self._named_source, retention_s=retention_s, needed_s=needed_s)

    def note_clock(self, offset_s: float) -> None:
        """By so much is the server's clock ahead of ours."""
        self._clock_offset_s = offset_s

    def lead(self, leading: Leading) -> None:
        """This process leads, and can be asked what it does."""
        self._pace.forget()
        self._leading = leading

    def rest(self) -> None:
        """It leads no more. What it leaves undelivered is remembered."""
        self._take_reading()
        self._leading = None
        self._source = self._named_source

    def forget_positions(self) -> None:
        """The server has another history: its LSNs can't be compared with those before."""
        self._lateness.forget()

    def read(self) -> Status:
        """The status now."""
        now = awake_or_asleep()
        ready, phase, reasons = self._health.readiness(now)
        if phase is Phase.STANDBY:
            self._lateness.forget()
        reading = self._take_reading()
        expire_at = self._credentials_expire_at()
        status = Status(
            service=self._service,
            phase=phase.value,
            ready=ready,
            reasons=reasons,
            slot=self._slot_reading(),
            leader=self._health.leader,
            behind_s=self._lateness.behind_s(self._server_now()),
            frontier_age_s=self._health.frontier_age_s(now),
            clock_offset_s=self._clock_offset_s,
            credentials_expire_s=None if expire_at is None else expire_at - self._wall_clock(),
            capture=reading if isinstance(reading, CaptureReading) else None,
            shapes=reading if isinstance(reading, ShapesReading) else None,
            source=self._source,
        )
        return replace(status, rate_per_s=self._pace.note(status.counted, self._clock()))

    def _server_now(self) -> float:
        return self._wall_clock() + (self._clock_offset_s or 0.0)

    def _take_reading(self) -> Reading | None:
        if self._leading is None:
            return None
        reading = self._leading()
        if isinstance(reading, CaptureReading):
            self._lateness.note(reading.frontier_lsn, reading.oldest_lsn, reading.oldest_committed_at)
        else:
            lag_s = max((shape.lag_s for shape in reading.shapes), default=0.0)
            # Whoever is behind holds the frontier, unless it is parked.
            self._lateness.note(
                reading.received_lsn, reading.frontier_lsn, self._server_now() - lag_s if lag_s else None
            )
        return reading

    def _slot_reading(self) -> SlotReading:
        if self._source is not None and self._slot is None:
            # There need not be one: that is no trouble of the server's.
            return SlotReading(0.0)
        age_s, slot = self._clock() - self._slot_read_at, self._slot
        if slot is None:
            return SlotReading(age_s, exists=False if self._slot_was_read else None)
        return SlotReading(
            age_s,
            exists=True,
            is_active=slot.active_pid is not None,
            is_lost=slot.is_lost,
            retained_bytes=slot.retained_bytes or 0,
            safe_bytes=slot.safe_wal_bytes,
            confirmed_lsn=slot.confirmed_flush_lsn or 0,
            restart_lsn=slot.restart_lsn or 0,
        )
