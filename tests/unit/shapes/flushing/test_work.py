"""What is done for a shape, beside the jobs themselves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from psycopg import AsyncConnection
from structlog.testing import capture_logs

from penstock.changelog.errors import LogNotShared, SegmentUnreadable
from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.runs import create_run
from penstock.decoding.rows import DecodeError
from penstock.decoding.wal2json import Wal2Json
from penstock.errors import PenstockError
from penstock.lake.errors import ChangesUnusable, ForeignCommit, TableAltered
from penstock.lake.ports import JobDone, ShapeJobs
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.shape import Shape, definition_hash
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.partition_bounds import Bounds, ListBound
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import ColumnFacts, IndexFacts, TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.snapshot.export import SnapshotPart
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Append, Collector, Committed
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.flushing import cut, work
from penstock.shapes.flushing.copy_watch import CopyHangs, CopyWatch
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.flushing.work import ChangeSource, ShapeStopped, Work
from penstock.shapes.flushing.workplace import Database, Workplace
from penstock.shapes.following import drift as drift_module
from penstock.shapes.following.departures import Departure
from penstock.shapes.following.drift import Drift
from penstock.shapes.pace.flush_plan import FlushLimits, FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.pace.shape_plan import Job, JobStart, ShapeState
from penstock.shapes.registry.decisions import Continue, ServerFacts, decide
from penstock.shapes.registry.keeper import RegistryKeeper
from penstock.shapes.registry.registry import Copy, Registry, ShapeEntry

TABLE = Relation("public", "t")
OTHER = Relation("public", "other")
TREE = Tree(Member(TABLE, 1, 1, "x"))
FACTS = TableFacts(TREE, ())
SHAPE = Shape("a", Relation("public", "t"))


class FakeJobs:
    """Flushes everything, unless it is told to fail."""

    def __init__(self) -> None:
        self.flush_error: PenstockError | None = None
        self.needs_upkeep = False
        self.quarantines = 0
        self.deleted: list[Bounds] = []
        self.foreign_news: str | None = None
        self.looks = 0
        self.hangs = False
        self.may_end = threading.Event()
        self.cancelled: str | None = None

    def foreign(self, _shape: Shape) -> str | None:
        self.looks += 1
        return self.foreign_news

    def flush(
        self, _shape: Shape, _facts: TableFacts, _ranges: object, up_to: int, _added: object = ()
    ) -> JobDone:
        if self.flush_error is not None:
            raise self.flush_error
        return JobDone(up_to, 1, needs_upkeep=self.needs_upkeep, quarantined=self.quarantines)

    def delete_within(self, _shape: Shape, _facts: TableFacts, bounds: Bounds, tx_offset: int) -> int:
        assert tx_offset == 90, "where the table was seen last"
        if self.flush_error is not None:
            raise self.flush_error
        self.deleted.append(bounds)
        return 7

    def snapshot(
        self, _shape: Shape, _facts: TableFacts, _parts: object, _snapshot: str, tx_offset: int
    ) -> JobDone:
        if self.hangs:
            assert self.may_end.wait(30)
            raise PenstockError("cancelled")
        return JobDone(tx_offset, 1)

    def cancel_of(self, shape: Shape) -> None:
        self.cancelled = shape.name
        self.may_end.set()


class FakeKeeper:
    """Knows of which shapes it was said that their tables count."""

    def __init__(self) -> None:
        self.settled: list[str] = []
        self.copies: list[Copy] = []

    async def update(self, change: Callable[[Registry], Registry]) -> None:
        awaits = ShapeEntry(definition_hash(SHAPE), "its definition was changed", None)
        changed = change(Registry("7301", 1, "slot", 0, {"a": awaits}))
        self.settled += [name for name, entry in changed.shapes.items() if entry.awaits_snapshot is None]
        self.copies += [entry.copy for entry in changed.shapes.values() if entry.copy is not None]


class FakeSnapshot:
    """Stands for an exported snapshot of a table without parts."""

    name, cut_lsn = "snapshot", 301

    async def parts(self, _relations: object) -> list[SnapshotPart]:
        return []


@asynccontextmanager
async def exported(_parameters: object, *, plugin: str) -> AsyncIterator[FakeSnapshot]:
    yield FakeSnapshot()


async def unasked() -> AsyncConnection:
    raise AssertionError("nobody asks the catalog")


class Desk:
    """A Work with one shape that has something to flush, and what it was told to make anew."""

    def __init__(self, directory: Path) -> None:
        self.jobs = FakeJobs()
        self.threads = JobThreads(1)
        self.anew: list[SnapshotAgain] = []
        self.keeper = FakeKeeper()
        held = Held()
        self.ledger = Ledger(
            held=held,
            collector=Collector(
                walk=FrameWalk(Wal2Json(), confirmed_lsn=100, needs_lsn=True),
                shapes={"a": TABLE, "other": OTHER},
                trees=[TREE, Tree(Member(OTHER, 2, 2, "x"))],
                held=held,
            ),
            log=ChangeLog(create_run(directory, "run"), LogLimits(min_free_bytes=0, segment_bytes=1)),
            tracker=FlushTracker(initial_lsn=100),
            plan=FlushPlan(held=held),
        )
        self.ledger.add("a", interval_s=600.0, held=whole(90), now=0.0)
        self.ledger.add("other", interval_s=600.0, held=whole(90), now=0.0)
        committed = Committed(LogOffset(200, 0), 208, frozenset(["a"]))
        self.ledger.carry_out([Append(TABLE, 200, 0, b"{}"), committed], time.monotonic())
        self.ledger.log.flush(time.monotonic())
        self.quarantined: list[int] = []
        self.work = self.new_work()
        self.ledger.plan.start(time.monotonic())

    def new_work(self) -> Work:
        """As if nothing had been done yet."""
        return Work(
            [SHAPE],
            workplace=Workplace(
                cast(ShapeJobs, self.jobs), self.threads, FlushLimits(), self.quarantined.append
            ),
            database=Database(ShapeCatalog(unasked, Wal2Json()), {}),
            ledger=self.ledger,
            keeper=cast(RegistryKeeper, self.keeper),
            facts={"a": FACTS},
            resnapshots=cast(Resnapshots, self),
            source=ChangeSource(log_directory=self.ledger.log.directory.parent),
        )

    def write(self, tx_offset: int, relation: Relation) -> None:
        """A transaction of one change, of a kilobyte, in a segment of its own."""
        touched = frozenset(["a"] if relation == TABLE else ["other"])
        committed = Committed(LogOffset(tx_offset, 0), tx_offset + 8, touched)
        append = Append(relation, tx_offset, 0, b"x" * 1000)
        self.ledger.carry_out([append, committed], time.monotonic())
        self.ledger.log.flush(time.monotonic())

    async def flush_until_rest(self) -> list[int]:
        """Flush what was started, and whatever is due right after it; where each flush ended."""
        ends = []
        while True:
            await self.work.flush("a")
            ends.append(self.ledger.held("a").tx_offset)
            if JobStart("a", Job.FLUSH) not in self.ledger.plan.start(time.monotonic()):
                return ends

    async def need(self, again: Sequence[SnapshotAgain]) -> None:
        self.anew += again
        self.ledger.carry_out(again, time.monotonic())

    async def park(self, shape: str, sentence: str) -> None:
        self.ledger.stop(shape, sentence, time.monotonic())


async def nothing_is_open(_parameters: object, _say: object) -> None:
    return None


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr(cut, "transactions_end", nothing_is_open)
    desk = Desk(tmp_path)
    yield desk
    desk.threads.close()


async def test_a_flush_without_a_commit_is_no_offset_of_the_table(desk: Desk) -> None:
    """The registry would say that the table was further than it is, and a start take it for an old copy."""
    await desk.work.flush("a")
    assert desk.ledger.offsets()["a"] == 200
    committed = Committed(LogOffset(300, 0), 308, frozenset(["a"]))
    desk.ledger.carry_out([Append(OTHER, 300, 0, b"{}"), committed], time.monotonic())
    desk.ledger.log.flush(time.monotonic())
    desk.ledger.plan.make_room(time.monotonic())
    desk.ledger.plan.start(time.monotonic())

    await desk.work.flush("a")

    assert desk.ledger.tracker.frontier_lsn == 308
    assert desk.ledger.offsets()["a"] == 200
    registry = Registry("7301", 1, "slot", 0, {"a": ShapeEntry(definition_hash(SHAPE), None, FACTS)})
    registry = registry.with_ceiling(308, desk.ledger.offsets())
    server = ServerFacts("7301", 1, {}, "slot", confirmed_flush_lsn=308, flush_lsn=400)
    decision = decide(registry, server, [SHAPE], {"a": whole(200)})
    assert decision.actions == (Continue("a", whole(200)),)


GONE = Departure(
    TABLE,
    Relation("public", "t_old"),
    9,
    (ListBound("id", ("1",)),),
    frozenset({Relation("public", "t_old")}),
    frozenset({TABLE}),
    since_lsn=95,
    look_lsn=250,
)
KEYED = FACTS._replace(indexes=(IndexFacts("t_pkey", ("id",), is_primary=True),))


async def test_what_a_partition_has_left_is_deleted(desk: Desk) -> None:
    desk.work._facts["a"] = KEYED
    with capture_logs() as said:
        assert await desk.work.remove("a", GONE, desk.ledger.collector)
    assert desk.jobs.deleted == [GONE.bounds]
    assert (said[0]["event"], said[0]["partition"], said[0]["rows"]) == (
        "partition_removed",
        "public.t_old",
        7,
    )


async def test_what_can_not_be_told_apart_is_left_alone(desk: Desk) -> None:
    assert not await desk.work.remove("a", GONE, desk.ledger.collector), (
        "its table lacks a column of the bounds"
    )
    desk.work._facts["a"] = KEYED
    assert not await desk.work.remove("a", GONE._replace(since_lsn=90), desk.ledger.collector), (
        "it has later changes"
    )
    assert desk.jobs.deleted == []


async def test_a_table_that_is_copied_anyway_needs_no_deleting(desk: Desk) -> None:
    desk.ledger.cut("a", 251)
    assert await desk.work.remove("a", GONE, desk.ledger.collector)
    assert await desk.work.remove("a", GONE._replace(since_lsn=90), desk.ledger.collector)
    desk.ledger.stop("a", "its key is gone", time.monotonic())
    assert await desk.work.remove("a", GONE._replace(look_lsn=10_000), desk.ledger.collector)
    assert desk.jobs.deleted == []


async def test_rows_that_others_changed_are_not_deleted_but_copied(desk: Desk) -> None:
    desk.work._facts["a"] = KEYED
    desk.jobs.flush_error = ForeignCommit("DELETE changed rows")
    assert await desk.work.remove("a", GONE, desk.ledger.collector)
    assert [again.shape for again in desk.anew] == ["a"]


async def test_upkeep_is_due_when_a_flush_finds_that_the_table_needs_it(desk: Desk) -> None:
    """Also after the only flush of a leadership."""
    desk.jobs.needs_upkeep = True

    await desk.work.flush("a")

    assert desk.ledger.plan.start(time.monotonic()) == [JobStart("a", Job.UPKEEP)]


async def test_what_went_to_the_quarantine_is_counted_and_said(desk: Desk) -> None:
    desk.jobs.quarantines = 2
    with capture_logs() as said:
        await desk.work.flush("a")
    assert desk.quarantined == [2]
    (event,) = [each for each in said if each["event"] == "record_quarantined"]
    assert (event["shape"], event["records"]) == ("a", 2)


async def test_a_shape_beside_a_busy_one_gets_all_of_its_own(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much the other writes; and in several flushes, one right after the other."""
    for tx_offset in range(300, 2300, 100):
        desk.write(tx_offset, TABLE if tx_offset % 1000 == 0 else OTHER)
    assert await desk.flush_until_rest() == [2200]

    monkeypatch.setattr(work, "FLUSH_MAX_BYTES", 1)
    for tx_offset in (3000, 4000, 5000):
        desk.write(tx_offset, TABLE)
    desk.ledger.plan.make_room(time.monotonic())
    desk.ledger.plan.start(time.monotonic())
    assert await desk.flush_until_rest() == [3000, 4000, 5000]


