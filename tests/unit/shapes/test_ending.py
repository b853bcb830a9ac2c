"""When a leadership of the shapes ends by itself; what holds a full log; and what is read off its books."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from penstock.changelog.log import ChangeLog
from penstock.changelog.runs import create_run
from penstock.decoding.wal2json import Wal2Json
from penstock.model.log_offset import BEFORE_ALL, LogOffset
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes import ending as module
from penstock.shapes.ending import Ending, ShapeStalled, flush_everything
from penstock.shapes.feed.collector import Append, Collector, Committed
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.feed.port import Feed
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.pace.flush_plan import FlushLimits, FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.pace.shape_plan import ShapeState
from penstock.shapes.parking import Parking
from penstock.shapes.readings import Readings
from penstock.shapes.wiring import ShapesPipeline

TABLE = Relation("public", "t")
TREE = Tree(Member(TABLE, 1, 1, "x"))
START = 100
STALL_S = 60.0
LONG_S = 1e6


class Line:
    """The part of a Feed that is read."""

    received_lsn = 300
    is_paused = False
    silence: str | None = None

    def stalled(self, now: float, after_s: float, waits_since: float | None) -> str | None:
        return self.silence


class Watch:
    looks = 0
    doubt: str | None = None

    def stalled(self, now: float, after_s: float) -> str | None:
        return self.doubt


class Work:
    def __init__(self) -> None:
        self.copying: set[str] = set()


class Pipeline:
    """Real books of two shapes of one table; `on_wake` plays the jobs."""

    def __init__(self, directory: Path) -> None:
        held = Held()
        walk = FrameWalk(Wal2Json(), confirmed_lsn=START, needs_lsn=True)
        self.ledger = Ledger(
            held=held,
            collector=Collector(walk=walk, shapes={"a": TABLE, "b": TABLE}, trees=[TREE], held=held),
            log=ChangeLog(create_run(directory, "run")),
            tracker=FlushTracker(initial_lsn=START),
            plan=FlushPlan(FlushLimits(first_backoff_s=LONG_S, longest_backoff_s=LONG_S), held),
        )
        for shape in "ab":
            self.ledger.add(shape, interval_s=100.0, held=whole(90), now=time.monotonic() - LONG_S)
        self.line, self.watch, self.work = Line(), Watch(), Work()
        self.feed = self.line
        self.rows = {"a": 7, "b": 0}
        self.readings = Readings(self.ledger, cast(Feed, self.line), self.rows)
        self.runner = self
        self.on_wake: Callable[[], None] = lambda: None
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1
        self.on_wake()

    def commit(self, lsn: int, *touched: str, age_s: float = 0.0) -> None:
        committed = Committed(LogOffset(lsn, 0), lsn + 8, frozenset(touched))
        self.ledger.carry_out([Append(TABLE, lsn, 0, b"{}"), committed], time.monotonic() - age_s)

    def look(self) -> None:
        self.ledger.collector.check([TREE], START)

    def run_jobs(self, offset: int) -> None:
        """Start what is due, and end it well."""
        for start in self.ledger.plan.start(time.monotonic()):
            self.ledger.flushed(start.shape, offset, time.monotonic())

    def fail(self, shape: str, *, age_s: float = 0.0) -> None:
        now = time.monotonic() - age_s
        self.ledger.plan.make_room(now)
        assert shape in [start.shape for start in self.ledger.plan.start(now)]
        self.ledger.failed(shape, "the disk is full", now)

    def as_real(self) -> ShapesPipeline:
        return cast(ShapesPipeline, self)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_HURRY_EVERY_S", 0.0)
    pipeline = Pipeline(tmp_path)
    pipeline.look()
    return pipeline


@pytest.fixture
def stop() -> asyncio.Event:
    return asyncio.Event()


def once(stop: asyncio.Event) -> Ending:
    return Ending(stop, once=True, stall_s=STALL_S)


def wal_at(lsn: int, asked: list[int] | None = None) -> Callable[[], Awaitable[int]]:
    async def wal_lsn() -> int:
        if asked is not None:
            asked.append(lsn)
        return lsn

    return wal_lsn


async def is_waiting(task: asyncio.Task[None]) -> bool:
    """Whether it goes on, however often it may look."""
    for _ in range(50):
        await asyncio.sleep(0)
    return not task.done()


class TestService:
    async def test_it_ends_at_once_when_told_to_stop(self, pipeline: Pipeline, stop: asyncio.Event) -> None:
        """A copy that runs doesn't hold it."""
        pipeline.work.copying.add("a")
        ending = Ending(stop, once=False, stall_s=STALL_S)
        waiting = asyncio.create_task(ending.reached(pipeline.as_real(), wal_at(0)))
        assert await is_waiting(waiting)
        stop.set()
        await asyncio.wait_for(waiting, 5)

    async def test_one_that_is_given_up_ends_when_the_copies_have(
        self, pipeline: Pipeline, stop: asyncio.Event
    ) -> None:
        pipeline.work.copying |= {"a", "b"}
        ending = Ending(stop, once=False, stall_s=STALL_S)
        waiting = asyncio.create_task(ending.reached(pipeline.as_real(), wal_at(0)))
        assert not ending.is_given_up
        ending.give_up({"b"})
        assert ending.is_given_up
        assert await is_waiting(waiting), "a is still wanted as it is"
        pipeline.work.copying.discard("a")
        await asyncio.wait_for(waiting, 5)

        pipeline.ledger.snapshot_again("a", time.monotonic())
        assert pipeline.ledger.plan.start(time.monotonic()) == [], "no other copy begins"

    async def test_the_last_word_about_what_is_as_before_counts(
        self, pipeline: Pipeline, stop: asyncio.Event
    ) -> None:
        pipeline.work.copying.add("a")
        ending = Ending(stop, once=False, stall_s=STALL_S)
        ending.give_up(frozenset())
        waiting = asyncio.create_task(ending.reached(pipeline.as_real(), wal_at(0)))
        assert await is_waiting(waiting)
        ending.give_up({"a"})
        await asyncio.wait_for(waiting, 5)

    def test_stopped_shapes_are_no_failure_of_a_service(
        self, pipeline: Pipeline, stop: asyncio.Event
    ) -> None:
        pipeline.ledger.stop("a", "it has no key", time.monotonic())
        Ending(stop, once=False, stall_s=STALL_S).refuse_stopped(pipeline.as_real())


