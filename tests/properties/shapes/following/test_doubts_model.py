"""Doubts against a server that changes rows without a word: what is called proved is so.

A table without TOAST, another one that gets a partition, and a shape of each. The stream lags behind the
server, snapshots begin with cuts ahead of it, and the service starts again where its slot was a while ago.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.decoding.wal2json import Wal2Json
from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Found, Member, Tree
from penstock.postgres.snapshot.content import Content
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Append, Collector
from penstock.shapes.following.streamed_rows import row_hash

ORDERS, EVENTS, JUNE = (Relation("public", name) for name in ("orders", "events", "june"))
SHAPES = {"orders": ORDERS, "events": EVENTS}
KEYS = range(3)
ID = [{"name": "id", "type": "integer"}]


class Written(NamedTuple):
    """A transaction of one change."""

    lsn: int
    relation: Relation
    action: str
    key: int

    @property
    def frames(self) -> list[memoryview]:
        cells = [{"name": "id", "type": "integer", "value": self.key}]
        change = {"action": self.action, "schema": "public", "table": self.relation.table}
        values = {"I": {"columns": cells}, "D": {"identity": cells}, "T": {}}[self.action]
        lsn, end = format_lsn(self.lsn), format_lsn(self.lsn + 1)
        bounds = [f'{{"action":"{action}","lsn":"{lsn}","nextlsn":"{end}"}}' for action in "BC"]
        # As wal2json writes them: no blanks.
        row = json.dumps({**change, **values, "pk": ID}, separators=(",", ":"))
        texts = [bounds[0], row, bounds[1]]
        return [memoryview(struct.pack("!cqqq", b"w", 0, 0, 0) + text.encode()) for text in texts]

    def on(self, rows: dict[Relation, set[int]]) -> None:
        match self.action:
            case "I":
                rows[self.relation].add(self.key)
            case "D":
                rows[self.relation].discard(self.key)
            case "T":
                rows[self.relation].clear()


class World:
    """A server, the service's collector, and the lake's tables, which have all that was collected at once."""

    def __init__(self) -> None:
        self.wal_lsn = 100
        self.wal: list[Written] = []
        self.rows: dict[Relation, set[int]] = {ORDERS: {0}}
        self.files = {ORDERS: 1}
        self.slot = 10
        self.held = BEFORE_ALL
        self.judged = self.trees
        self.lake: dict[Relation, set[int]] = {ORDERS: {0}, JUNE: set()}
        self.must_copy = False
        self.is_just_copied = self.has_looked = False
        self.start()

    @property
    def trees(self) -> list[Tree]:
        parts = tuple(Member(JUNE, 4, self.files[JUNE], "a") for _ in self.rows.keys() & {JUNE})
        return [
            Tree(Member(ORDERS, 1, self.files[ORDERS], "a")),
            Tree(Member(EVENTS, 2, 0, "a"), parts, is_partitioned=True),
        ]

    def start(self) -> None:
        self.held_by = {} if self.held == BEFORE_ALL else dict.fromkeys(SHAPES, self.held)
        walk = FrameWalk(Wal2Json(), confirmed_lsn=self.slot, needs_lsn=True)
        self.collector = Collector(walk=walk, shapes=SHAPES, trees=self.judged, held=self.held_by)
        self.next = sum(each.lsn < self.slot for each in self.wal)

    def start_again(self) -> None:
        """The registry has the trees that were judged last, and whether the tables count.

        Not where a copy has just begun: of the looks around it the next life would not know.
        """
        if self.is_just_copied:
            return
        self.judged = [self.collector.tree_of(table, shape) for shape, table in SHAPES.items()]
        self.start()
        if self.must_copy:
            self.copy()

    def confirm(self) -> None:
        """Postgres may forget what was read."""
        if self.next:
            self.slot = self.wal[self.next - 1].lsn

    def write(self, relation: Relation, action: str, key: int) -> None:
        if relation not in self.rows or (action != "T" and (action == "I") == (key in self.rows[relation])):
            return
        self.wal_lsn += 10
        self.wal.append(Written(self.wal_lsn, relation, action, key))
        self.wal[-1].on(self.rows)
        self.files[relation] += action == "T"

    def hide(self, relation: Relation, rows: set[int]) -> None:
        """SET UNLOGGED, whatever, SET LOGGED."""
        if relation in self.rows:
            self.rows[relation] = set(rows)
            self.files[relation] += 2
            self.wal_lsn += 10

    def create(self) -> None:
        self.rows.setdefault(JUNE, set())
        self.files.setdefault(JUNE, 1)
        self.wal_lsn += 10

    def copy(self) -> None:
        """A snapshot begins, and is done."""
        self.is_just_copied, self.has_looked = True, False
        self.held = LogOffset(self.wal_lsn + 1, OP_INFINITY)
        for shape in SHAPES:
            self.held_by[shape] = self.held
            self.collector.copy_begins(shape, self.held.tx_offset + 1)
        self.lake = {part: set(self.rows.get(part, ())) for part in (ORDERS, JUNE)}
        self.must_copy = False

    def note(self, found: list[SnapshotAgain]) -> None:
        self.must_copy |= bool(found)

    def read(self, count: int) -> None:
        for written in self.wal[self.next : self.next + count]:
            frames, place = written.frames, 0
            while place < len(frames):
                taken = self.collector.take(frames, place)
                place = taken.next_frame
                if taken.unknown is not None:
                    self.note(self.collector.learn(taken.unknown, Found((EVENTS,))))
                if any(isinstance(step, Append) for step in taken.steps):
                    written.on(self.lake)
                self.note([step for step in taken.steps if isinstance(step, SnapshotAgain)])
            self.held = max(self.held, LogOffset(written.lsn, OP_INFINITY))
            self.next += 1

    def look(self) -> None:
        self.wal_lsn += 1
        self.has_looked = True
        self.note(self.collector.check(self.trees, self.wal_lsn))

    def settle(self) -> None:
        self.wal_lsn += 1
        self.read(len(self.wal))
        for doubt in self.collector.doubts:
            member = doubt.member
            hashes = [row_hash([str(key)]) for key in self.rows[member.relation]]
            content = Content(self.wal_lsn, member.oid, self.files[member.relation], len(hashes), sum(hashes))
            self.note(self.collector.settle(doubt, content))
        self.is_just_copied &= not self.has_looked or not self.collector.is_certain


parts = st.sampled_from([ORDERS, JUNE])
events = st.one_of(
    st.tuples(st.just("write"), parts, st.sampled_from("IIDT"), st.sampled_from(KEYS)),
    st.tuples(st.just("hide"), parts, st.sets(st.sampled_from(KEYS), max_size=1)),
    st.tuples(st.just("read"), st.integers(1, 3)),
    st.sampled_from([("create",), ("copy",), ("look",), ("settle",), ("start_again",), ("confirm",)]),
)


COPIED_AHEAD = [("write", ORDERS, "T", 0), ("read", 1), ("write", ORDERS, "I", 1), ("copy",)]
PART_COPIED_AHEAD = [("create",), ("write", JUNE, "I", 1), ("copy",), ("read", 1)]


@given(st.lists(events, min_size=4, max_size=20))
@example([*COPIED_AHEAD, ("hide", ORDERS, set())])
@example([*PART_COPIED_AHEAD, ("hide", JUNE, set())])
@example([*PART_COPIED_AHEAD, ("write", JUNE, "I", 2), ("read", 1), ("hide", JUNE, {2})])
@example([("create",), ("hide", JUNE, {0}), ("copy",), ("hide", JUNE, set())])
@settings(max_examples=600, deadline=None, derandomize=True, database=None)
def test_a_table_that_is_not_copied_again_is_right(happens: list[tuple[Any, ...]]) -> None:
    world = World()
    for name, *arguments in happens:
        getattr(world, name)(*arguments)
    for _ in range(2):
        world.look()
        world.settle()

    assert world.must_copy or world.lake == {ORDERS: set(), JUNE: set()} | world.rows
