"""Health: what this process is doing, and whether that is all right."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from penstock.postgres.leader.freshness import Freshness
from penstock.status.headway import STALLED_AFTER_S, Headway

DOUBT_S: Final = 10.0
"""How much longer than those that failed a leadership must last before it is believed to be well."""


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
    KEYS = "keys"
    """Kinesis answers, but fails some keys for long; set and cleared by the publisher."""
    MARKS = "marks"
    """Manifests are refused; cleared by an accepted one, or when another leads."""
    SLOT = "slot"
    """Nobody reads the slot though somebody holds its lock."""
    LOST = "lost"
    """The slot is lost; set and cleared by whoever reads its state, in every phase."""
    NOTE = "note"
    """The slot's note can't be written; cleared when it is, or with the leadership."""
    DROPPED = "dropped"
    """The server left changes out of the stream; until the process ends, since they stay missing."""
    BLOCKED = "blocked"
    QUARANTINE = "quarantine"
    SHAPE = "shape"
    """A shape makes no progress, or the log of changes is full."""
    SOURCE = "source"
    """Nothing comes from the stream that shapes read; cleared when something does, or with the leadership."""


class _Doubt(NamedTuple):
    """Leaderships before this one ended without headway; this one has to show that it is better."""

    sentence: str
    needed_s: float


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
        self._headway = Headway()
        self._pending = 0
        self._led_since = 0.0
        self._doubt: _Doubt | None = None
        self._leader: str | None = None

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def leader(self) -> str | None:
        """Who leads, while this process stands by, as far as it is known."""
        return self._leader if self._phase is Phase.STANDBY else None

    def enter(self, phase: Phase) -> None:
        """A new phase begins."""
        self._phase = phase

    def start_streaming(self, line: Freshness, now: float) -> None:
        """This process leads from now on, on this line."""
        self._phase = Phase.STREAMING
        self._line = line
        self._led_since = now
        self._pending = 0
        self._headway.begin()
        self.clear_leadership_faults()
        self.clear_fault(Fault.SLOT)
        self.clear_fault(Fault.LOST)

    def stand_by(self, leader: str | None = None) -> None:
        """Another leads, and this is its name: what ailed this process as a leader is over."""
        self._phase = Phase.STANDBY
        self._leader = leader
        self._headway.rest()
        self._doubt = None
        self.clear_leadership_faults()
        self.clear_fault(Fault.STREAM)
        self.clear_fault(Fault.MARKS)

    def doubt(self, sentence: str, *, longest_s: float) -> None:
        """Leaderships end one after the other; the longest of them lasted `longest_s`.

        The next one counts as well only when it makes headway, or when it has lasted longer than they did.
        """
        self._doubt = _Doubt(sentence, longest_s + DOUBT_S)

    def forget_positions(self) -> None:
        """The server has another history: its LSNs can't be compared with those before."""
        self._headway.forget_positions()

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
        of_leaders = (Fault.NOTE, Fault.BLOCKED, Fault.QUARANTINE, Fault.SHAPE, Fault.SOURCE)
        for fault in of_leaders:
            self.clear_fault(fault)

    def note_frontier(self, frontier_lsn: int, pending: int, now: float, *, done: int = 0) -> None:
        """Where the frontier is, what is done and what waits behind it; called every second while leading."""
        if self._headway.note(frontier_lsn, done, pending, now) or self._has_outlasted_doubt(now):
            self._doubt = None
        self._pending = pending

    def _has_outlasted_doubt(self, now: float) -> bool:
        return self._doubt is not None and now - self._led_since >= self._doubt.needed_s

    def frontier_age_s(self, now: float) -> float:
        """Since when something is pending without headway, over leaderships; 0 if nothing is."""
        return self._headway.stalled_s(now)

    def readiness(self, now: float) -> Readiness:
        """Ready is a leader with a fresh line that makes headway or has nothing pending, or a standby."""
        reasons = [f"{fault}: {sentence}" for fault, sentence in self._faults.items()]
        if Fault.LOST in self._faults and self._faults.get(Fault.POSTGRES) == self._faults[Fault.LOST]:
            # Who competes meets the same.
            reasons.remove(f"{Fault.LOST}: {self._faults[Fault.LOST]}")
        if self._phase not in _READY_PHASES:
            reasons.append(f"phase is {self._phase}")
        if self._phase is Phase.STREAMING:
            assert self._line is not None, "a leader has a line"
            if not self._line.is_fresh(now):
                reasons.append(f"no sign of leadership for {self._line.age_s(now):.0f} s")
            if self._doubt is not None:
                reasons.append(self._doubt.sentence)
            stalled_s = self._headway.stalled_s(now)
            if self._pending and stalled_s > STALLED_AFTER_S:
                reasons.append(
                    f"the frontier stands still for {stalled_s:.0f} s with {self._pending} pending"
                )
        return Readiness(not reasons, self._phase, reasons)