class TestOnce:
    async def test_it_ends_when_the_tables_hold_all_that_was_there(
        self, pipeline: Pipeline, stop: asyncio.Event
    ) -> None:
        """Without waiting for anybody's interval."""
        pipeline.commit(150, "a", "b")
        pipeline.run_jobs(150)
        pipeline.commit(200, "a", "b")
        waiting = asyncio.create_task(once(stop).reached(pipeline.as_real(), wal_at(208)))
        assert await is_waiting(waiting)
        pipeline.on_wake = lambda: pipeline.run_jobs(200)
        pipeline.watch.looks = 2
        await asyncio.wait_for(waiting, 5)
        assert pipeline.ledger.tracker.frontier_lsn == 208

    @pytest.mark.parametrize("looks", [0, 1])
    async def test_two_more_looks_at_the_tables_have_to_end(
        self, pipeline: Pipeline, stop: asyncio.Event, looks: int
    ) -> None:
        pipeline.watch.looks = 5
        waiting = asyncio.create_task(once(stop).reached(pipeline.as_real(), wal_at(START)))
        assert await is_waiting(waiting)
        pipeline.watch.looks += looks
        assert await is_waiting(waiting)
        pipeline.watch.looks = 7
        await asyncio.wait_for(waiting, 5)

    async def test_upkeep_that_is_due_is_done_first(self, pipeline: Pipeline, stop: asyncio.Event) -> None:
        pipeline.ledger.plan.tend("a", time.monotonic())
        waiting = asyncio.create_task(once(stop).reached(pipeline.as_real(), wal_at(START)))
        await asyncio.sleep(0)
        pipeline.watch.looks = 2
        assert await is_waiting(waiting)
        pipeline.ledger.plan.start(time.monotonic())
        pipeline.ledger.plan.tended("a")
        await asyncio.wait_for(waiting, 5)

    async def test_the_end_is_known_only_when_all_tables_are_made(
        self, pipeline: Pipeline, stop: asyncio.Event
    ) -> None:
        """And is asked for once: Postgres goes on, and `--once` would never end."""
        asked: list[int] = []
        pipeline.ledger.snapshot_again("a", time.monotonic())
        waiting = asyncio.create_task(once(stop).reached(pipeline.as_real(), wal_at(START, asked)))
        assert await is_waiting(waiting)
        assert asked == []
        pipeline.ledger.plan.start(time.monotonic())
        pipeline.ledger.snapshotted("a", START, time.monotonic())
        assert await is_waiting(waiting)
        pipeline.watch.looks = 2
        await asyncio.wait_for(waiting, 5)
        assert asked == [START]

    async def test_a_doubt_holds_the_end(
        self, tmp_path: Path, stop: asyncio.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)
        pipeline = Pipeline(tmp_path)  # nobody has looked at the tables yet
        asked: list[int] = []
        waiting = asyncio.create_task(once(stop).reached(pipeline.as_real(), wal_at(START, asked)))
        assert await is_waiting(waiting)
        assert asked == []
        pipeline.look()
        assert await is_waiting(waiting)
        assert asked == [START]
        stop.set()
        await asyncio.wait_for(waiting, 5)

    async def test_a_shape_that_is_stopped_is_told_when_the_others_are_done(
        self, pipeline: Pipeline, stop: asyncio.Event
    ) -> None:
        pipeline.ledger.stop("a", "it has no key", time.monotonic() - 2 * STALL_S)
        pipeline.ledger.noted("a")
        ending = once(stop)
        waiting = asyncio.create_task(ending.reached(pipeline.as_real(), wal_at(START)))
        await asyncio.sleep(0)
        pipeline.watch.looks = 2
        await asyncio.wait_for(waiting, 5)
        with pytest.raises(
            ShapeStalled, match=r"shape a was stopped, and the others are done: it has no key"
        ):
            ending.refuse_stopped(pipeline.as_real())
        stop.set()
        ending.refuse_stopped(pipeline.as_real())

    async def test_a_shape_that_fails_for_long_ends_it(self, pipeline: Pipeline, stop: asyncio.Event) -> None:
        pipeline.commit(200, "a", age_s=STALL_S + 5)
        pipeline.fail("a", age_s=STALL_S + 4)
        with pytest.raises(ShapeStalled, match=r"shape a made no progress for 6\d s: the disk is full"):
            await asyncio.wait_for(once(stop).reached(pipeline.as_real(), wal_at(208)), 5)

    async def test_a_source_from_which_nothing_comes_ends_it(
        self, pipeline: Pipeline, stop: asyncio.Event
    ) -> None:
        waiting = asyncio.create_task(once(stop).reached(pipeline.as_real(), wal_at(300)))
        assert await is_waiting(waiting)
        pipeline.line.silence = "no manifest has come"
        with pytest.raises(ShapeStalled, match="no manifest has come"):
            await asyncio.wait_for(waiting, 5)

    @pytest.mark.parametrize(("age_s", "ends"), [(5 * STALL_S, False), (11 * STALL_S, True)])
    async def test_one_that_merely_works_has_ten_times_as_long(
        self, pipeline: Pipeline, stop: asyncio.Event, age_s: float, ends: bool
    ) -> None:
        pipeline.commit(200, "a", age_s=age_s)
        pipeline.ledger.plan.make_room(time.monotonic())
        pipeline.ledger.plan.start(time.monotonic())
        waiting = asyncio.create_task(once(stop).reached(pipeline.as_real(), wal_at(208)))
        if not ends:
            assert await is_waiting(waiting)
            stop.set()
            await waiting
            return
        with pytest.raises(ShapeStalled, match="its job does not end"):
            await asyncio.wait_for(waiting, 5)


