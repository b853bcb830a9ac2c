"""Health: what this process is doing, and whether that is all right."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from penstock.postgres.freshness import Freshness

STALLED_AFTER_S: Final = 30.0


class Phase(StrEnum):
    """Where the process is in its life. Set by the capture app; nothing of it survives a restart."""

    STARTING = "starting"
    """Nothing has been tried yet."""
    STANDBY = "standby"
    """Another process leads; waiting for the lock."""
    PREPARING = "preparing"
    """The lock is ours; slot and stream are being set up."""
    STREAMING = "streaming"
    """Leading."""
    DRAINING = "draining"
    """SIGTERM came; what was read is being delivered."""
    WAITING = "waiting"
    """Something failed; waiting to try again."""
    SINK_DOWN = "sink_down"
    """The destination doesn't answer; the slot is free for others until it does."""
    STOPPED = "stopped"


class Fault(StrEnum):
    """Conditions that make a process unready until they end."""

    POSTGRES = "postgres"
    SERVICE = "service"
    """Something else that a leadership needs, such as its storage or its log; the sentence says what."""
    SINK = "sink"
    """The destination doesn't answer a probe; set and cleared by the capture app."""
    STREAM = "stream"
    """The stream refuses what a leader sends; cleared by an accepted record, or when another leads."""
    BLOCKED = "blocked"
    QUARANTINE = "quarantine"
    SHAPE = "shape"
    """A shape makes no progress, or the log of changes is full."""


class Readiness(NamedTuple):
    """An answer for `/readyz`."""

    ready: bool
    phase: Phase
    reasons: list[str]


_READY_PHASES: Final = frozenset({Phase.STANDBY, Phase.STREAMING})


class Health:
    """Collects what the parts report and answers probes. Time is an argument."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._faults: dict[Fault, str] = {}
        self._line: Freshness | None = None
        self._frontier = 0
        self._pending = 0
        self._moved_at = 0.0

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """A new phase begins."""
        self._phase = phase

    def start_streaming(self, line: Freshness, now: float) -> None:
        """This process leads from now on, on this line."""
        self._phase = Phase.STREAMING
        self._line = line
        self._moved_at = now
        self.clear_leadership_faults()

    def set_fault(self, fault: Fault, sentence: str) -> None:
        """A condition holds, with the sentence for the operator."""
        self._faults[fault] = sentence

    def clear_fault(self, fault: Fault) -> None:
        """A condition has ended."""
        self._faults.pop(fault, None)

    def clear_leadership_faults(self) -> None:
        """What kept this process from leading is over, or somebody else's affair."""
        self.clear_fault(Fault.POSTGRES)
        self.clear_fault(Fault.SERVICE)

    def end_leadership(self) -> None:
        """What only a leader can suffer from is over; another may lead now."""
        for fault in (Fault.BLOCKED, Fault.QUARANTINE, Fault.SHAPE):
            self.clear_fault(fault)

    def note_frontier(self, frontier_lsn: int, pending: int, now: float) -> None:
        """Where the frontier is, and how much waits behind it; called every second while leading."""
        if frontier_lsn != self._frontier or pending == 0:
            self._moved_at = now
        self._frontier = frontier_lsn
        self._pending = pending

    def readiness(self, now: float) -> Readiness:
        """Ready is a leader with a fresh line and a frontier that moves or nothing pending, or a standby."""
        reasons = [f"{fault}: {sentence}" for fault, sentence in self._faults.items()]
        if self._phase not in _READY_PHASES:
            reasons.append(f"phase is {self._phase}")
        if self._phase is Phase.STREAMING:
            assert self._line is not None, "a leader has a line"
            if not self._line.is_fresh(now):
                reasons.append(f"no sign of leadership for {self._line.age_s(now):.0f} s")
            if self._pending and now - self._moved_at > STALLED_AFTER_S:
                reasons.append(
                    f"the frontier stands still for {now - self._moved_at:.0f} s with {self._pending} pending"
                )
        return Readiness(not reasons, self._phase, reasons)
