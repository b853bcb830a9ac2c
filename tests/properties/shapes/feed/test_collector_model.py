"""The Collector against a naive reading of the same WAL, over streams that break and begin again."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.decoding.wal2json import Wal2Json
from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Found, Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Append, Collector, Committed, Silence, Step
from penstock.shapes.pace.flush_tracker import FlushTracker

ORDERS = Relation("public", "orders")
EVENTS = Relation("public", "events")
MAY = Relation("public", "events_may")
JUNE = Relation("public", "events_june")
OTHER = Relation("public", "other")

SHAPES = {"orders": ORDERS, "events": EVENTS, "more_events": EVENTS, "may": MAY}
MEMBERS = {"orders": {ORDERS}, "events": {EVENTS, MAY, JUNE}, "may": {MAY}}
MEMBERS["more_events"] = MEMBERS["events"]
TREES = (
    Tree(Member(ORDERS, 1, 1, "a")),
    Tree(Member(EVENTS, 2, 2, "a"), (Member(MAY, 3, 3, "a"),), is_partitioned=True),
    Tree(Member(MAY, 3, 3, "a")),
)
CATALOG = {JUNE: Found((EVENTS,)), OTHER: Found()}
STATEMENTS = {
    "insert orders": [(ORDERS, "I")],
    "insert may": [(MAY, "I")],
    "delete june": [(JUNE, "D")],
    "insert other": [(OTHER, "I")],
    "truncate orders": [(ORDERS, "T")],
    "truncate events": [(EVENTS, "T"), (MAY, "T"), (JUNE, "T")],
    "truncate may and events": [(MAY, "T"), (EVENTS, "T"), (JUNE, "T")],
    "truncate may": [(MAY, "T")],
    "truncate june": [(JUNE, "T")],
}
WHOLE = ("truncate events", "truncate may and events")
PARTIAL = ("truncate may", "truncate june")


class Change(NamedTuple):
    relation: Relation
    op_offset: int
    payload: bytes


class Transaction(NamedTuple):
    commit_lsn: int
    statements: list[str]

    @property
    def changes(self) -> list[Change]:
        rows = [row for statement in self.statements for row in STATEMENTS[statement]]
        return [
            Change(relation, 2 * place, payload(relation, action, self.commit_lsn + place))
            for place, (relation, action) in enumerate(rows)
        ]

    def of(self, shape: str) -> list[Change]:
        return [change for change in self.changes if change.relation in MEMBERS[shape]]

    @property
    def leaves_rows_behind(self) -> bool:
        """Whether a partition is truncated alone, and the whole table not after it."""
        for statement in reversed(self.statements):
            if statement in WHOLE:
                return False
            if statement in PARTIAL:
                return True
        return False

    @property
    def frames(self) -> Iterator[bytes]:
        yield boundary("B", self.commit_lsn)
        changes = iter(self.changes)
        for number, statement in enumerate(self.statements):
            # One statement is one WAL record here. Change LSNs lie before the commit.
            for _ in STATEMENTS[statement]:
                yield xlogdata(next(changes).payload, self.commit_lsn - 100 + number)
        yield boundary("C", self.commit_lsn)


def payload(relation: Relation, action: str, mark: int) -> bytes:
    names = f'"schema":"{relation.schema}","table":"{relation.table}"'
    return f'{{"action":"{action}",{names},"mark":{mark}}}'.encode()


def xlogdata(data: bytes, wal_start: int = 0) -> bytes:
    return struct.pack("!cqqq", b"w", wal_start, wal_start, 77) + data


def boundary(action: str, commit_lsn: int) -> bytes:
    lsn, end = format_lsn(commit_lsn), format_lsn(commit_lsn + 50)
    return xlogdata(f'{{"action":"{action}","lsn":"{lsn}","nextlsn":"{end}"}}'.encode())


def keepalive(wal_end: int) -> bytes:
    return struct.pack("!cqqB", b"k", wal_end, 77, False)


def stream(transactions: Sequence[Transaction], quiet: Sequence[bool]) -> list[bytes]:
    """The frames, with a keepalive in the middle of each transaction and, where it is quiet, behind it."""
    frames: list[bytes] = []
    for transaction, is_quiet in zip(transactions, quiet, strict=True):
        begin, *rest = transaction.frames
        frames += [begin, keepalive(transaction.commit_lsn), *rest]
        frames += [keepalive(transaction.commit_lsn + 60)] * is_quiet
    return frames


def collect(collector: Collector, frames: Sequence[bytes], sizes: Iterator[int]) -> list[Step]:
    """Everything that comes of the frames, handed over in pieces; unknown relations are answered late."""
    steps: list[Step] = []
    place = 0
    while place < len(frames):
        piece = [memoryview(frame) for frame in frames[place : place + next(sizes)]]
        taken = collector.take(piece, 0)
        steps += taken.steps
        place += taken.next_frame
        if taken.unknown is not None:
            assert collector.take(piece, taken.next_frame) == taken._replace(steps=[])
            assert collector.learn(taken.unknown, CATALOG[taken.unknown]) == []
    return steps


def expected_steps(transaction: Transaction, held: dict[str, LogOffset], is_quiet: bool) -> list[Step]:
    lsn = transaction.commit_lsn
    needed_by = [name for name in SHAPES if held[name] < LogOffset(lsn, OP_INFINITY)]
    touched = frozenset(name for name in needed_by if transaction.of(name))
    relations = {relation for name in needed_by for relation in MEMBERS[name]}
    changes = transaction.changes
    steps: list[Step] = [
        Append(change.relation, lsn, change.op_offset, change.payload)
        for change in changes
        if change.relation in relations
    ]
    if transaction.leaves_rows_behind:
        last = [name for name in transaction.statements if name in PARTIAL][-1]
        part = STATEMENTS[last][0][0]
        reason = f"{part}, a partition of {EVENTS}, was truncated alone"
        steps += [SnapshotAgain(name, reason) for name in ("events", "more_events") if name in needed_by]
    last_op = changes[-1].op_offset if changes else 0
    steps.append(Committed(LogOffset(lsn, last_op), lsn + 50, touched))
    return [*steps, *[Silence(lsn + 60)] * is_quiet]


contents = st.lists(st.lists(st.sampled_from(sorted(STATEMENTS)), max_size=5), min_size=1, max_size=6)


@given(contents=contents, streams=st.integers(1, 4), data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_every_table_gets_every_change_once_however_often_the_stream_begins_again(
    contents: list[list[str]], streams: int, data: st.DataObject
) -> None:
    wal = [Transaction(1000 * number, statements) for number, statements in enumerate(contents, start=1)]
    tables: dict[str, list[tuple[int, list[Change]]]] = {name: [] for name in SHAPES}
    held = dict.fromkeys(SHAPES, BEFORE_ALL)
    slot = 10
    for number in range(streams):
        is_last = number == streams - 1
        sent = [transaction for transaction in wal if slot <= transaction.commit_lsn]
        quiet = [data.draw(st.booleans()) for _ in sent]
        frames = stream(sent, quiet)
        sizes = iter(lambda: data.draw(st.integers(1, 9)), 0)
        collector = Collector(
            walk=FrameWalk(Wal2Json(), confirmed_lsn=slot, needs_lsn=True),
            shapes=SHAPES,
            trees=TREES,
            held={name: offset for name, offset in held.items() if offset != BEFORE_ALL},
        )
        tracker = FlushTracker(initial_lsn=slot)
        steps = collect(collector, frames, sizes)
        assert steps == [
            step
            for transaction, is_quiet in zip(sent, quiet, strict=True)
            for step in expected_steps(transaction, held, is_quiet)
        ]
        tell(tracker, steps)
        for name, table in SHAPES.items():
            up_to = wal[-1].commit_lsn if is_last else data.draw(st.sampled_from([0, *[t[0] for t in wal]]))
            flush(tables[name], steps, collector.relations_of(table), held[name].tx_offset, up_to)
            held[name] = max(held[name], LogOffset(up_to, OP_INFINITY)) if up_to else held[name]
            tracker.flushed(name, held[name], 0.0)
        slot = data.draw(st.sampled_from([slot, tracker.frontier_lsn]), label="the slot may go back")
    for name, table_rows in tables.items():
        assert table_rows == [
            (transaction.commit_lsn, transaction.of(name)) for transaction in wal if transaction.of(name)
        ]


def tell(tracker: FlushTracker, steps: Sequence[Step]) -> None:
    for step in steps:
        if isinstance(step, Committed):
            tracker.committed(step.last, step.end_lsn, step.touched, 0.0)
        elif isinstance(step, Silence):
            tracker.keepalive(step.wal_end)


def flush(
    table: list[tuple[int, list[Change]]],
    steps: Sequence[Step],
    relations: frozenset[Relation],
    after: int,
    up_to: int,
) -> None:
    """Apply what the log has of these relations behind the table's own offset."""
    logged: dict[int, list[Change]] = {}
    for step in steps:
        if isinstance(step, Append) and step.relation in relations and after < step.tx_offset <= up_to:
            change = Change(step.relation, step.op_offset, step.payload)
            logged.setdefault(step.tx_offset, []).append(change)
    table += logged.items()