class TestDrain:
    async def test_what_was_read_is_flushed_without_waiting(self, pipeline: Pipeline) -> None:
        pipeline.commit(150, "a", "b")
        pipeline.run_jobs(150)
        pipeline.commit(200, "a", "b")
        pipeline.on_wake = lambda: pipeline.run_jobs(200)
        await asyncio.wait_for(flush_everything(pipeline.as_real()), 5)
        assert pipeline.ledger.log.last_persisted_txn_offset == whole(200)
        assert pipeline.ledger.tracker.behind_count == 0

    async def test_nobody_waits_for_shapes_that_fail_or_await_a_snapshot(self, pipeline: Pipeline) -> None:
        pipeline.commit(200, "a")
        pipeline.fail("a")
        pipeline.ledger.snapshot_again("b", time.monotonic())
        await asyncio.wait_for(flush_everything(pipeline.as_real()), 5)
        assert pipeline.ledger.tracker.behind_count == 2
        assert pipeline.wakes == 0


class TestReadings:
    def test_lines_and_counts(self, pipeline: Pipeline) -> None:
        pipeline.commit(200, "a")
        a, b = pipeline.readings.lines(time.monotonic())
        assert (a.status.shape, a.rows, a.lag_bytes) == ("a", 7, 300 - 90)
        assert (b.status.shape, b.rows, b.lag_bytes) == ("b", 0, 0)
        assert pipeline.readings.unflushed_shapes() == 1
        reading = pipeline.readings.reading(1.5, time.monotonic(), quarantined=3)
        assert reading.quarantined == 3
        assert (reading.line_age_s, reading.received_lsn, reading.frontier_lsn) == (1.5, 300, START)
        assert [(each.name, each.lag_bytes) for each in reading.shapes] == [("a", 210), ("b", 0)]

    def test_a_shape_that_is_parked_lags_and_has_nothing_to_flush(self, pipeline: Pipeline) -> None:
        pipeline.ledger.snapshot_again("a", time.monotonic())
        assert pipeline.readings.unflushed_shapes() == 0, "it is pinned"
        pipeline.ledger.noted("a")
        assert pipeline.readings.lines(time.monotonic())[0].lag_bytes == 210
        assert pipeline.readings.awaits_snapshots()

    def test_without_a_table_only_what_was_read_for_it_is_lag(self, pipeline: Pipeline) -> None:
        """A server's WAL may begin at any LSN: what is older comes with the copy."""
        now = time.monotonic()
        pipeline.ledger.add("c", interval_s=100.0, held=BEFORE_ALL, now=now)
        pipeline.rows["c"] = 0
        pipeline.ledger.snapshot_again("c", now)
        assert pipeline.readings.lines(now)[-1].lag_bytes == 300 - START
        (reading,) = [each for each in pipeline.readings.reading(1.5, now).shapes if each.name == "c"]
        assert reading.offset_lsn < 0

    def test_stopped_shapes_await_nothing(self, pipeline: Pipeline) -> None:
        pipeline.ledger.stop("a", "it has no key", time.monotonic())
        assert pipeline.readings.stopped_shapes() == {"a": "it has no key"}
        assert not pipeline.readings.awaits_snapshots()

    def test_a_full_log_is_a_complaint(self, pipeline: Pipeline) -> None:
        pipeline.commit(200, "a", age_s=2 * STALL_S)
        now = time.monotonic()
        assert pipeline.readings.complaints(now, STALL_S) == {}
        pipeline.line.is_paused = True
        assert pipeline.readings.complaints(now, STALL_S)["a"].startswith(
            "the log is full, and shape a holds it."
        )


