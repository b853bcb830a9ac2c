"""FlushPlan: which shapes should be flushed, snapshotted or tended now."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from penstock.model.log_offset import LogOffset
from penstock.shapes.pace.held import Held
from penstock.shapes.pace.shape_plan import Job, JobStart, ShapePlan, ShapeStatus, StalledShape


class FlushLimits(NamedTuple):
    """The sizes and times of a FlushPlan."""

    flushes: int = 4
    """How many flushes may run at once."""
    snapshots: int = 1
    """How many snapshots may run at once, beside the flushes: they may take hours."""
    upkeeps: int = 1
    """How many tables may be tended at once, beside the flushes."""
    pending_bytes: int = 64 * 2**20
    """A shape with this much to flush doesn't wait for its interval."""
    first_backoff_s: float = 0.5
    longest_backoff_s: float = 60.0


class FlushPlan:
    """Decides what starts when, and remembers how it went. Time is an argument, monotonic.

    The problem. Each shape has its own pace, a flush costs a Spark job, and a cluster takes only some at
    once. One that fails must not hold the others, and one that is busy must not starve them.

    Rules.
    1. A shape with something new is due when its interval has passed since its last flush *began*, when
       `pending_bytes` are reached, or when the log must make room. After a silence that is at once.
    2. A shape with nothing new is never due: it costs no job and no commit.
    3. `start` gives places to those that are due in the order in which they became due: nobody is
       overtaken by one that became due later. While its own job runs a shape doesn't wait, so a busy one
       can't take two turns in a row before others. Flushes, snapshots and upkeep have places of their own.
    4. A shape has one job at a time. While its snapshot is due, it isn't flushed.
    5. `finished` takes the offset that was read back from the table. What came after the job began stays
       pending, and all of it if the table fell short of what was pending then. A flush that took as much
       as one may take goes on at once: waiting for its interval, it might never catch up.
    6. `failed` puts the shape off for a time that doubles with each failure in a row, up to a bound. Nothing
       shortens it, a log that must make room neither. Success forgets it.
    7. A snapshot that is asked for while one runs is taken after it: the running one may be too early.
    8. A shape that was removed is forgotten; a late note about it does nothing.
    9. A shape is stalled when it has had something to do, without moving, for a given time, and for its
       interval before that unless it fails. A snapshot moves only at its end, so it counts as stalled only
       after a failure, or when it has waited for its cut for that time (`waits`).
    10. A shape that is stopped has no jobs until a snapshot of it is asked for. Then nothing of what went
       wrong before counts any more. One whose snapshot had begun by then, and waits for its turn, is
       stopped as well, unless that finds the table as it should be (`copying`). From there on rule 7 counts:
       what was asked for before is done by this one.
    11. Upkeep is due when `tend` says so. It waits for a shape that fails or awaits its snapshot, and never
       goes before a flush that was due earlier.
    """

    def __init__(self, limits: FlushLimits | None = None, held: Held | None = None) -> None:
        """`held`: where others read what the jobs have passed."""
        self._limits = limits or FlushLimits()
        self._held = Held() if held is None else held
        self._plans: dict[str, ShapePlan] = {}
        self._running = Counter[Job]()

    def add(self, shape: str, *, interval_s: float, held: LogOffset, now: float) -> None:
        """A shape counts from now on; `held` is what its table holds."""
        if shape in self._plans:
            raise ValueError(f"shape {shape} is in the plan already")
        self._held.start(shape, held)
        self._plans[shape] = ShapePlan(interval_s, newest=held, moved_at=now)

    def remove(self, shape: str) -> None:
        """A shape no longer counts."""
        plan = self._plans.pop(shape, None)
        if plan is not None and plan.running is not None:
            self._running[plan.running] -= 1

    def sent(self, shape: str, last: LogOffset, size_bytes: int, now: float) -> None:
        """A transaction that touches the shape is in the log."""
        plan = self._plans[shape]
        plan.newest = max(plan.newest, last)
        plan.pending_bytes += size_bytes
        plan.pending_since = min(plan.pending_since, now)
        if plan.carries:
            plan.later_since = min(plan.later_since, now)
        elif plan.pending_bytes >= self._limits.pending_bytes:
            plan.hurried_since = min(plan.hurried_since, now)

    def snapshot(self, shape: str, now: float) -> None:
        """The shape's table is to be made, for the first time or again."""
        plan = self._plans[shape]
        if plan.stopped_since < math.inf:
            plan.stopped_since = math.inf
            plan.failures, plan.failing_since, plan.not_before, plan.error = 0, math.inf, now, None
        if plan.running is Job.SNAPSHOT:
            plan.snapshot_again_since = min(plan.snapshot_again_since, now)
        else:
            plan.snapshot_since = min(plan.snapshot_since, now)

    def stop(self, shape: str, sentence: str, now: float) -> None:
        """The shape can't go on, nor be snapshotted, before somebody acts."""
        plan = self._plans[shape]
        plan.stopped_since = min(plan.stopped_since, now)
        plan.snapshot_since = plan.snapshot_again_since = math.inf
        plan.error = sentence

    def runs_snapshot(self, shape: str) -> bool:
        """Whether a snapshot of the shape runs."""
        return self._plans[shape].running is Job.SNAPSHOT

    def copying(self, shape: str, now: float) -> None:
        """Its snapshot, which runs, is about to get its cut, and found the table as it should be.

        What had stopped the shape until now is no longer so, and what was asked for is older than the cut.
        """
        plan = self._plans[shape]
        if plan.running is not Job.SNAPSHOT:
            raise RuntimeError(f"shape {shape} has no snapshot that could copy")
        plan.snapshot_again_since = math.inf
        if plan.stopped_since < math.inf:
            plan.stopped_since, plan.error = math.inf, None
            plan.snapshot_since = min(plan.snapshot_since, now)

    def waits(self, shape: str, sentence: str, now: float) -> bool:
        """Its snapshot, which runs, waits for its cut; `sentence` says for what. Whether that is new."""
        plan = self._plans[shape]
        is_new = plan.waits_for is None
        plan.waits_for, plan.waits_since = sentence, min(plan.waits_since, now)
        return is_new

    def has_cut(self, shape: str) -> None:
        """Its snapshot doesn't wait any more."""
        plan = self._plans[shape]
        plan.waits_for, plan.waits_since = None, math.inf

    def awaits_snapshot(self, shape: str) -> bool:
        """Whether the shape's table doesn't count before a snapshot is taken, which may be running."""
        plan = self._plans[shape]
        return min(plan.snapshot_since, plan.stopped_since) < math.inf

    def is_outdated(self, shape: str) -> bool:
        """Whether another snapshot was asked for since the one began that runs."""
        plan = self._plans[shape]
        return min(plan.snapshot_again_since, plan.stopped_since) < math.inf

    def begin_no_snapshots(self) -> None:
        """The end is near: a copy that begins now would not be finished."""
        self._limits = self._limits._replace(snapshots=0)

    def make_room(self, now: float) -> None:
        """The log is full: who has something to flush need not wait for its interval.

        To be called as long as that is so: it counts for those that have no job at the moment.
        """
        for plan in self._plans.values():
            if plan.pending_since < math.inf and not plan.carries:
                plan.hurried_since = min(plan.hurried_since, now)

    def start(self, now: float) -> list[JobStart]:
        """What is to begin now; it counts as running from here on."""
        places = self._places()
        if not any(places.values()):
            return []
        idle = [(shape, plan) for shape, plan in self._plans.items() if plan.running is None]
        due = [
            (due_at, plan.began_at, shape, plan.job) for shape, plan in idle if (due_at := plan.due_at) <= now
        ]
        due += [
            (plan.upkeep_since, plan.began_at, shape, Job.UPKEEP)
            for shape, plan in idle
            if plan.upkeep_at <= now
        ]
        starts = []
        # Sorting keeps the order of equals: of one shape the flush goes first.
        for _, _, shape, job in sorted(due, key=lambda each: each[:3]):
            plan = self._plans[shape]
            if places[job] > 0 and plan.running is None:
                places[job] -= 1
                self._begin(plan, job, now)
                starts.append(JobStart(shape, job))
        return starts

    def next_at(self, now: float) -> float | None:
        """When `start` should be called next, if nothing else happens; None: no time is known."""
        if not any(self._places().values()):
            return None
        later = [
            plan.due_at
            for plan in self._plans.values()
            if plan.running is None and now < plan.due_at < math.inf
        ]
        return min(later, default=None)

    def finished(self, shape: str, offset: LogOffset, now: float, *, more: bool = False) -> None:
        """A job is done, and the table holds everything up to `offset`.

        `more`: it ended there because it had enough, and the log has more.
        """
        plan = self._plans.get(shape)
        if plan is None:
            return
        if self._end(shape, plan) is Job.SNAPSHOT:
            plan.snapshot_since, plan.snapshot_again_since = plan.snapshot_again_since, math.inf
        if self._held.pass_over(shape, offset):
            plan.moved_at = now
        took_all = offset >= plan.taken_offset
        if took_all:
            plan.pending_bytes -= plan.taken_bytes
            plan.pending_since = plan.later_since
        if offset >= plan.newest:
            plan.pending_bytes = 0
            plan.pending_since = math.inf
        # One that fell short otherwise waits for its interval: the log may not have more on disk yet.
        is_full = took_all and plan.pending_bytes >= self._limits.pending_bytes
        is_hurried = is_full or (more and plan.pending_since < math.inf)
        plan.hurried_since = now if is_hurried else math.inf
        plan.failures, plan.failing_since = 0, math.inf
        plan.not_before = now
        plan.error = None

    def wrote(self, shape: str, now: float) -> None:
        """A job has written to the shape's table: its storage works."""
        plan = self._plans.get(shape)
        if plan is not None:
            plan.wrote_at = now

    @property
    def is_tending(self) -> bool:
        """Whether some shape's upkeep runs or is due."""
        return any(plan.running is Job.UPKEEP or plan.upkeep_at < math.inf for plan in self._plans.values())

    def tend(self, shape: str, now: float) -> None:
        """The shape's table needs its upkeep."""
        plan = self._plans.get(shape)
        if plan is not None:
            plan.upkeep_since = min(plan.upkeep_since, now)

    def tended(self, shape: str) -> None:
        """The shape's upkeep has ended, well or not."""
        plan = self._plans.get(shape)
        if plan is not None:
            self._end(shape, plan)
            plan.upkeep_since = math.inf

    def failed(self, shape: str, sentence: str, now: float) -> None:
        """A job failed; `sentence` is for the operator."""
        plan = self._plans.get(shape)
        if plan is None:
            return
        self._end(shape, plan)
        # The next attempt is later than anything that was asked for until now.
        plan.snapshot_again_since = math.inf
        # The exponent is bounded, or a long outage would overflow the float.
        backoff_s = self._limits.first_backoff_s * 2.0 ** min(plan.failures, 50)
        plan.failures += 1
        plan.failing_since = min(plan.failing_since, now)
        plan.not_before = now + min(backoff_s, self._limits.longest_backoff_s)
        plan.error = sentence

    def status(self, now: float) -> list[ShapeStatus]:
        """Every shape, in the order in which they were added."""
        return [
            ShapeStatus(
                shape,
                plan.state(now),
                self._held.passed(shape),
                plan.pending_bytes,
                plan.error,
                max(0.0, now - plan.waiting_since),
                max(0.0, now - plan.failing_since),
                now - plan.wrote_at,
                plan.waits_for,
                plan.due_at - now,
            )
            for shape, plan in self._plans.items()
        ]

    def stalled(self, now: float, after_s: float) -> list[StalledShape]:
        """Shapes that have not moved for `after_s` and should have, the longest first."""
        found = []
        for shape, plan in self._plans.items():
            age_s = now - max(plan.waiting_since, plan.moved_at)
            patience_s = after_s if plan.error else after_s + plan.interval_s
            flushes = Job.FLUSH in (plan.job, plan.running)
            passed = self._held.passed(shape)
            if age_s >= patience_s and (plan.error or flushes):
                found.append(StalledShape(shape, age_s, passed, plan.waits_for or plan.error))
            elif now - plan.waits_since >= after_s:
                found.append(StalledShape(shape, now - plan.waits_since, passed, plan.waits_for))
        return sorted(found, key=lambda stalled: -stalled.age_s)

    def _begin(self, plan: ShapePlan, job: Job, now: float) -> None:
        plan.running = job
        self._running[job] += 1
        if job is Job.UPKEEP:
            return
        plan.began_at = now
        plan.taken_offset = plan.newest
        plan.taken_bytes = plan.pending_bytes
        plan.later_since = math.inf

    def _end(self, shape: str, plan: ShapePlan) -> Job:
        if plan.running is None:
            raise RuntimeError(f"shape {shape} has no job that could end")
        job, plan.running = plan.running, None
        plan.waits_for, plan.waits_since = None, math.inf
        self._running[job] -= 1
        return job

    def _places(self) -> dict[Job, int]:
        """How many more may run."""
        limits = self._limits
        most = {Job.FLUSH: limits.flushes, Job.SNAPSHOT: limits.snapshots, Job.UPKEEP: limits.upkeeps}
        return {job: max(0, count - self._running[job]) for job, count in most.items()}
