"""PublishPlan before a stream that fails in every way in which PutRecords can, and a process that dies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.kinesis.aws.outcome import Outcome, judge
from penstock.kinesis.write.batcher import MicroBatcher
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.plan import PublishPlan, Request, Settled
from tests.kinesis_answers import entries

MAX_REQUESTS = 2
MAX_RECORDS = 4
MAX_BYTES = 10
MAX_DELAY_S = 2.0
LONGEST_BACKOFF_S = 4.0


class Poison(Enum):
    """What keeps a change from being delivered as it is."""

    REFUSES_REQUEST = "Kinesis refuses the whole request, without saying for which record"
    REFUSES_RECORD = "Kinesis answers with a fault of this record alone"
    BLOCKS = "the reader found it too large: it enters with a fault, and nobody replaces it"


@dataclass
class Change:
    """What Postgres would send again after a crash."""

    number: int
    key: str
    size: int
    poison: Poison | None


class Stream:
    """A log a key, as a stream with one shard a key would keep it."""

    def __init__(self) -> None:
        self._logs: dict[str, list[int]] = defaultdict(list)

    def take(self, event: ChangeEvent) -> None:
        self._logs[event.partition_key].append(event.ack_id)

    def last_words(self, key: str) -> list[int]:
        """The numbers in the key's log, each where it stands for the last time."""
        return list(reversed(dict.fromkeys(reversed(self._logs[key]))))


def keys_of(request: Request) -> set[str]:
    return {event.partition_key for event in request.events}


def backoff(attempt: int) -> float:
    return min(float(attempt + 1), LONGEST_BACKOFF_S)


def new_plan() -> PublishPlan:
    batcher = MicroBatcher(max_records=MAX_RECORDS, max_bytes=MAX_BYTES, max_delay_s=MAX_DELAY_S)
    return PublishPlan(batcher=batcher, max_requests=MAX_REQUESTS, backoff=backoff)


poisons = st.sampled_from([None] * 9 + list(Poison))
sizes = st.sampled_from([1, 1, 1, 1, 4, MAX_BYTES - 1, MAX_BYTES, MAX_BYTES + 2])
arrivals = st.lists(st.tuples(st.sampled_from("abc"), sizes, poisons), max_size=6)
which = st.integers(0, MAX_REQUESTS - 1)
fates = st.lists(st.booleans(), min_size=MAX_RECORDS, max_size=MAX_RECORDS)


class PlanMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.source: list[Change] = []
        self.stream = Stream()
        self.marked: set[int] = set()
        self.now = 0.0
        self.start_process()

    def start_process(self) -> None:
        """Everything from the oldest unmarked change on comes again, marked or not."""
        first = next((change.number for change in self.source if change.number not in self.marked), None)
        again = [] if first is None else self.source[first:]
        self.marked -= {change.number for change in again}
        self.plan = new_plan()
        self.under_way: list[Request] = []
        self.undeliverable: list[ChangeEvent] = []
        self.replaced: set[int] = set()
        self.abandoned: set[int] = set()
        self.received_at: dict[int, float] = {}
        self.not_before: dict[str, float] = {}
        self.just_failed: set[str] = set()
        self.failing_since: dict[str, float] = {}
        self.spilled: set[str] = set()
        self.plan.add([self.received(change) for change in again], self.now)

    def received(self, change: Change) -> ChangeEvent:
        self.received_at[change.number] = self.now
        fault = "too_large" if change.poison is Poison.BLOCKS else None
        return ChangeEvent(change.number, b"", change.key, change.size, 0, 0, self.now, fault)

    def poison(self, event: ChangeEvent) -> Poison | None:
        return None if event.ack_id in self.replaced else self.source[event.ack_id].poison

    def refuses(self, request: Request) -> bool:
        return any(self.poison(event) is Poison.REFUSES_REQUEST for event in request.events)

    def takes_some(self, request: Request, fates: Sequence[bool]) -> None:
        """What the stream does with a request whose answer nobody hears."""
        if self.refuses(request):
            return
        for event, taken in zip(request.events, fates, strict=False):
            if taken and self.poison(event) is None:
                self.stream.take(event)

    @rule(changes=arrivals)
    def arrive(self, changes: Sequence[tuple[str, int, Poison | None]]) -> None:
        new = [Change(len(self.source) + place, *change) for place, change in enumerate(changes)]
        self.source += new
        self.plan.add([self.received(change) for change in new], self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, MAX_DELAY_S, LONGEST_BACKOFF_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def send(self) -> None:
        request = self.plan.next_request(self.now)
        if request is None:
            self.nothing_was_due()
            return
        assert 1 <= len(request.events) <= MAX_RECORDS
        size = sum(event.record_size_bytes for event in request.events)
        assert size <= MAX_BYTES or len(request.events) == 1
        assert not any(event.fault for event in request.events)
        assert all(self.now >= self.not_before.get(key, 0.0) for key in keys_of(request)), "no backoff"
        assert not any(keys_of(request) & keys_of(other) for other in self.under_way)
        keys = [event.partition_key for event in request.events]
        assert all(keys.count(key) == 1 for key in self.just_failed & set(keys)), "the failed one goes alone"
        self.just_failed -= set(keys)
        self.under_way.append(request)

    @rule()
    def send_all(self) -> None:
        before = -1
        while before < len(self.under_way):
            before = len(self.under_way)
            self.send()

    @precondition(lambda self: self.under_way)
    @rule(which=which, fails=fates)
    def answer(self, which: int, fails: Sequence[bool]) -> None:
        request = self.under_way.pop(which % len(self.under_way))
        if self.refuses(request):
            self.not_before |= dict.fromkeys(keys_of(request), self.now)
            self.settled(self.plan.refuse(request, self.now))
            return
        codes = [self.take_one(event, fail) for event, fail in zip(request.events, fails, strict=False)]
        for key in keys_of(request):
            self.not_before.pop(key, None)
        if any(codes):
            failed = {event.partition_key for event, code in zip(request.events, codes, strict=True) if code}
            keys = [event.partition_key for event in request.events]
            outcomes = judge(keys, entries(codes))
            in_a_row = 0 if Outcome.ACCEPTED in outcomes else request.attempt
            self.not_before |= dict.fromkeys(failed, self.now + backoff(in_a_row))
            self.fails(failed, list(zip(keys, outcomes, strict=True)))
            self.settled(self.plan.settle(request, outcomes, self.now))
        else:
            self.fails(set(), [(key, Outcome.ACCEPTED) for key in keys_of(request)])
            self.plan.accept(request)
            self.accepted(request.events)

    def fails(self, failed: set[str], fates: Sequence[tuple[str, Outcome]]) -> None:
        """What the answer says of whole keys. One with an undeliverable event fails no more, nor gets on."""
        gets_on = {key for key, outcome in fates if outcome is Outcome.ACCEPTED}
        stuck = {key for key, outcome in fates if outcome is Outcome.UNDELIVERABLE}
        for key in gets_on - stuck:
            self.failing_since.pop(key, None)
        for key in failed - stuck:
            self.failing_since.setdefault(key, self.now)
        self.just_failed = (self.just_failed - gets_on) | failed

    @rule(seconds=st.sampled_from([0.0, 1.0, LONGEST_BACKOFF_S]))
    def spill(self, seconds: float) -> None:
        since = self.failing_since
        new = {key for key in since if since[key] <= self.now - seconds} - self.spilled
        assert self.plan.spill(failing_since=self.now - seconds) == len(new)
        self.spilled |= new

    def take_one(self, event: ChangeEvent, fail: bool) -> str | None:
        if fail:
            return "ProvisionedThroughputExceededException"
        if self.poison(event) is Poison.REFUSES_RECORD:
            return "ValidationException"
        self.stream.take(event)
        return None

    @precondition(lambda self: self.under_way)
    @rule(which=which, taken=fates)
    def answer_is_lost(self, which: int, taken: Sequence[bool]) -> None:
        request = self.under_way.pop(which % len(self.under_way))
        self.takes_some(request, taken)
        self.not_before |= dict.fromkeys(keys_of(request), self.now + backoff(request.attempt))
        self.plan.fail(request, self.now)

    @precondition(lambda self: self.undeliverable)
    @rule(place=st.integers(0, 5))
    def replace(self, place: int) -> None:
        event = self.undeliverable.pop(place % len(self.undeliverable))
        self.replaced.add(event.ack_id)
        self.not_before[event.partition_key] = self.now
        self.plan.replace(event, self.now)

    @rule(taken=st.lists(fates, min_size=MAX_REQUESTS, max_size=MAX_REQUESTS))
    def crash(self, taken: Sequence[Sequence[bool]]) -> None:
        for request, fates_ in zip(self.under_way, taken, strict=False):
            self.takes_some(request, fates_)
        self.start_process()

    def settled(self, settled: Settled) -> None:
        self.accepted(settled.accepted)
        for event in settled.undeliverable:
            assert self.poison(event) is not None, "a good record was given up"
        self.undeliverable += settled.undeliverable

    def accepted(self, events: Sequence[ChangeEvent]) -> None:
        for event in events:
            assert event.ack_id not in self.marked, "accepted twice"
            self.marked.add(event.ack_id)

    def unmarked(self) -> dict[str, list[int]]:
        """What each key waits for, oldest first."""
        waiting: dict[str, list[int]] = {}
        for change in self.source:
            if change.number not in self.marked:
                waiting.setdefault(change.key, []).append(change.number)
        return waiting

    def is_stuck(self, number: int) -> bool:
        parked = {event.ack_id for event in self.undeliverable} | self.abandoned
        return number in parked or self.source[number].poison is Poison.BLOCKS

    def nothing_was_due(self) -> None:
        """With room for a request, a key waits only for its own backoff or poison, or for the delay bound."""
        if len(self.under_way) == MAX_REQUESTS:
            return
        # What was given up since the last rule ended waits for nothing.
        self.counts_agree()
        busy = set().union(*map(keys_of, self.under_way))
        due: list[float] = []
        for key, (oldest, *_) in self.unmarked().items():
            if key in busy or self.is_stuck(oldest):
                continue
            if key in self.not_before:
                due.append(self.not_before[key])
            else:
                assert self.under_way, "idle means now"
                due.append(self.received_at[oldest] + MAX_DELAY_S)
        assert all(self.now < time for time in due)
        wake_at = self.plan.wake_at()
        assert wake_at is None or wake_at > self.now, "woken for nothing"
        assert not due or (wake_at is not None and wake_at <= min(due)), "woken too late"

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.under_way) <= MAX_REQUESTS
        # With so many coming the next request is full in any case.
        assert self.plan.is_behind(coming=MAX_RECORDS) is (len(self.under_way) == MAX_REQUESTS)
        assert self.plan.is_active or not self.under_way
        given_up = self.plan.take_abandoned()
        assert not self.marked & {event.ack_id for event in given_up}
        self.abandoned |= {event.ack_id for event in given_up}
        assert self.plan.held == len(self.source) - len(self.marked) - len(self.abandoned)

    @invariant()
    def only_what_stands_behind_a_fault_is_given_up(self) -> None:
        for number in self.abandoned:
            key = self.source[number].key
            assert key in self.spilled or any(
                change.key == key and change.poison is Poison.BLOCKS for change in self.source[: number + 1]
            )

    @invariant()
    def marks_of_a_key_have_no_hole(self) -> None:
        for key, waiting in self.unmarked().items():
            later = {change.number for change in self.source[waiting[0] :] if change.key == key}
            assert not later & self.marked

    @invariant()
    def last_words_of_what_is_marked_are_in_order(self) -> None:
        for key in "abc":
            said = [number for number in self.stream.last_words(key) if number in self.marked]
            assert said == sorted(number for number in self.marked if self.source[number].key == key)

    def settle_all(self) -> None:
        """From now on the stream takes everything, and all that is refused is replaced."""
        for _ in range(20 + 10 * len(self.source)):
            self.now += LONGEST_BACKOFF_S
            self.send_all()
            while self.under_way:
                self.answer(0, [False] * MAX_RECORDS)
            while self.undeliverable:
                self.replace(0)
            if not self.plan.is_active:
                return
        raise AssertionError("it never settles")

    def teardown(self) -> None:
        self.settle_all()
        self.counts_agree()
        for key, waiting in self.unmarked().items():
            assert key in self.spilled or self.source[waiting[0]].poison is Poison.BLOCKS
        assert self.plan.parked == len(self.unmarked().keys() - self.spilled)
        assert self.plan.has_recovered is bool(self.spilled)

        for change in self.source:
            if change.poison is Poison.BLOCKS:
                change.poison = None
        self.start_process()
        self.settle_all()
        self.last_words_of_what_is_marked_are_in_order()
        assert len(self.marked) == len(self.source)
        assert (self.plan.held, self.plan.parked, self.plan.wake_at()) == (0, 0, None)


TestPlanMachine = PlanMachine.TestCase
TestPlanMachine.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
