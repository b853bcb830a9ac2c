"""AckTracker against a list that is searched from its start every time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.capture.ack import AckTracker


@dataclass
class Entry:
    lsn: int
    ack_id: int | None
    """None for a marker."""
    published: bool


class NaiveTracker:
    """The rules of AckTracker, with markers as entries of their own and nothing clever."""

    def __init__(self, initial_lsn: int) -> None:
        self.entries: list[Entry] = []
        self.frontier = initial_lsn
        self.last_lsn = initial_lsn
        self.last_id = 0
        self.drained = 0
        self.drained_at_frontier = 0

    @property
    def pending(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.ack_id is not None]

    @property
    def unpublished(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.published]

    def register(self, lsn: int) -> int:
        self.last_id += 1
        self.last_lsn = lsn
        self.entries.append(Entry(lsn, self.last_id, published=False))
        return self.last_id

    def advance(self, lsn: int) -> int | None:
        self.last_lsn = lsn
        self.entries.append(Entry(lsn, None, published=True))
        return self.drain()

    def publish(self, ids: set[int]) -> int | None:
        for entry in self.entries:
            if entry.ack_id in ids:
                entry.published = True
        return self.drain()

    def drain(self) -> int | None:
        prefix = 0
        while prefix < len(self.entries) and self.entries[prefix].published:
            prefix += 1
        reached = max([self.frontier, *(entry.lsn for entry in self.entries[:prefix])])
        self.drained += sum(entry.ack_id is not None for entry in self.entries[:prefix])
        del self.entries[:prefix]
        moved = reached > self.frontier
        if moved:
            self.drained_at_frontier = self.drained
        self.frontier = reached
        return reached if moved else None


gaps = st.integers(0, 3)
places = st.one_of(st.just(0.0), st.floats(0, 1, allow_nan=False))
"""Where in a list of entries, from the oldest (0) to the newest (1)."""


class AckMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = NaiveTracker(initial_lsn=5)
        self.tracker = AckTracker(initial_lsn=5)

    def pick(self, entries: list[Entry], place: float) -> Entry:
        return entries[min(int(place * len(entries)), len(entries) - 1)]

    @rule(gap=gaps)
    def register(self, gap: int) -> None:
        lsn = self.model.last_lsn + gap
        assert self.tracker.register(lsn) == self.model.register(lsn)

    @initialize(count=st.sampled_from([0, 4090, 4095, 4096]))
    def begin_near_a_compaction(self, count: int) -> None:
        ids = [self.tracker.register(5) for _ in range(count)]
        assert ids == [self.model.register(5) for _ in range(count)]
        assert self.tracker.mark_published_ids(ids) == self.model.publish(set(ids))

    @rule(gaps_=st.lists(gaps, max_size=10))
    def register_many(self, gaps_: list[int]) -> None:
        for gap in gaps_:
            self.register(gap)

    @rule(gap=gaps)
    def advance(self, gap: int) -> None:
        count_before = self.tracker.pending_count
        lsn = self.model.last_lsn + gap
        assert self.tracker.advance(lsn) == self.model.advance(lsn)
        assert self.tracker.pending_count == count_before

    @rule(place=places)
    def mark_by_id(self, place: float) -> None:
        if self.model.pending:
            ack_id = self.pick(self.model.pending, place).ack_id
            assert ack_id is not None
            assert self.tracker.mark_published_by_id(ack_id) == self.model.publish({ack_id})

    @rule(place=places)
    def mark_by_lsn(self, place: float) -> None:
        if self.model.unpublished:
            lsn = self.pick(self.model.unpublished, place).lsn
            oldest = next(entry for entry in self.model.unpublished if entry.lsn == lsn)
            assert oldest.ack_id is not None
            assert self.tracker.mark_published(lsn) == self.model.publish({oldest.ack_id})

    @rule(places_=st.lists(places, max_size=5))
    def mark_some(self, places_: list[float]) -> None:
        """Ids of any age, drained and repeated ones included."""
        ids = [1 + int(place * (self.model.last_id - 1)) for place in places_ if self.model.last_id]
        assert self.tracker.mark_published_ids(ids) == self.model.publish(set(ids))

    @rule(start=places, end=places)
    def mark_run(self, start: float, end: float) -> None:
        ids = [entry.ack_id for entry in self.model.pending if entry.ack_id is not None]
        run = ids[int(start * len(ids)) : int(end * len(ids))]
        assert self.tracker.mark_published_ids(reversed(run)) == self.model.publish(set(run))

    @rule(place=places)
    def mark_late(self, place: float) -> None:
        pending = self.model.pending
        drained = (pending[0].ack_id or 0) - 1 if pending else self.model.last_id
        if drained:
            assert self.tracker.mark_published_by_id(1 + int(place * (drained - 1))) is None

    @rule(distance=st.integers(0, 3))
    def refuse_unknown(self, distance: int) -> None:
        for unknown in (-distance, self.model.last_id + 1 + distance):
            with pytest.raises(KeyError):
                self.tracker.mark_published_by_id(unknown)
            with pytest.raises(KeyError):
                self.tracker.mark_published_ids([*range(1, self.model.last_id + 1), unknown])

    @rule(distance=st.integers(1, 3))
    def refuse_decreasing(self, distance: int) -> None:
        with pytest.raises(ValueError):
            self.tracker.register(self.model.last_lsn - distance)
        with pytest.raises(ValueError):
            self.tracker.advance(self.model.last_lsn - distance)

    @rule(lsn=st.integers(0, 60))
    def refuse_an_lsn_without_unpublished_entries(self, lsn: int) -> None:
        if all(entry.lsn != lsn for entry in self.model.unpublished):
            with pytest.raises(KeyError):
                self.tracker.mark_published(lsn)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.tracker.frontier_lsn == self.model.frontier
        assert self.tracker.last_registered_lsn == self.model.last_lsn
        assert self.tracker.pending_count == len(self.model.pending)
        assert self.tracker.drained_count == self.model.drained
        assert self.tracker.done_count == self.model.drained - self.model.drained_at_frontier

    @invariant()
    def never_past_an_unpublished_entry(self) -> None:
        if self.model.unpublished:
            assert self.tracker.frontier_lsn <= self.model.unpublished[0].lsn


TestAckMachine = AckMachine.TestCase
TestAckMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
