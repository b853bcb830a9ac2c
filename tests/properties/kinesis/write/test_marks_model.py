"""Marks against a list of everything that was ever accepted: what a manifest says is what that list has."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.kinesis.aws.outcome import Entry, Taken
from penstock.kinesis.marked.manifest import TableMark
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.marks import Draft, Marks
from penstock.kinesis.write.tally import MOST_TABLES, Records, Tally
from penstock.model.change import Truncate
from penstock.model.relation import Relation
from penstock.model.stream_position import History, StreamPosition, operation

HISTORY = History(2, {1: 60})
TABLES = [Relation("public", "a"), Relation("public", 'b".c'), None]


class Known(NamedTuple):
    event: ChangeEvent
    entry: Entry
    request: int


class Waiting(NamedTuple):
    """A record of a transaction that is not accepted yet."""

    commit_lsn: int
    op_offset: int


class MarksMachine(RuleBasedStateMachine):
    """Transactions of some records each; these are accepted in any order, in batches."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = Marks(10, most_spans=3, most_uncounted=4)
        self.since = 10
        self.next_lsn = 10
        self.sequence = 8
        self.requests = 0
        self.waiting: list[Waiting] = []
        self.taken: list[Known] = []
        self.ends: list[tuple[int, int]] = []
        """Of each transaction: its commit LSN, and its end."""
        self.draft: Draft | None = None
        self.crowded_until = 0
        """Up to this commit LSN neighbours may have been put together."""

    @rule(records=st.integers(1, 4), gap=st.integers(0, 3))
    def transaction(self, records: int, gap: int) -> None:
        commit_lsn = self.next_lsn + gap
        self.waiting += [Waiting(commit_lsn, 2 * place) for place in range(records)]
        self.next_lsn = commit_lsn + 2
        self.ends.append((commit_lsn, self.next_lsn))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.waiting), min_size=1, max_size=5, unique=True))
        events, entries = [], []
        for each in some:
            self.waiting.remove(each)
            table = data.draw(st.sampled_from(TABLES))
            size = data.draw(st.integers(1, 9))
            told = Truncate(table, *each) if table is not None and data.draw(st.booleans()) else table
            events.append(ChangeEvent(1, b"", "k", size, *each, 0.0, table=told))
            # Numbers get longer with time, and don't ascend in what we are told.
            self.sequence += data.draw(st.integers(-3, 5))
            entries.append(Entry(shard=data.draw(st.sampled_from("xyz")), sequence=str(abs(self.sequence))))
        self.requests += 1
        self.taken += map(Known, events, entries, [self.requests] * len(events))
        self.marks.accepted(events, Taken.of(entries), self.frontier())
        if len(self.overtakers()) > 3:
            self.crowded_until = max(each.event.commit_lsn for each in self.taken)

    @precondition(lambda self: self.draft is None)
    @rule()
    def make_draft(self) -> None:
        self.draft = self.marks.draft(self.frontier())
        assert self.draft.since_lsn == self.since <= self.draft.resolved_lsn <= self.frontier()
        if self.frontier() > self.crowded_until:
            assert self.draft.resolved_lsn == self.frontier()
        self.check(self.draft.tally, self.since, self.draft.resolved_lsn)

    @precondition(lambda self: self.draft is not None)
    @rule(is_accepted=st.booleans())
    def answer(self, is_accepted: bool) -> None:
        assert self.draft is not None
        if is_accepted:
            self.marks.settle()
            self.since = self.draft.resolved_lsn
        else:
            self.marks.take_back()
        self.draft = None

    @invariant()
    def counts_what_waits(self) -> None:
        assert self.marks.since_lsn == self.since
        known = self.between(self.since, self.frontier())
        is_waiting = self.marks.is_waiting(self.frontier())
        assert not is_waiting or known
        if self.frontier() > self.crowded_until:
            assert is_waiting is bool(known)

    def frontier(self) -> int:
        """Where the AckTracker's would be: the end of the last transaction before one that waits."""
        oldest = min((each.commit_lsn for each in self.waiting), default=self.next_lsn + 1)
        return max((end for commit_lsn, end in self.ends if commit_lsn < oldest), default=10)

    def overtakers(self) -> set[int]:
        """Transactions that have accepted records, and that no manifest could speak of yet."""
        complete_lsn = self.marks.complete_lsn(self.frontier())
        return {each.event.commit_lsn for each in self.taken if each.event.commit_lsn >= complete_lsn}

    def between(self, since: int, resolved: int) -> list[Known]:
        return [each for each in self.taken if since <= each.event.commit_lsn < resolved]

    def check(self, tally: Tally, since: int, resolved: int) -> None:
        taken = self.between(since, resolved)
        assert (tally.records, tally.size_bytes) == (
            len(taken),
            sum(each.event.record_size_bytes for each in taken),
        )
        assert list(tally.shards()) == sorted({each.entry.shard for each in taken})
        for shard, told in tally.shards().items():
            numbers = [int(each.entry.sequence) for each in taken if each.entry.shard == shard]
            assert told.count == len(numbers)
            assert int(told.first) <= min(numbers)
            assert int(told.last) >= max(numbers)
            requests = {each.request for each in taken if each.entry.shard == shard}
            there = {
                each.entry.sequence
                for each in self.taken
                if each.entry.shard == shard and each.request in requests
            }
            assert {told.first, told.last} <= there, "an end is a record of the same requests"
        tables = {}
        for table in {each.event.relation for each in taken} - {None}:
            own = [each.event for each in taken if each.event.relation == table]
            truncates = [each.offset for each in own if isinstance(each.table, Truncate)]
            tables[str(table)] = TableMark(len(own), position(*max(truncates)) if truncates else None)
        assert tally.tables(HISTORY) == tables


def position(commit_lsn: int, op_offset: int) -> str:
    return str(StreamPosition(1 if commit_lsn < 60 else 2, commit_lsn, operation(op_offset)))


TestMarks = MarksMachine.TestCase


def test_many_tables_are_a_star() -> None:
    tally = Tally()
    for number in range(MOST_TABLES + 1):
        event = ChangeEvent(1, b"", "k", 1, 1, 0, 0.0, table=Relation("public", f"t{number}"))
        assert tally.tables(HISTORY) != "*"
        tally.add(Records.of([event], Taken.of([Entry(shard="x", sequence="1")])))
    assert tally.tables(HISTORY) == "*"
