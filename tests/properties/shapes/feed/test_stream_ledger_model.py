"""The books of a marked stream against plain lists: each shape gets every change of its tables once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock.kinesis.marked.manifest import Manifest, ShardRange, TableMark
from penstock.kinesis.read.chain import Chain
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.stream_position import StreamPosition
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.feed import stream_backlog, stream_part
from penstock.shapes.feed.stream_backlog import StreamBacklog
from penstock.shapes.feed.stream_ledger import StreamLedger, count_readers
from penstock.shapes.feed.stream_part import RecentBlocks, parts_of
from penstock.shapes.feed.stream_routes import StreamRoutes
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.pace.shape_plan import Job
from tests.stream_in_memory import StreamInMemory

TABLES = tuple(Relation("public", name) for name in "abc")
SHAPES = {"a": TABLES[0], "a_too": TABLES[0], "b": TABLES[1]}
START = 1_000


class Put(NamedTuple):
    commit_lsn: int
    op_offset: int
    table: Relation


class _Memory(StreamInMemory):
    def close(self) -> None:
        """Nothing to close."""


class _Address:
    def __init__(self, stream: _Memory) -> None:
        self._stream = stream

    def lend(self) -> AbstractContextManager[_Memory]:
        return nullcontext(self._stream)


class LedgerMachine(RuleBasedStateMachine):
    """Leaders follow each other and publish again, records are repeated, shards split, shapes take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = _Memory(2)
        self.lsn = START
        self.history: list[Put] = []
        self.by, self.leaders = "0" * 12, 0
        self.since = self.resolved = START
        self.shards: dict[str, list[int]] = {}
        self.in_shard: Counter[str] = Counter()
        self.tables: Counter[Relation] = Counter()
        self.count = 0
        self.clock = 0.0
        held = Held()
        address = cast(StreamAddress, _Address(self.stream))
        routes = StreamRoutes(SHAPES, [Tree(Member(table, 1, 1, "")) for table in TABLES])
        self.ledger = StreamLedger(
            held=held,
            routes=routes,
            backlog=StreamBacklog(
                StreamPosition(1, START),
                partial(parts_of, address, RecentBlocks()),
                partial(count_readers, routes),
            ),
            tracker=FlushTracker(initial_lsn=START),
            plan=FlushPlan(held=held),
        )
        for shape in SHAPES:
            self.ledger.add(shape, interval_s=0.0, held=whole(START - 1), now=0.0)
        self.chain: Chain[int] = Chain(
            slot="slot", system="7", applied=str(StreamPosition(1, START)), place=0
        )
        self.got: dict[str, list[Put]] = {shape: [] for shape in SHAPES}

    @rule(
        data=st.data(),
        tables=st.lists(st.sampled_from(TABLES), min_size=1, max_size=4),
        repeats=st.booleans(),
    )
    def commit(self, data: st.DataObject, tables: list[Relation], repeats: bool) -> None:
        for number, table in enumerate(tables):
            put = Put(self.lsn, 2 * number, table)
            self.history.append(put)
            self._publish(data, put)
            if repeats:
                self._put(data, put)
        self.lsn += 8

    @rule(says_all=st.booleans())
    def mark(self, says_all: bool) -> None:
        if self.lsn == self.resolved:
            return
        shards = {
            name: ShardRange(str(min(found)), str(max(found)), self.in_shard[name])
            for name, found in self.shards.items()
        }
        tables = {str(table): TableMark(count, None) for table, count in self.tables.items()}
        since, self.since, self.resolved = self.since, self.lsn, self.lsn
        manifest = Manifest(
            "R", "7", "slot", self.by, self._at(since), self._at(self.lsn), self.count, 10 * self.count,
            shards, "*" if says_all else tables,
        )  # fmt: skip
        self._forget()
        for link, _ in self.chain.take(manifest, 0):
            self.ledger.backlog.know({shard.shard_id: shard for shard in self.stream.shards()})
            assert not self.ledger.take(link, self.stream.now, self.clock)

    @rule(data=st.data(), back=st.integers(0, 3))
    def another_leads(self, data: st.DataObject, back: int) -> None:
        """It begins where the slot stands: at or below what manifests have reached."""
        self.leaders += 1
        self.by = f"{self.leaders:012d}"
        self.since = max(START, self.resolved - 8 * back)
        self._forget()
        for put in self.history:
            if put.commit_lsn >= self.since:
                self._publish(data, put)

    @precondition(lambda self: len(self.stream.open_shards()) < 5)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        self.stream.split(data.draw(st.sampled_from(self.stream.open_shards())))

    @rule(most=st.sampled_from([10, 30, 1_000_000]))
    def flush(self, most: int) -> None:
        self._flush_all(most, lambda: None)

    @rule(most=st.sampled_from([10, 30, 1_000_000]), data=st.data())
    def flush_while_others_go_on(self, most: int, data: st.DataObject) -> None:
        """The next manifest comes, and blocks are closed, between two questions of a flush."""

        def go_on() -> None:
            self.commit(data, [TABLES[0]], repeats=False)
            self.mark(says_all=False)
            self.ledger.backlog.flush(self.clock)

        self._flush_all(most, go_on)

    def _flush_all(self, most: int, meanwhile: Callable[[], None]) -> None:
        self.clock += 1.0
        self.ledger.backlog.flush(self.clock)
        for shape, job in self.ledger.plan.start(self.clock):
            assert job is Job.FLUSH
            self._flush(shape, most, meanwhile)

    @rule()
    def trim(self) -> None:
        self.ledger.backlog.trim(self.ledger.tracker.minimum)

    def teardown(self) -> None:
        self.mark(says_all=False)
        for _ in range(100):
            self.flush(1_000_000)
        for shape, table in SHAPES.items():
            assert sorted(self.got[shape]) == [put for put in self.history if put.table == table]
        assert self.ledger.tracker.behind_count == 0
        assert self.ledger.tracker.frontier_lsn == self.resolved

    def _flush(self, shape: str, most: int, meanwhile: Callable[[], None]) -> None:
        log, table = self.ledger.backlog, SHAPES[shape]
        after = self.ledger.held(shape)
        up_to = log.boundary_within({table}, after, most)
        meanwhile()
        found = [
            Put(tx, op, table)
            for part in log.read_plan({table}, after, up_to)
            for batch in part.read()
            for tx, op in zip(batch["tx_offset"].to_pylist(), batch["op_offset"].to_pylist(), strict=True)
        ]
        expected = [
            put
            for put in self.history
            if put.table == table and after.tx_offset < put.commit_lsn <= up_to.tx_offset
        ]
        assert sorted(found) == expected
        self.got[shape] += found
        has_more = up_to < log.last_persisted_txn_offset
        if found:
            self.ledger.flushed(shape, up_to.tx_offset, self.clock, more=has_more)
        else:
            self.ledger.passed(shape, up_to.tx_offset, self.clock, more=has_more)
        assert all(
            put in self.got[shape] for put in self.history if put.table == table and self._is_confirmed(put)
        )

    def _is_confirmed(self, put: Put) -> bool:
        return LogOffset(put.commit_lsn, 0) < LogOffset(self.ledger.tracker.frontier_lsn, 0)

    def _publish(self, data: st.DataObject, put: Put) -> None:
        shard, sequence = self._put(data, put)
        self.shards.setdefault(shard, []).append(sequence)
        self.in_shard[shard] += 1
        self.tables[put.table] += 1
        self.count += 1

    def _put(self, data: st.DataObject, put: Put) -> tuple[str, int]:
        """A key stays in its shard, and in those that this becomes."""
        middle = (TABLES.index(put.table) * 2 + 1) * 2**128 // (2 * len(TABLES))
        (shard,) = (
            info.shard_id
            for info in self.stream.shards()
            if not info.is_closed and info.low <= middle <= info.high
        )
        position = StreamPosition(1, put.commit_lsn, put.op_offset + 1)
        prefix = f'{{"pos":"{position}","by":"{self.by}",'
        row = f'"action":"I","schema":"public","table":"{put.table.table}"}}'
        return shard, self.stream.put(shard, (prefix + row).encode())

    def _forget(self) -> None:
        self.shards, self.in_shard, self.tables, self.count = {}, Counter(), Counter(), 0

    def _at(self, lsn: int) -> str:
        return str(StreamPosition(1, lsn))


class SmallBlocks(LedgerMachine):
    """Blocks that are full soon, joined as soon as there are two, and read by executors."""

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[Any, str, int]] = []
        for module, name, value in (
            (stream_backlog, "BLOCK_BYTES", 40),
            (stream_backlog, "_MANY_BLOCKS", 1),
            (stream_part, "_SMALL_BLOCK", 5),
        ):
            self._before.append((module, name, getattr(module, name)))
            setattr(module, name, value)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for module, name, value in self._before:
                setattr(module, name, value)


TestStreamLedger = LedgerMachine.TestCase
TestStreamLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSmallBlocks = SmallBlocks.TestCase
TestSmallBlocks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
