"""ShapePlan: what is known of one shape's jobs, and the words for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from penstock.model.log_offset import BEFORE_ALL, LogOffset


class Job(Enum):
    """What can run for a shape."""

    FLUSH = "flush"
    SNAPSHOT = "snapshot"
    UPKEEP = "upkeep"


class ShapeState(Enum):
    """Where a shape is. None of these survives a restart: tables and the registry say where to go on."""

    IDLE = "idle"
    """Nothing is new, or its interval has not passed. Set by `finished`; nobody waits."""
    WAITING = "waiting"
    """It is due. Set by time, `sent`, `make_room` or `snapshot`; waits for a place in the pool."""
    FLUSHING = "flushing"
    """Set by `start`; the pool waits for `finished` or `failed`."""
    SNAPSHOTTING = "snapshotting"
    """Set by `start`; its flushes wait for `finished`. That a snapshot is due is in the registry too."""
    TENDING = "upkeep"
    """Set by `start`; its flushes wait for `tended`."""
    STOPPED = "stopped"
    """Set by `stop`; waits for `snapshot`, which somebody has to make possible. The registry has it too."""
    BACKING_OFF = "backing off"
    """Set by `failed`; waits for the time of its next attempt, and nobody else waits for it."""


class JobStart(NamedTuple):
    """A job that is to begin now."""

    shape: str
    job: Job


class ShapeStatus(NamedTuple):
    """A line for people."""

    shape: str
    state: ShapeState
    offset: LogOffset
    """What its table holds."""
    pending_bytes: int
    error: str | None
    """The sentence of its last attempt, if that failed."""
    pending_s: float = 0.0
    """How long a transaction has waited that is not in the table, or a snapshot; 0 if neither has."""
    failing_s: float = 0.0
    """Since the first of its failures in a row; 0 if the last attempt didn't fail."""
    wrote_s: float = math.inf
    """Since something was last written to its table."""
    waits_for: str | None = None
    """What a snapshot waits for that has begun and has no cut yet."""
    due_s: float = math.inf
    """Until its next job is due; below 0 if it was due before."""


class StalledShape(NamedTuple):
    """A shape that has something to do and makes no progress."""

    shape: str
    age_s: float
    offset: LogOffset
    error: str | None
    """Why, as far as that is known."""


_STATES: Final = {
    Job.FLUSH: ShapeState.FLUSHING,
    Job.SNAPSHOT: ShapeState.SNAPSHOTTING,
    Job.UPKEEP: ShapeState.TENDING,
}


@dataclass(slots=True)
class ShapePlan:
    """What a FlushPlan knows of one shape."""

    interval_s: float
    newest: LogOffset
    """The last transaction that touched it."""
    moved_at: float
    pending_bytes: int = 0
    pending_since: float = math.inf
    """When the oldest transaction came that it has not flushed; infinity if there is none."""
    hurried_since: float = math.inf
    """Since when it need not wait for its interval."""
    snapshot_since: float = math.inf
    """When the snapshot was asked for that is not done; infinity if there is none."""
    snapshot_again_since: float = math.inf
    """When another one was asked for while it ran."""
    stopped_since: float = math.inf
    """When it was stopped until somebody acts; infinity if it is not."""
    began_at: float = -math.inf
    running: Job | None = None
    taken_offset: LogOffset = BEFORE_ALL
    taken_bytes: int = 0
    """What was pending when the last job began."""
    later_since: float = math.inf
    """When the first transaction came after that."""
    failures: int = 0
    failing_since: float = math.inf
    """When the first of these failed; infinity if there is none."""
    wrote_at: float = -math.inf
    """When a job last wrote to the table."""
    not_before: float = -math.inf
    """When its last job ended or, after a failure, when it may be tried again."""
    error: str | None = None
    upkeep_since: float = math.inf
    """When its upkeep became due that is not done; infinity if there is none."""
    waits_for: str | None = None
    waits_since: float = math.inf
    """Since when its snapshot, which runs, has waited for its cut; infinity if it doesn't."""

    @property
    def carries(self) -> bool:
        """Whether a job runs that takes what is pending."""
        return self.running is not None and self.running is not Job.UPKEEP

    @property
    def job(self) -> Job:
        """What it needs next."""
        return Job.FLUSH if self.snapshot_since == math.inf else Job.SNAPSHOT

    @property
    def due_at(self) -> float:
        """When the next job is or was due; infinity if there is nothing to do."""
        if self.stopped_since < math.inf:
            return math.inf
        if self.job is Job.SNAPSHOT:
            due_at = self.snapshot_since
        else:
            due_at = min(max(self.pending_since, self.began_at + self.interval_s), self.hurried_since)
        return max(due_at, self.not_before)

    @property
    def upkeep_at(self) -> float:
        """When its upkeep is or was due; infinity if it is not."""
        return math.inf if self.error or self.job is Job.SNAPSHOT else self.upkeep_since

    @property
    def waiting_since(self) -> float:
        """Since when it has had something to do."""
        return min(self.pending_since, self.snapshot_since, self.stopped_since)

    def state(self, now: float) -> ShapeState:
        """Where it is."""
        if self.running is not None:
            return _STATES[self.running]
        if self.stopped_since < math.inf:
            return ShapeState.STOPPED
        if self.due_at <= now:
            return ShapeState.WAITING
        return ShapeState.BACKING_OFF if self.not_before > now else ShapeState.IDLE
