"""FlushTracker against lists that keep everything: the WAL, the tables, and all that the tracker was told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.shapes.pace.flush_tracker import FlushTracker

SHAPES = ("a", "b", "c")
shapes = st.sampled_from(SHAPES)
gaps = st.integers(0, 3)
places = st.floats(0, 1, exclude_max=True)


class Transaction(NamedTuple):
    last: LogOffset
    end_lsn: int
    touched: frozenset[str]


@dataclass
class Table:
    """A shape as it really is."""

    needs_from: int
    """Index in the WAL of the first transaction that it needs; a snapshot holds those before."""
    holds: LogOffset = BEFORE_ALL
    pinned: bool = False


@dataclass
class Told:
    """What a tracker was told about one shape, and what follows from it."""

    sent: list[LogOffset] = field(default_factory=list)
    """What it was sent and has not flushed."""
    flushed: LogOffset = BEFORE_ALL
    pinned: bool = False

    @property
    def is_behind(self) -> bool:
        return bool(self.sent) or self.pinned

    def note(self, offset: LogOffset) -> None:
        self.flushed = max(self.flushed, offset)
        self.sent = [last for last in self.sent if last > offset]


class NaiveTracker:
    """The rules of FlushTracker, searched through from the start each time."""

    def __init__(self, initial_lsn: int) -> None:
        self.frontier = initial_lsn
        self.seen: list[LogOffset] = [BEFORE_ALL]
        self.seen_lsns: list[int] = [0]
        self.minimums: list[LogOffset] = [BEFORE_ALL]
        self.told: dict[str, Told] = {}

    @property
    def behind(self) -> dict[str, Told]:
        return {shape: told for shape, told in self.told.items() if told.is_behind}

    @property
    def minimum(self) -> LogOffset:
        return min((told.flushed for told in self.behind.values()), default=self.seen[-1])

    def commit(self, transaction: Transaction) -> int | None:
        for shape in transaction.touched:
            told = self.told.setdefault(shape, Told())
            if not told.is_behind:
                told.flushed = self.seen[-1]
            told.sent.append(transaction.last)
        self.seen.append(transaction.last)
        self.seen_lsns.append(transaction.end_lsn)
        return self.answer()

    def keepalive(self, wal_end: int) -> int | None:
        self.seen_lsns.append(wal_end)
        return self.answer()

    def flushed(self, shape: str, offset: LogOffset) -> int | None:
        if shape in self.behind and not self.told[shape].pinned:
            self.told[shape].note(offset)
        return self.answer()

    def add(self, shape: str, flushed: LogOffset) -> None:
        self.told[shape] = Told(flushed=flushed, pinned=True)
        self.answer()

    def snapshotted(self, shape: str, cut_lsn: int) -> int | None:
        self.told[shape].pinned = False
        self.told[shape].note(LogOffset(cut_lsn - 1, OP_INFINITY))
        return self.answer()

    def remove(self, shape: str) -> int | None:
        self.told.pop(shape, None)
        return self.answer()

    def answer(self) -> int | None:
        self.minimums.append(self.minimum)
        lsn = self.minimum.tx_offset if self.behind else max(self.seen_lsns)
        if lsn <= self.frontier:
            return None
        self.frontier = lsn
        return lsn


class FlushMachine(RuleBasedStateMachine):
    """A database that writes, a stream that breaks and resumes, and shapes that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.wal: list[Transaction] = []
        self.wal_lsn = 10
        """Where the next WAL record begins."""
        self.read = 0
        """How many transactions of the WAL this stream has sent."""
        self.slot = [10]
        """Every position that the slot ever had."""
        self.tables = {shape: Table(0) for shape in SHAPES}
        self.held = {shape: [BEFORE_ALL] for shape in SHAPES}
        """Every offset that a table of that name ever held, also a former one's."""
        self.start(10)

    def start(self, lsn: int) -> None:
        self.model = NaiveTracker(lsn)
        self.tracker = FlushTracker(initial_lsn=lsn)
        self.read = next(
            (index for index, transaction in enumerate(self.wal) if lsn <= transaction.last.tx_offset),
            len(self.wal),
        )

    def pin(self, shape: str) -> None:
        self.tables[shape] = Table(needs_from=len(self.wal), pinned=True)
        frontier = LogOffset(self.tracker.frontier_lsn, 0)
        self.model.add(shape, frontier)
        self.tracker.add(shape, flushed=frontier, now=0.0)

    def heard(self, answer: int | None, expected: int | None) -> None:
        assert answer == expected
        if answer is not None:
            self.slot.append(answer)

    def pick(self, place: float) -> str:
        """A shape that is behind, if there is one."""
        candidates = sorted(self.model.behind) or SHAPES
        return candidates[int(place * len(candidates))]

    @rule(touches=st.lists(st.sets(shapes), min_size=1, max_size=4), gap=gaps, last_op=gaps)
    def write_and_read(self, touches: list[set[str]], gap: int, last_op: int) -> None:
        for touched in touches:
            self.write(touched, gap, last_op, length=1)
        self.read_some(len(self.wal))

    @rule(touched=st.sets(shapes), gap=gaps, last_op=gaps, length=st.integers(1, 3))
    def write(self, touched: set[str], gap: int, last_op: int, length: int) -> None:
        commit_lsn = self.wal_lsn + gap
        self.wal_lsn = commit_lsn + length
        self.wal.append(Transaction(LogOffset(commit_lsn, 2 * last_op), self.wal_lsn, frozenset(touched)))

    @precondition(lambda self: self.read < len(self.wal))
    @rule(count=st.integers(1, 4))
    def read_some(self, count: int) -> None:
        for written in self.wal[self.read : self.read + count]:
            seen = written._replace(touched=written.touched & self.tables.keys())
            answer = self.tracker.committed(seen.last, seen.end_lsn, seen.touched, 0.0)
            self.heard(answer, self.model.commit(seen))
            self.read += 1

    @rule(gap=gaps)
    def keepalive(self, gap: int) -> None:
        """At the end of the WAL it may bring news; before that, it is at most what was seen."""
        if self.read == len(self.wal):
            self.wal_lsn += gap
            wal_end = self.wal_lsn
        else:
            wal_end = max(self.model.seen_lsns) - gap
        self.heard(self.tracker.keepalive(wal_end), self.model.keepalive(wal_end))

    def flush(self, shape: str, offset: LogOffset) -> None:
        table = self.tables[shape]
        if not table.pinned and offset > table.holds:
            table.holds = offset
            self.held[shape].append(offset)

    @precondition(lambda self: self.read)
    @rule(who=places, place=places, whole=st.booleans())
    def flush_to_the_end_of_a_transaction(self, who: float, place: float, whole: bool) -> None:
        shape = self.pick(who)
        last = self.wal[int(place * self.read)].last
        if shape in self.tables:
            self.flush(shape, LogOffset(last.tx_offset, OP_INFINITY) if whole else last)
            self.note(shape, late=0)

    @precondition(lambda self: self.wal)
    @rule(who=places, place=places, short=st.integers(1, 3))
    def flush_in_mid_transaction(self, who: float, place: float, short: int) -> None:
        """Of a transaction whose commit may not have been seen yet."""
        shape = self.pick(who)
        last = self.wal[int(place * min(self.read + 1, len(self.wal)))].last
        if shape in self.tables and last.op_offset >= short:
            self.flush(shape, LogOffset(last.tx_offset, last.op_offset - short))
            self.note(shape, late=0)

    @rule(who=places, late=st.integers(0, 3))
    def repeat_a_note(self, who: float, late: int) -> None:
        self.note(self.pick(who), late)

    @rule(shape=shapes, late=st.integers(0, 3))
    def note(self, shape: str, late: int) -> None:
        """What the table holds or held a while ago; also of a shape that is pinned or gone."""
        offset = self.held[shape][-min(late + 1, len(self.held[shape]))]
        self.heard(self.tracker.flushed(shape, offset, 0.0), self.model.flushed(shape, offset))

    @rule()
    def everybody_flushes(self) -> None:
        for shape, table in self.tables.items():
            if table.pinned:
                self.finish_snapshot(shape)
            if self.read:
                self.flush(shape, self.wal[self.read - 1].last)
            self.note(shape, late=0)
        assert (self.tracker._behind, self.tracker._index) == ({}, [])

    @rule(shape=shapes)
    def add(self, shape: str) -> None:
        """A new shape, or one that begins anew."""
        self.pin(shape)

    @rule(shape=shapes, gap=gaps)
    def finish_snapshot(self, shape: str, gap: int = 0) -> None:
        """The cut may be anywhere between the pin and now."""
        if shape in self.tables and self.tables[shape].pinned:
            table = self.tables[shape]
            table.needs_from = min(table.needs_from + gap, len(self.wal))
            later = self.wal[table.needs_from :]
            cut_lsn = later[0].last.tx_offset if later else self.wal_lsn
            table.pinned = False
            self.flush(shape, LogOffset(cut_lsn - 1, OP_INFINITY))
            answer = self.tracker.snapshotted(shape, cut_lsn, 0.0)
            self.heard(answer, self.model.snapshotted(shape, cut_lsn))

    @rule(shape=shapes)
    def remove(self, shape: str) -> None:
        self.tables.pop(shape, None)
        self.heard(self.tracker.remove(shape), self.model.remove(shape))

    @rule(back=st.sampled_from([1, 1, 1, 2, 4]))
    def reconnect(self, back: int) -> None:
        """Postgres sends again from the slot's position, which may be an older one than was confirmed."""
        self.start(self.slot[-min(back, len(self.slot))])
        for shape, table in self.tables.items():
            if table.pinned:
                self.pin(shape)

    @rule(distance=st.integers(1, 3))
    def refuse_decreasing(self, distance: int) -> None:
        lsn = max(self.model.seen_lsns) - distance
        with pytest.raises(ValueError):
            self.tracker.committed(LogOffset(lsn, 0), self.wal_lsn, set(SHAPES), 0.0)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.tracker.frontier_lsn == self.model.frontier
        assert self.tracker.minimum == self.model.minimum
        assert self.tracker.last_seen_offset == self.model.seen[-1]
        assert self.tracker.last_global_flushed_offset == max(self.model.minimums)

    @invariant()
    def never_past_what_a_shape_still_needs(self) -> None:
        for shape, table in self.tables.items():
            for transaction in self.wal[table.needs_from :]:
                if shape in transaction.touched and transaction.last > table.holds:
                    assert self.tracker.frontier_lsn <= transaction.last.tx_offset

    @invariant()
    def never_past_what_was_not_sent(self) -> None:
        for transaction in self.wal[self.read :]:
            assert self.tracker.frontier_lsn <= transaction.last.tx_offset

    @invariant()
    def keeps_exactly_those_that_are_behind(self) -> None:
        behind = self.model.behind
        assert self.tracker._behind.keys() == behind.keys()
        assert self.tracker._index == sorted((told.flushed, shape) for shape, told in behind.items())
        for shape, told in behind.items():
            progress = self.tracker.progress(shape)
            assert progress is not None
            assert progress.pinned == told.pinned
            assert progress.last_sent == (told.sent[-1] if told.sent else BEFORE_ALL)


TestFlushMachine = FlushMachine.TestCase
TestFlushMachine.settings = settings(
    max_examples=300, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
