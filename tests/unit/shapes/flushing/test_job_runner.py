from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.changelog.errors import ChangeLogBroken, SegmentUnreadable
from penstock.changelog.log import ChangeLog
from penstock.changelog.runs import create_run
from penstock.decoding.wal2json import Wal2Json
from penstock.errors import PenstockError
from penstock.lake.errors import SparkGone
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Append, Collector, Committed
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.flushing.job_runner import JobRunner, JobThreads
from penstock.shapes.pace.flush_plan import FlushLimits, FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.pace.shape_plan import ShapeState
from penstock.shapes.registry.registry import RegistryError

TABLE = Relation("public", "t")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Three shapes of one table, each with something to flush."""
    names, held = ("a", "b", "c"), Held()
    ledger = Ledger(
        held=held,
        collector=Collector(
            walk=FrameWalk(Wal2Json(), confirmed_lsn=100, needs_lsn=True),
            shapes=dict.fromkeys(names, TABLE),
            trees=[Tree(Member(TABLE, 1, 1, "x"))],
            held=held,
        ),
        log=ChangeLog(create_run(tmp_path, "run")),
        tracker=FlushTracker(initial_lsn=100),
        plan=FlushPlan(FlushLimits(flushes=2, first_backoff_s=60.0), held),
    )
    for name in names:
        ledger.add(name, interval_s=0.0, held=whole(90), now=0.0)
    now = time.monotonic()
    committed = Committed(LogOffset(200, 0), 208, frozenset(names))
    ledger.carry_out([Append(TABLE, 200, 0, b"{}"), committed], now)
    return ledger


class FakeWork:
    """Counts who runs at once; fails as it is told."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.failures: dict[str, Exception] = {}
        self.at_once = self.most_at_once = 0
        self.needs_upkeep = False
        self.tending: list[str] = []
        self.upkeep_may_end = asyncio.Event()

    async def flush(self, shape: str) -> None:
        assert self.ledger.log.last_persisted_txn_offset == whole(200), "persisted before it is flushed"
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.01)
        self.at_once -= 1
        if shape in self.failures:
            raise self.failures[shape]
        self.ledger.flushed(shape, 200, time.monotonic())
        if self.needs_upkeep:
            self.ledger.plan.tend(shape, time.monotonic())

    async def snapshot(self, shape: str) -> None:
        raise AssertionError("no snapshot is due")

    async def upkeep(self, shape: str) -> None:
        self.tending.append(shape)
        await self.upkeep_may_end.wait()
        raise self.failures.get(f"upkeep of {shape}", PenstockError("OPTIMIZE has no room"))


@asynccontextmanager
async def running(runner: JobRunner) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(runner.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_all_that_is_due_runs_a_few_at_once(ledger: Ledger) -> None:
    work = FakeWork(ledger)
    async with running(JobRunner(ledger, work)):
        await eventually(lambda: ledger.tracker.frontier_lsn == 208)
    assert work.most_at_once == 2


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PenstockError("the disk is full. Fix: make room"), "the disk is full. Fix: make room"),
        (ZeroDivisionError("oops\nmore"), "ZeroDivisionError: oops"),
    ],
)
async def test_one_that_fails_holds_nobody_else(ledger: Ledger, error: Exception, sentence: str) -> None:
    work = FakeWork(ledger)
    work.failures["b"] = error
    async with running(JobRunner(ledger, work)) as task:
        await eventually(lambda: ledger.tracker.behind_count == 1)
        await eventually(lambda: ledger.plan.status(time.monotonic())[1].error is not None)
        assert not task.done()
    status = {each.shape: each for each in ledger.plan.status(time.monotonic())}
    assert (status["b"].state, status["b"].error) == (ShapeState.BACKING_OFF, sentence)
    assert status["a"].error is status["c"].error is None
    assert ledger.tracker.frontier_lsn == 100


async def test_an_upkeep_holds_no_flush_and_its_failure_is_only_said(ledger: Ledger) -> None:
    """With as many tables to tend as there are places for flushes."""
    work = FakeWork(ledger)
    work.needs_upkeep = True
    ledger.plan = FlushPlan(FlushLimits(flushes=1))
    for shape in "abc":
        ledger.plan.add(shape, interval_s=0.0, held=whole(90), now=0.0)
        ledger.plan.sent(shape, LogOffset(200, 0), 1, time.monotonic())
    with capture_logs() as said:
        async with running(JobRunner(ledger, work)):
            await eventually(lambda: ledger.tracker.frontier_lsn == 208)
            assert len(work.tending) == 1
            assert not work.upkeep_may_end.is_set(), "the others were flushed beside it"
            work.upkeep_may_end.set()
            await eventually(lambda: len(work.tending) == 3)
            await eventually(
                lambda: {each.state for each in ledger.plan.status(time.monotonic())} == {ShapeState.IDLE}
            )
    failed = [(line["shape"], line["detail"]) for line in said if line["event"] == "upkeep_failed"]
    assert sorted(failed) == [(shape, "OPTIMIZE has no room") for shape in "abc"]
    assert all(status.error is None for status in ledger.plan.status(time.monotonic()))


@pytest.mark.parametrize("kind", [ChangeLogBroken, RegistryError, SegmentUnreadable, SparkGone])
async def test_a_broken_log_or_registry_or_spark_ends_all(ledger: Ledger, kind: type[PenstockError]) -> None:
    work = FakeWork(ledger)
    work.failures["b"] = kind("the disk is full")
    async with running(JobRunner(ledger, work)) as task:
        await asyncio.wait([task], timeout=10)
        with pytest.raises(BaseExceptionGroup) as caught:
            task.result()
    assert caught.group_contains(kind)


async def test_threads_are_settled_when_their_work_has_ended() -> None:
    threads, asked, may_end = JobThreads(2), [], threading.Event()

    def cancel() -> None:
        asked.append(1)
        if len(asked) == 2:
            may_end.set()

    def work() -> Awaitable[bool]:
        return threads.run(may_end.wait, 30)

    waiter = asyncio.ensure_future(work())
    await asyncio.sleep(0.05)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert not may_end.is_set(), "a cancelled waiter leaves its work running"
    await threads.settle(cancel)
    assert len(asked) == 2
    await threads.settle(lambda: asked.append(1))
    assert len(asked) == 2, "nothing runs, so nothing is cancelled"
    threads.close()
