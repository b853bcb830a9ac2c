"""FlushPlan against a naive model that looks at every transaction each time. Time goes by in whole ticks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.model.log_offset import OP_INFINITY, LogOffset
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.shape_plan import Job, ShapeState
from tests.flush_limits import flush_limits

LIMITS = flush_limits(flushes=1, pending_bytes=20, longest_backoff_s=4.0)
INTERVALS = {"a": 1, "b": 3, "c": 3, "d": 7, "e": 0}
BACKOFFS = (1, 2, 4, 4)
PLACES = {Job.FLUSH: LIMITS.flushes, Job.SNAPSHOT: LIMITS.snapshots}

shapes = st.sampled_from(sorted(INTERVALS))


class Sent(NamedTuple):
    number: int
    size_bytes: int
    at: int


@dataclass
class Naive:
    """A shape, and all that it has not flushed."""

    interval: int
    pending: list[Sent] = field(default_factory=list)
    holds: int = 0
    began_at: int = -100
    running: Job | None = None
    taken: int = 0
    """How many of `pending` were there when the job began."""
    is_hurried: bool = False
    snapshots_wanted: int = 0
    """1: to be taken or under way; 2: and another one after it."""
    failures: int = 0
    retry_at: int = -100
    moved_at: int = 0
    due_from: int | None = None
    """Since when it has been due without a break."""

    @property
    def size_bytes(self) -> int:
        return sum(sent.size_bytes for sent in self.pending)

    @property
    def job(self) -> Job:
        return Job.SNAPSHOT if self.snapshots_wanted else Job.FLUSH

    def is_due(self, now: int) -> bool:
        if self.running is not None or now < self.retry_at:
            return False
        if self.snapshots_wanted:
            return True
        return bool(self.pending) and (self.is_hurried or now >= self.began_at + self.interval)

    def hurry(self) -> None:
        if self.running is None and self.pending:
            self.is_hurried = True

    def finish(self, holds: int, now: int) -> None:
        if self.running is Job.SNAPSHOT:
            self.snapshots_wanted -= 1
        self.running = None
        self.failures, self.retry_at = 0, -100
        if holds > self.holds:
            self.holds, self.moved_at = holds, now
        took_all = all(sent.number <= holds for sent in self.pending[: self.taken])
        if took_all:
            del self.pending[: self.taken]
        if all(sent.number <= holds for sent in self.pending):
            self.pending.clear()
        self.is_hurried = took_all and self.size_bytes >= LIMITS.pending_bytes


class FlushPlanMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.newest = 0
        self.plan = FlushPlan(LIMITS)
        self.naive: dict[str, Naive] = {}
        for shape in INTERVALS:
            self.add(shape)

    def running(self, job: Job) -> list[str]:
        return [shape for shape, naive in self.naive.items() if naive.running is job]

    def due(self) -> dict[str, Naive]:
        return {shape: naive for shape, naive in self.naive.items() if naive.is_due(self.now)}

    def note_due(self) -> None:
        due = self.due()
        for shape, naive in self.naive.items():
            if shape not in due:
                naive.due_from = None
            elif naive.due_from is None:
                naive.due_from = self.now

    @rule(shape=shapes)
    def add(self, shape: str) -> None:
        if shape not in self.naive:
            self.naive[shape] = Naive(INTERVALS[shape], holds=self.newest, moved_at=self.now)
            held = LogOffset(self.newest, OP_INFINITY)
            self.plan.add(shape, interval_s=INTERVALS[shape], held=held, now=self.now)

    @rule(shape=st.sampled_from("de"))
    def remove(self, shape: str) -> None:
        self.naive.pop(shape, None)
        self.plan.remove(shape)

    @rule(ticks=st.integers(1, 4))
    def time_goes_by(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += 1
            self.note_due()

    @rule(touched=st.sets(shapes), size_bytes=st.integers(0, 12))
    def commit(self, touched: set[str], size_bytes: int) -> None:
        self.newest += 1
        for shape in touched & self.naive.keys():
            naive = self.naive[shape]
            naive.pending.append(Sent(self.newest, size_bytes, self.now))
            if naive.size_bytes >= LIMITS.pending_bytes:
                naive.hurry()
            self.plan.sent(shape, LogOffset(self.newest, 4), size_bytes, self.now)
        self.note_due()

    @rule()
    def make_room(self) -> None:
        for naive in self.naive.values():
            naive.hurry()
        self.plan.make_room(self.now)
        self.note_due()

    @rule(shape=shapes)
    def snapshot(self, shape: str) -> None:
        if shape in self.naive:
            naive = self.naive[shape]
            if naive.job is Job.FLUSH:
                # It waits in another queue now.
                naive.due_from = None
            naive.snapshots_wanted = 2 if naive.running is Job.SNAPSHOT else 1
            self.plan.snapshot(shape, self.now)
            self.note_due()

    @rule()
    def start(self) -> None:
        due = self.due()
        starts = self.plan.start(self.now)
        for job, places in PLACES.items():
            candidates = {shape: naive for shape, naive in due.items() if naive.job is job}
            chosen = [start.shape for start in starts if start.job is job]
            free = places - len(self.running(job))
            assert len(chosen) == len(set(chosen)) == min(free, len(candidates))
            turns = [candidates[shape].due_from or 0 for shape in chosen]
            left = [naive.due_from or 0 for shape, naive in candidates.items() if shape not in chosen]
            assert turns == sorted(turns)
            assert not turns or all(turns[-1] <= turn for turn in left), "nobody was overtaken"
        for shape, job in starts:
            naive = self.naive[shape]
            naive.running, naive.began_at, naive.taken = job, self.now, len(naive.pending)
            naive.due_from = None
        assert self.plan.start(self.now) == []

    @precondition(lambda self: any(naive.running for naive in self.naive.values()))
    @rule(pick=st.integers(0, 9), short=st.sampled_from([0, 0, 0, 1, 5]))
    def finish(self, pick: int, short: int) -> None:
        """Up to the newest transaction, or short of it; a table never goes back."""
        shape = self.pick_running(pick)
        naive = self.naive[shape]
        holds = max(naive.holds, self.newest - short)
        naive.finish(holds, self.now)
        self.plan.finished(shape, LogOffset(holds, OP_INFINITY), self.now)
        self.note_due()

    @precondition(lambda self: any(naive.running for naive in self.naive.values()))
    @rule(pick=st.integers(0, 9))
    def fail(self, pick: int) -> None:
        shape = self.pick_running(pick)
        naive = self.naive[shape]
        naive.running = None
        naive.retry_at = self.now + BACKOFFS[min(naive.failures, 3)]
        naive.failures += 1
        naive.snapshots_wanted = min(naive.snapshots_wanted, 1)
        self.plan.failed(shape, f"failure {naive.failures}", self.now)
        self.note_due()

    @precondition(lambda self: self.running(Job.SNAPSHOT))
    @rule()
    def get_its_cut(self) -> None:
        """What was asked for until now is older than the cut."""
        (shape,) = self.running(Job.SNAPSHOT)
        self.naive[shape].snapshots_wanted = 1
        self.plan.copying(shape, self.now)

    def pick_running(self, pick: int) -> str:
        running = [*self.running(Job.FLUSH), *self.running(Job.SNAPSHOT)]
        return running[pick % len(running)]

    @rule()
    def everybody_comes_to_rest(self) -> None:
        """With jobs that succeed, and nothing new, all of it ends, in a bounded time."""
        for _ in range(60):
            self.start()
            for shape in [*self.running(Job.FLUSH), *self.running(Job.SNAPSHOT)]:
                self.naive[shape].finish(self.newest, self.now)
                self.plan.finished(shape, LogOffset(self.newest, OP_INFINITY), self.now)
            self.time_goes_by(1)
        assert {status.state for status in self.plan.status(self.now)} <= {ShapeState.IDLE}
        assert self.plan.next_at(self.now) is None

    @invariant()
    def agrees_with_the_model(self) -> None:
        due = self.due()
        found = {status.shape: status for status in self.plan.status(self.now)}
        assert found.keys() == self.naive.keys()
        for shape, naive in self.naive.items():
            status = found[shape]
            assert (status.state is ShapeState.WAITING) == (shape in due)
            assert (status.state is ShapeState.FLUSHING) == (naive.running is Job.FLUSH)
            assert (status.state is ShapeState.SNAPSHOTTING) == (naive.running is Job.SNAPSHOT)
            if status.state is ShapeState.BACKING_OFF:
                assert naive.retry_at > self.now
            assert status.pending_bytes == naive.size_bytes
            assert status.offset == LogOffset(naive.holds, OP_INFINITY)
            assert status.error == (f"failure {naive.failures}" if naive.failures else None)

    @invariant()
    def stays_within_its_limits(self) -> None:
        for job, places in PLACES.items():
            assert len(self.running(job)) <= places

    @invariant()
    def wakes_up_in_time(self) -> None:
        """Whoever becomes due by the mere passing of time is announced."""
        next_at = self.plan.next_at(self.now)
        later = [
            tick
            for naive in self.naive.values()
            if not naive.is_due(self.now)
            for tick in range(self.now + 1, self.now + 20)
            if naive.is_due(tick)
        ]
        assert next_at == min(later, default=None)

    @invariant()
    def names_who_is_stalled(self) -> None:
        stalled = {found.shape: found.age_s for found in self.plan.stalled(self.now, after_s=5)}
        for shape, naive in self.naive.items():
            if naive.snapshots_wanted:
                assert naive.failures or shape not in stalled
            else:
                oldest = min((sent.at for sent in naive.pending), default=self.now)
                age = self.now - max(oldest, naive.moved_at)
                patience = 5 if naive.failures else 5 + naive.interval
                assert stalled.get(shape) == (age if naive.pending and age >= patience else None)


TestFlushPlanMachine = FlushPlanMachine.TestCase
TestFlushPlanMachine.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None
)


arrivals = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from([0, 1, LIMITS.pending_bytes])),
    min_size=30,
    max_size=30,
)


@given(arrivals=arrivals, job_ticks=st.integers(1, 4))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_a_crowded_pool_goes_by_who_became_due_first(arrivals: list[tuple[str, int]], job_ticks: int) -> None:
    """A change a tick, one place, and jobs that take their time."""
    machine = FlushPlanMachine()
    free_at = 0
    for shape, size_bytes in arrivals:
        machine.commit({shape}, size_bytes)
        for busy in machine.running(Job.FLUSH) if machine.now >= free_at else []:
            taken = machine.naive[busy].pending[machine.naive[busy].taken - 1].number
            machine.naive[busy].finish(taken, machine.now)
            machine.plan.finished(busy, LogOffset(taken, OP_INFINITY), machine.now)
            machine.note_due()
        if not machine.running(Job.FLUSH):
            machine.start()
            free_at = machine.now + job_ticks
        machine.agrees_with_the_model()
        machine.time_goes_by(1)
