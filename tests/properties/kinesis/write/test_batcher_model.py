"""MicroBatcher against a plain list."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.kinesis.write.batcher import MicroBatcher
from penstock.kinesis.write.event import ChangeEvent

MAX_RECORDS = 4
MAX_BYTES = 10
MAX_DELAY_S = 3.0

keys = st.sampled_from("abc")
arrivals = st.lists(
    st.tuples(keys, st.integers(1, MAX_BYTES + 2), st.sampled_from([None] * 5 + ["too_large"])), max_size=8
)
batches = st.lists(st.integers(1, 3), max_size=MAX_RECORDS)


class BatcherMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.batcher = MicroBatcher(max_records=MAX_RECORDS, max_bytes=MAX_BYTES, max_delay_s=MAX_DELAY_S)
        self.waiting: list[ChangeEvent] = []
        self.now = 0.0
        self.number = 0

    @rule(seconds=st.integers(0, 4))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(arrived=arrivals)
    def add(self, arrived: Sequence[tuple[str, int, str | None]]) -> None:
        new = []
        for key, size, fault in arrived:
            self.number += 1
            new.append(ChangeEvent(self.number, b"", key, size, 0, 0, self.now, fault))
        self.batcher.add(new, self.now)
        self.waiting += new

    @rule(begun=batches, busy=st.sets(keys))
    def fill(self, begun: Sequence[int], busy: set[str]) -> None:
        """A request is filled that may hold something already."""
        batch = [ChangeEvent(0, b"", "x", size, 0, 0, 0.0) for size in begun]
        diverted: list[ChangeEvent] = []
        size = self.batcher.fill(batch, sum(begun), busy=busy, divert=diverted.append, now=self.now)
        taken = batch[len(begun) :]

        removed = sorted(taken + diverted, key=lambda event: event.ack_id)
        assert removed == self.waiting[: len(removed)], "not the oldest, or not in order"
        assert [event.ack_id for event in taken] == sorted(event.ack_id for event in taken)
        assert [event.ack_id for event in diverted] == sorted(event.ack_id for event in diverted)
        self.waiting = self.waiting[len(removed) :]
        stays = [stay.seconds for stay in self.batcher.take_stays() for _ in range(stay.records)]
        assert stays == [self.now - event.received_at for event in removed]

        assert size == sum(event.record_size_bytes for event in batch)
        assert len(batch) <= MAX_RECORDS
        assert size <= MAX_BYTES or len(batch) == 1 or not taken
        assert not any(event.partition_key in busy or event.fault for event in taken)
        for event in diverted:
            before = [*begun, *(other for other in taken if other.ack_id < event.ack_id)]
            assert event.partition_key in busy or (event.fault and not before)
        self.stopped_for_a_reason(batch, size, busy)

    def stopped_for_a_reason(self, batch: Sequence[ChangeEvent], size: int, busy: set[str]) -> None:
        if not self.waiting or len(batch) == MAX_RECORDS:
            return
        event = self.waiting[0]
        assert batch
        assert event.partition_key not in busy
        assert event.fault or size + event.record_size_bytes > MAX_BYTES

    @invariant()
    def length_agrees(self) -> None:
        assert len(self.batcher) == len(self.waiting)

    @invariant()
    def due_when_idle_full_or_late_and_never_later(self) -> None:
        due_at = self.waiting[0].received_at + MAX_DELAY_S if self.waiting else None
        full = len(self.waiting) >= MAX_RECORDS
        full |= sum(event.record_size_bytes for event in self.waiting) >= MAX_BYTES
        late = due_at is not None and self.now >= due_at
        assert self.batcher.due_at() == due_at
        assert self.batcher.is_due(self.now, idle=True) == bool(self.waiting)
        assert self.batcher.is_due(self.now, idle=False) == (bool(self.waiting) and (full or late))


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