async def test_a_layout_that_is_no_more_means_a_new_snapshot(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first looks may be too early: an ALTER is streamed a moment before others see it."""
    desk.jobs.flush_error = TableAltered("public.t at 0/C8: column tmp (integer) is new")

    async def unchanged(_: Shape) -> tuple[TableFacts, Sequence[ColumnFacts]]:
        return FACTS, ()

    monkeypatch.setattr(desk.work, "_follow", unchanged)
    for looks in range(3):
        assert desk.anew == [], f"after {looks}"
        with pytest.raises(TableAltered):
            await desk.work.flush("a")

    assert desk.anew == [SnapshotAgain("a", str(desk.jobs.flush_error))]


async def test_rows_that_others_have_changed_mean_a_new_snapshot_and_are_said(desk: Desk) -> None:
    desk.jobs.flush_error = ForeignCommit("/lake/a: RESTORE by X changed rows in version 7")

    with capture_logs() as said, pytest.raises(ForeignCommit):
        await desk.work.flush("a")

    assert desk.anew == [SnapshotAgain("a", str(desk.jobs.flush_error))]
    assert [line["log_level"] for line in said if line["event"] == "foreign_commit"] == ["error"]


async def test_an_idle_table_that_others_have_changed_is_snapshotted_again(desk: Desk) -> None:
    await desk.work.look("a")
    assert (desk.jobs.looks, desk.anew) == (1, [])
    desk.jobs.foreign_news = "/lake/a: RESTORE by X changed rows in version 7"

    with capture_logs() as said:
        await desk.work.look("a")

    assert desk.anew == [SnapshotAgain("a", desk.jobs.foreign_news)]
    assert [line["log_level"] for line in said if line["event"] == "foreign_commit"] == ["error"]
    await desk.work.look("a")
    assert desk.jobs.looks == 2, "what awaits its snapshot is not looked at"


async def test_a_table_that_a_job_has_is_not_looked_at(desk: Desk) -> None:
    async with desk.work._turns["a"]:
        await asyncio.wait_for(desk.work.look("a"), 5)
    assert desk.jobs.looks == 0


async def test_what_the_plan_has_no_place_for_runs_one_at_a_time(desk: Desk) -> None:
    """Others would take the threads of flushes."""
    first, entered = threading.Event(), threading.Event()
    threads = desk.work._threads = JobThreads(2)

    def hold() -> None:
        entered.set()
        first.wait(10)

    holding = asyncio.create_task(desk.work._beside(hold))
    await asyncio.to_thread(entered.wait, 10)
    second = asyncio.create_task(desk.work.look("a"))
    # A flush finds a thread; the look, which came before, waits.
    await asyncio.wait_for(threads.run(lambda: None), 10)
    assert desk.jobs.looks == 0
    first.set()
    await asyncio.gather(holding, second)
    assert desk.jobs.looks == 1
    threads.close()


async def test_a_new_column_of_a_table_that_others_have_changed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.work.flush("a")
    desk.jobs.flush_error = ForeignCommit("/lake/a: DELETE by X changed rows in version 7")

    async def drift(_: Shape) -> Drift:
        return Drift(FACTS, added=(ColumnFacts("new", 2, "integer"),))

    monkeypatch.setattr(desk.work, "_drift", drift)
    with capture_logs() as said:
        again = await desk.work.follow("a")

    assert again == SnapshotAgain("a", str(desk.jobs.flush_error))
    assert [line["log_level"] for line in said if line["event"] == "foreign_commit"] == ["error"]
    assert desk.work.facts("a") == FACTS


@pytest.mark.parametrize(
    "error",
    [
        ChangesUnusable("public.t at 0/C8: the frame lacks the key's column id"),
        ChangesUnusable(
            "public.t at 0/C8: column n (numeric(9,2)): NaN does not fit the lake's decimal(9,2)"
        ),
    ],
    ids=["without its row", "with NaN"],
)
async def test_a_change_that_nobody_will_ever_read_means_a_new_snapshot(
    desk: Desk, error: DecodeError
) -> None:
    desk.jobs.flush_error = error

    with pytest.raises(type(error)):
        await desk.work.flush("a")

    assert desk.anew == [SnapshotAgain("a", str(desk.jobs.flush_error))]
    assert desk.ledger.plan.awaits_snapshot("a")
    assert desk.ledger.tracker.frontier_lsn == 100, "pinned: nothing of it is confirmed"


async def test_a_table_that_cant_be_followed_parks_its_shape_until_it_can(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.work.flush("a")
    drifts = [Drift(FACTS, stop="it has no key"), Drift(FACTS, stop="it has no key"), Drift(FACTS)]

    async def drift(_: Shape) -> Drift:
        return drifts.pop(0)

    monkeypatch.setattr(desk.work, "_drift", drift)
    with pytest.raises(ShapeStopped, match="it has no key"):
        await desk.work.follow("a")
    assert desk.work.is_stopped("a")
    assert desk.ledger.plan.status(time.monotonic())[0].state is ShapeState.STOPPED
    with pytest.raises(ShapeStopped, match="it has no key"):
        await desk.work.follow("a")

    again = await desk.work.follow("a")

    assert again == SnapshotAgain("a", "what had stopped it is no longer so")
    assert not desk.work.is_stopped("a")


async def test_more_digits_need_a_table_that_may_be_widened(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    amount = ColumnFacts("amount", 1, "numeric(10,2)")
    facts = FACTS._replace(columns=(amount,), leaves=())
    now = facts._replace(columns=(amount._replace(type="numeric(12,2)"),))

    async def current(_: Shape) -> TableFacts:
        return now

    monkeypatch.setattr(desk.work, "_current_facts", current)
    monkeypatch.setattr(drift_module, "table_problems", lambda *_, **__: [])
    desk.work._facts["a"] = facts
    for may, again in ((True, ""), (False, "column 'amount' of public.t is numeric(12,2), which is wider")):
        monkeypatch.setattr(desk.jobs, "may_widen", lambda _, may=may: may, raising=False)
        drift = await desk.work._drift(SHAPE)
        assert drift.again == again
        assert bool(drift.widened) is may


async def test_a_copy_that_waits_while_its_shape_is_stopped_mends_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the catalog has the shape's turn, and finds it unfit; the copy then finds it well."""
    await desk.work.flush("a")
    waits = asyncio.Event()

    async def drift(_: Shape) -> Drift:
        await waits.wait()
        return Drift(FACTS, stop="column n was text and is integer")

    async def facts(_: Shape) -> TableFacts:
        return FACTS

    monkeypatch.setattr(desk.work, "_drift", drift)
    monkeypatch.setattr(desk.work, "_current_facts", facts)
    monkeypatch.setattr(desk.work, "_refuse_problems", lambda *_: None)
    monkeypatch.setattr(cut, "export_snapshot", exported)
    follows = asyncio.create_task(desk.work.follow("a"))
    await asyncio.sleep(0)
    again = SnapshotAgain("a", "a label was renamed")
    await desk.need([again])
    assert desk.ledger.plan.start(time.monotonic()) == [JobStart("a", Job.SNAPSHOT)]
    copies = asyncio.create_task(desk.work.snapshot("a"))
    await asyncio.sleep(0)

    waits.set()
    with pytest.raises(ShapeStopped):
        await follows
    await copies

    assert not desk.work.is_stopped("a")
    assert not desk.ledger.plan.awaits_snapshot("a")
    assert desk.keeper.settled == ["a"]
    assert desk.keeper.copies == [Copy(301, FACTS)]
    assert desk.ledger.tracker.progress("a") is None, "nobody waits for it"


async def test_a_snapshot_that_waits_for_its_cut_is_not_being_copied(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leadership that ends waits for copies; making a cut may wait for others' transactions, for hours."""
    await desk.work.flush("a")
    has_cut = asyncio.Event()
    seen: list[set[str]] = []

    async def facts(_: Shape) -> TableFacts:
        return FACTS

    def snapshot(*_: object) -> JobDone:
        seen.append(set(desk.work.copying))
        return JobDone(300, 1)

    @asynccontextmanager
    async def waits(_parameters: object, *, plugin: str) -> AsyncIterator[FakeSnapshot]:
        await has_cut.wait()
        yield FakeSnapshot()

    monkeypatch.setattr(desk.work, "_current_facts", facts)
    monkeypatch.setattr(desk.jobs, "snapshot", snapshot)
    monkeypatch.setattr(desk.work, "_refuse_problems", lambda *_: None)
    monkeypatch.setattr(cut, "export_snapshot", waits)
    await desk.need([SnapshotAgain("a", "a label was renamed")])
    desk.ledger.plan.start(time.monotonic())
    copies = asyncio.create_task(desk.work.snapshot("a"))
    await asyncio.sleep(0.01)
    assert desk.ledger.plan.status(time.monotonic())[0].state is ShapeState.SNAPSHOTTING
    assert desk.work.copying == set()

    has_cut.set()
    await copies

    assert seen == [{"a"}]
    assert desk.work.copying == set()


async def test_a_snapshot_without_a_cut_holds_slot_and_log_for_moments_only(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While transactions are open nobody waits for it; and if the cut doesn't come, it is let go."""
    await desk.work.flush("a")
    monkeypatch.setattr(cut, "_LOOK_EVERY_S", 0.01)
    said: list[str | None] = []
    parked: list[bool] = []
    attempts = 0

    async def transactions_end(_parameters: object, say: Callable[[str], None]) -> None:
        say(f"it waits for pid {len(parked)}")
        parked.append(desk.ledger.is_parked("a"))
        said.append(desk.ledger.plan.status(time.monotonic())[0].waits_for)

    async def facts(_: Shape) -> TableFacts:
        return FACTS

    @asynccontextmanager
    async def second_time(_parameters: object, *, plugin: str) -> AsyncIterator[FakeSnapshot]:
        nonlocal attempts
        attempts += 1
        assert not desk.ledger.is_parked("a")
        if attempts == 1:
            desk.write(400, OTHER)
            desk.ledger.plan.start(time.monotonic())
            desk.ledger.flushed("other", 400, time.monotonic())
            assert desk.ledger.tracker.frontier_lsn == 208, "pinned"
            await asyncio.Event().wait()
        yield FakeSnapshot()

    monkeypatch.setattr(cut, "transactions_end", transactions_end)
    monkeypatch.setattr(cut, "export_snapshot", second_time)
    monkeypatch.setattr(cut, "_FIRST_PATIENCE_S", 0.0)
    monkeypatch.setattr(FakeSnapshot, "cut_lsn", 501)
    desk.work = desk.new_work()
    monkeypatch.setattr(desk.work, "_refuse_problems", lambda *_: None)
    monkeypatch.setattr(desk.work, "_current_facts", facts)
    await desk.need([SnapshotAgain("a", "a label was renamed")])
    desk.ledger.noted("a")
    desk.ledger.plan.start(time.monotonic())

    with capture_logs() as logged:
        await desk.work.snapshot("a")

    assert parked == [True, True]
    assert said == ["it waits for pid 0", "it waits for pid 1"]
    assert [line["detail"] for line in logged if line["event"] == "snapshot_waits"] == ["it waits for pid 0"]
    assert desk.ledger.tracker.progress("a") is None
    assert desk.ledger.tracker.frontier_lsn == 408
    assert desk.ledger.plan.status(time.monotonic())[0].waits_for is None


async def test_a_copy_that_is_too_early_is_not_noted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry may have heard before why another one is needed: the note would undo that."""
    await desk.work.flush("a")

    async def facts(_: Shape) -> TableFacts:
        return FACTS

    class Late(FakeSnapshot):
        async def parts(self, _relations: object) -> list[SnapshotPart]:
            desk.ledger.snapshot_again("a", time.monotonic())
            return []

    @asynccontextmanager
    async def late(_parameters: object, *, plugin: str) -> AsyncIterator[FakeSnapshot]:
        yield Late()

    monkeypatch.setattr(desk.work, "_current_facts", facts)
    monkeypatch.setattr(desk.work, "_refuse_problems", lambda *_: None)
    monkeypatch.setattr(cut, "export_snapshot", late)
    await desk.need([SnapshotAgain("a", "a label was renamed")])
    assert desk.ledger.plan.start(time.monotonic()) == [JobStart("a", Job.SNAPSHOT)]

    await desk.work.snapshot("a")

    assert (desk.keeper.copies, desk.keeper.settled) == ([], [])
    assert desk.ledger.plan.awaits_snapshot("a")


async def test_a_log_that_only_this_process_sees_fails_the_flush_alone(desk: Desk) -> None:
    desk.jobs.flush_error = SegmentUnreadable("can't read 1.arrows: No such file or directory")
    with pytest.raises(LogNotShared, match=r"a Spark executor can't read the log in .*Fix: set LOG_DIR"):
        await desk.work.flush("a")

    for segment in desk.ledger.log.directory.iterdir():
        segment.write_bytes(b"damaged")
    with pytest.raises(SegmentUnreadable):
        await desk.work.flush("a")


async def test_a_copy_that_stands_still_is_cancelled_and_fails(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def facts(_shape: Shape) -> TableFacts:
        return FACTS

    async def stands_still(_self: object, snapshot_name: str) -> None:
        assert snapshot_name == FakeSnapshot.name

    monkeypatch.setattr(cut, "export_snapshot", exported)
    monkeypatch.setattr(desk.work, "_current_facts", facts)
    monkeypatch.setattr(desk.work, "_refuse_problems", lambda *_: None)
    monkeypatch.setattr(CopyWatch, "_stands_still", stands_still)
    desk.jobs.hangs = True
    await desk.work.flush("a")
    await desk.need([SnapshotAgain("a", "for a test")])
    desk.ledger.plan.start(time.monotonic())

    with pytest.raises(CopyHangs):
        await desk.work.snapshot("a")

    assert desk.jobs.cancelled == "a"
    assert desk.work.copying == set()
    assert desk.keeper.settled == []
