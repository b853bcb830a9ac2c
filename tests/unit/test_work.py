"""What is done for a shape, beside the jobs themselves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from penstock.capture.transaction_builder import TransactionBuilder
from penstock.errors import PenstockError
from penstock.log_offset import LogOffset
from penstock.shapes.change_log import ChangeLog
from penstock.shapes.change_log_index import Relation
from penstock.shapes.change_log_runs import create_run
from penstock.shapes.collector import Append, Collector, Committed
from penstock.shapes.flush_tracker import FlushTracker
from penstock.shapes.flusher import FlushPlan
from penstock.shapes.job_runner import JobThreads
from penstock.shapes.jobs import JobDone, ShapeJobs
from penstock.shapes.ledger import Ledger, whole
from penstock.shapes.registry import Registry, ShapeEntry
from penstock.shapes.registry_decisions import Continue, ServerFacts, decide
from penstock.shapes.registry_keeper import RegistryKeeper
from penstock.shapes.shape import Shape, TableName, definition_hash
from penstock.shapes.shape_catalog import ShapeCatalog
from penstock.shapes.snapshot_again import SnapshotAgain
from penstock.shapes.table_facts import ColumnFacts, TableFacts
from penstock.shapes.table_tree import Member, Tree
from penstock.shapes.work import Work
from penstock.spark.decode import LayoutChanged, RowIncomplete

TABLE = Relation("public", "t")
OTHER = Relation("public", "other")
TREE = Tree(Member(TABLE, 1, 1, "x"))
FACTS = TableFacts(TREE, ())
SHAPE = Shape("a", TableName("public", "t"))


class FakeJobs:
    """Flushes everything, unless it is told to fail."""

    def __init__(self) -> None:
        self.flush_error: PenstockError | None = None

    def flush(self, _shape: Shape, _facts: TableFacts, _ranges: object, up_to: int) -> JobDone:
        if self.flush_error is not None:
            raise self.flush_error
        return JobDone(up_to, 1)


class Desk:
    """A Work with one shape that has something to flush, and what it was told to make anew."""

    def __init__(self, directory: Path) -> None:
        self.jobs = FakeJobs()
        self.threads = JobThreads(1)
        self.anew: list[SnapshotAgain] = []
        self.ledger = Ledger(
            collector=Collector(
                builder=TransactionBuilder(confirmed_lsn=100),
                shapes={"a": TABLE},
                trees=[TREE],
                held={"a": whole(90)},
            ),
            log=ChangeLog(create_run(directory, "run")),
            tracker=FlushTracker(initial_lsn=100),
            plan=FlushPlan(),
        )
        self.ledger.add("a", interval_s=0.0, held=whole(90), now=0.0)
        committed = Committed(LogOffset(200, 0), 208, frozenset(["a"]))
        self.ledger.carry_out([Append(TABLE, 200, 0, b"{}"), committed], time.monotonic())
        self.ledger.log.flush(time.monotonic())
        self.work = Work(
            [SHAPE],
            jobs=cast(ShapeJobs, self.jobs),
            threads=self.threads,
            ledger=self.ledger,
            keeper=cast(RegistryKeeper, None),
            catalog=cast(ShapeCatalog, None),
            parameters={},
            facts={"a": FACTS},
            make_anew=self.make_anew,
        )
        self.ledger.plan.start(time.monotonic())

    async def make_anew(self, again: Sequence[SnapshotAgain]) -> None:
        self.anew += again
        self.ledger.carry_out(again, time.monotonic())


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.threads.close()


async def test_a_flush_without_a_commit_is_no_offset_of_the_table(desk: Desk) -> None:
    """The registry would say that the table was further than it is, and a start take it for an old copy."""
    await desk.work.flush("a")
    assert desk.ledger.offsets() == {"a": 200}
    committed = Committed(LogOffset(300, 0), 308, frozenset(["a"]))
    desk.ledger.carry_out([Append(OTHER, 300, 0, b"{}"), committed], time.monotonic())
    desk.ledger.log.flush(time.monotonic())
    desk.ledger.plan.start(time.monotonic())

    await desk.work.flush("a")

    assert desk.ledger.tracker.frontier_lsn == 308
    assert desk.ledger.offsets() == {"a": 200}
    registry = Registry("7301", 1, "slot", shapes={"a": ShapeEntry(definition_hash(SHAPE), facts=FACTS)})
    registry = registry.with_ceiling(308, desk.ledger.offsets())
    server = ServerFacts("7301", 1, {}, "slot", confirmed_flush_lsn=308, flush_lsn=400)
    decision = decide(registry, server, [SHAPE], {"a": whole(200)})
    assert decision.actions == (Continue("a", whole(200)),)


async def test_a_layout_that_is_no_more_means_a_new_snapshot(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first looks may be too early: an ALTER is streamed a moment before others see it."""
    desk.jobs.flush_error = LayoutChanged("public.t at 0/C8: column tmp (integer) is new")

    async def unchanged(_: Shape) -> tuple[TableFacts, Sequence[ColumnFacts]]:
        return FACTS, ()

    monkeypatch.setattr(desk.work, "_follow", unchanged)
    for looks in range(3):
        assert desk.anew == [], f"after {looks}"
        with pytest.raises(LayoutChanged):
            await desk.work.flush("a")

    assert desk.anew == [SnapshotAgain("a", str(desk.jobs.flush_error))]


async def test_a_change_without_its_row_means_a_new_snapshot(desk: Desk) -> None:
    desk.jobs.flush_error = RowIncomplete("public.t at 0/C8: the frame lacks the key's column id")

    with pytest.raises(RowIncomplete):
        await desk.work.flush("a")

    assert desk.anew == [SnapshotAgain("a", str(desk.jobs.flush_error))]
    assert desk.ledger.plan.awaits_snapshot("a")
    assert desk.ledger.tracker.frontier_lsn == 100, "pinned: nothing of it is confirmed"