class Needed:
    def __init__(self) -> None:
        self.again: list[SnapshotAgain] = []

    async def need(self, again: Sequence[SnapshotAgain]) -> None:
        self.again += again


class TestParking:
    @pytest.mark.parametrize("is_paused", [False, True])
    async def test_the_failing_holder_of_a_full_log_is_parked(
        self, pipeline: Pipeline, is_paused: bool
    ) -> None:
        pipeline.line.is_paused = is_paused
        pipeline.commit(200, "a", age_s=2 * STALL_S)
        pipeline.fail("a", age_s=2 * STALL_S - 1)
        pipeline.ledger.plan.wrote("b", time.monotonic())
        needed = Needed()
        parking = Parking(pipeline.ledger, cast(Feed, pipeline.line), cast(Resnapshots, needed))
        with capture_logs() as said:
            await parking.look(time.monotonic(), STALL_S)
        reason = "the log is full, and it held it: the disk is full"
        assert needed.again == ([SnapshotAgain("a", reason)] if is_paused else [])
        assert [line["event"] for line in said] == (["shape_parked"] if is_paused else [])

    async def test_one_that_is_merely_slow_is_not(self, pipeline: Pipeline) -> None:
        pipeline.line.is_paused = True
        pipeline.commit(200, "a", age_s=100 * STALL_S)
        needed = Needed()
        await Parking(pipeline.ledger, cast(Feed, pipeline.line), cast(Resnapshots, needed)).look(
            time.monotonic(), STALL_S
        )
        assert needed.again == []
        assert pipeline.ledger.plan.status(time.monotonic())[0].state is not ShapeState.BACKING_OFF
