"""What is done for a shape: flushes, snapshots, and following the table when it is altered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import structlog

from penstock import fault_points
from penstock.changelog.errors import SegmentUnreadable, not_shared
from penstock.errors import PenstockError
from penstock.lake.errors import ChangesUnusable, ForeignCommit, TableAltered
from penstock.lake.ports import ChangePart, JobDone
from penstock.model.log_offset import LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.partition_bounds import columns_of
from penstock.postgres.catalog.table_facts import ColumnFacts, TableFacts
from penstock.shapes.definition.table_rules import table_problems
from penstock.shapes.feed.books import ShapeBooks
from penstock.shapes.feed.collector import Collector
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.flushing.copy_watch import CopyWatch
from penstock.shapes.flushing.cut import CopyCuts
from penstock.shapes.flushing.workplace import Database, Workplace
from penstock.shapes.following.departures import Departure
from penstock.shapes.following.drift import Drift, compare
from penstock.shapes.registry.keeper import RegistryKeeper
from penstock.shapes.registry.registry import Copy

FLUSH_MAX_BYTES: Final = 256 * 2**20
"""What one flush takes of its own relations' changes, unless a single transaction has more."""
_LOOKS_AT_A_LAYOUT: Final = 3

_Result = TypeVar("_Result")
_log = structlog.get_logger()


class ShapeStopped(PenstockError):
    """A shape can't go on until somebody acts; the others do."""


class ChangeSource(NamedTuple):
    """What a job has to know of where changes are kept."""

    log_directory: Path | None = None
    """Where the log's runs are that executors must see; None: there is no log on disk."""
    is_late: bool = False
    """Whether changes come from a stream, and the catalog may be far ahead of them: then an altered table is
    snapshotted again."""
    lost: tuple[type[PenstockError], ...] = ()
    """Errors that say: changes of a shape can't be had there any more."""


class Work:
    """The jobs of one leadership. Whatever touches a shape's table holds the shape's turn."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        *,
        workplace: Workplace,
        database: Database,
        ledger: ShapeBooks,
        keeper: RegistryKeeper,
        facts: Mapping[str, TableFacts],
        resnapshots: Resnapshots,
        source: ChangeSource,
    ) -> None:
        """`facts`: of the shapes that go on, as the registry has them."""
        self._shapes = {shape.name: shape for shape in shapes}
        self._jobs = workplace.jobs
        self._threads = workplace.threads
        self._count_quarantined = workplace.count_quarantined
        self._ledger = ledger
        self._keeper = keeper
        self._catalog = database.catalog
        self._cuts = CopyCuts(ledger, database.parameters, database.catalog.slot_plugin)
        self._copies = CopyWatch(database.parameters, workplace.copy_patience_s)
        self._facts = dict(facts)
        self._resnapshots = resnapshots
        self._source = source
        self._stopped: dict[str, str] = {}
        """Shapes whose tables were altered in a way that ours can't follow, with the sentence."""
        self._unread: dict[str, int] = {}
        """How often changes of a shape had a layout that its table doesn't have."""
        self._turns = {shape.name: asyncio.Lock() for shape in shapes}
        self._one_beside = asyncio.Lock()
        self.copying: set[str] = set()
        """Shapes whose rows are on their way into a new table. Others' snapshots wait for their cut."""
        self.rows = dict.fromkeys(self._shapes, 0)
        """Changes applied and rows copied in this leadership, by shape."""

    def facts(self, shape: str) -> TableFacts | None:
        """Of the table as ours follows it; None before its snapshot."""
        return self._facts.get(shape)

    def is_stopped(self, shape: str) -> bool:
        """Whether the shape's table was altered in a way that ours can't follow."""
        return shape in self._stopped

    async def flush(self, shape: str) -> None:
        """Apply what is new in the log to the shape's table, in one commit."""
        async with self._turns[shape]:
            log = self._ledger.backlog
            relations = self._ledger.routes.relations_of(self._shapes[shape].table)
            up_to = log.boundary_within(relations, self._ledger.held(shape), FLUSH_MAX_BYTES)
            has_more = up_to < log.last_persisted_txn_offset
            done = await self._flush(self._shapes[shape], relations, up_to)
            if done is None:
                self._ledger.passed(shape, up_to.tx_offset, time.monotonic(), more=has_more)
                return
            fault_points.reached(fault_points.FLUSH_COMMITTED)
            self.rows[shape] += done.rows
            if done.quarantined:
                self._count_quarantined(done.quarantined)
                _log.warning("record_quarantined", shape=shape, records=done.quarantined)
            self._unread.pop(shape, None)
            self._ledger.flushed(shape, done.tx_offset, time.monotonic(), more=has_more)
            if done.needs_upkeep:
                self._ledger.plan.tend(shape, time.monotonic())
            if done.rows:
                self._ledger.plan.wrote(shape, time.monotonic())
                _log.debug("flushed", shape=shape, changes=done.rows, lsn=format_lsn(done.tx_offset))

    async def upkeep(self, shape: str) -> None:
        """Put the table's small files together and delete old ones, if that is due."""
        async with self._turns[shape]:
            await self._threads.run(self._jobs.upkeep, self._shapes[shape])

    async def look(self, shape: str) -> None:
        """See whether others have changed the rows of a table that nothing comes for.

        Nothing is looked at while a job has the table: a flush looks for itself, and a snapshot replaces all.
        """
        if self._turns[shape].locked():
            return
        async with self._turns[shape]:
            if self._ledger.plan.awaits_snapshot(shape):
                return
            foreign = await self._beside(self._jobs.foreign, self._shapes[shape])
            if foreign is not None:
                await self._resnapshots.need([_said(shape, foreign)])

    async def _beside(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """Run what the plan gives no place to. One at a time: the threads are those of the plan's jobs."""
        async with self._one_beside:
            return await self._threads.run(work, *arguments)

    async def remove(self, shape: str, departure: Departure, collector: Collector) -> bool:
        """Delete what a partition that is gone has left; False if only a snapshot of the table is right.

        While this has the turn the table stays where it is, so what `may_delete` has judged is what it holds.
        """
        async with self._turns[shape]:
            if self._ledger.plan.awaits_snapshot(shape) or collector.is_copied_since(departure, shape):
                return True
            facts, bounds = self._facts[shape], departure.bounds
            if not (columns_of(bounds) <= set(facts.key) and collector.may_delete(departure, shape)):
                return False
            delete, at = self._jobs.delete_within, self._ledger.offsets()[shape]
            try:
                rows = await self._beside(delete, self._shapes[shape], facts, bounds, at)
            except ForeignCommit as error:
                await self._resnapshots.need([_said(shape, str(error))])
                return True
            fault_points.reached(fault_points.PARTITION_REMOVED)
        _log.warning("partition_removed", shape=shape, partition=str(departure.partition), rows=rows)
        return True

    async def _flush(self, shape: Shape, relations: Set[Relation], up_to: LogOffset) -> JobDone | None:
        """None: nothing of the shape lies up to there."""
        self._refuse_parked(shape.name)
        facts = self._facts[shape.name]
        try:
            ranges = self._ledger.backlog.read_plan(relations, self._ledger.held(shape.name), up_to)
            if not ranges:
                return None
            try:
                return await self._threads.run(self._jobs.flush, shape, facts, ranges, up_to.tx_offset)
            except SegmentUnreadable as error:
                self._refuse_parked(shape.name)
                if self._source.log_directory is None:
                    raise
                # What this process can read is there: it is others who don't see it.
                await asyncio.to_thread(_read_all, ranges)
                raise not_shared(self._source.log_directory, "a Spark executor") from error
            except TableAltered:
                if self._source.is_late:
                    raise
                now, added = await self._follow(shape)
                if now == facts:
                    raise
            done = await self._threads.run(self._jobs.flush, shape, now, ranges, up_to.tx_offset, added)
        except ForeignCommit as error:
            await self._resnapshots.need([_said(shape.name, str(error))])
            raise
        except ChangesUnusable as error:
            await self._give_up_on(shape.name, error)
            raise
        except self._source.lost as error:
            await self._resnapshots.need([SnapshotAgain(shape.name, str(error))])
            raise
        await self._altered(shape.name, now)
        return done

    def _refuse_parked(self, shape: str) -> None:
        """Nobody keeps the log for a shape that was parked meanwhile: its flush fails alone."""
        if self._ledger.is_parked(shape):
            raise ShapeStopped(f"shape {shape} awaits a snapshot")

    async def _give_up_on(self, shape: str, error: ChangesUnusable) -> None:
        """That change will never be read: a snapshot passes over it, as soon as one can be taken.

        But an ALTER that is streamed may be visible a moment later.
        """
        self._unread[shape] = self._unread.get(shape, 0) + 1
        is_final = self._source.is_late or not isinstance(error, TableAltered)
        if is_final or self._unread[shape] >= _LOOKS_AT_A_LAYOUT:
            self._unread.pop(shape)
            await self._resnapshots.need([SnapshotAgain(shape, str(error))])

    async def snapshot(self, shape: str) -> None:
        """Copy the Postgres table as of one moment, and put it in place of the shape's table."""
        async with self._turns[shape]:
            try:
                await self._snapshot(self._shapes[shape])
            finally:
                self.copying.discard(shape)

    async def _snapshot(self, shape: Shape) -> None:
        async def refuse_problems() -> None:
            self._refuse_problems(shape, await self._current_facts(shape))

        async with AsyncExitStack() as stack:
            exported = await self._cuts.take(shape.name, stack, refuse_problems)
            before = await self._current_facts(shape)
            parts = await exported.parts([leaf.relation for leaf in before.leaves])
            facts = await self._current_facts(shape)
            if facts != before:
                raise ShapeStopped(f"{shape.table} is being altered: its snapshot starts again")
            self._refuse_problems(shape, facts)
            _log.info(
                "snapshot_started", shape=shape.name, cut=format_lsn(exported.cut_lsn), parts=len(parts)
            )
            self.copying.add(shape.name)
            await self._note_copy(shape.name, Copy(exported.cut_lsn, facts))
            fault_points.reached(fault_points.SNAPSHOT_COPYING)
            done = await self._copies.run(
                shape.name,
                exported.name,
                partial(
                    self._threads.run,
                    self._jobs.snapshot,
                    *(shape, facts, parts, exported.name, exported.cut_lsn - 1),
                ),
                cancel=partial(self._jobs.cancel_of, shape),
            )
        fault_points.reached(fault_points.SNAPSHOT_COMMITTED)
        self.rows[shape.name] += done.rows
        self._facts[shape.name] = facts
        self._stopped.pop(shape.name, None)
        self._ledger.plan.wrote(shape.name, time.monotonic())
        if self._ledger.snapshotted(shape.name, exported.cut_lsn, time.monotonic()):
            await self._keeper.update(lambda registry: registry.settled(shape.name, facts))
        _log.info("snapshot_done", shape=shape.name, rows=done.rows, cut=format_lsn(exported.cut_lsn))

    async def _note_copy(self, shape: str, copy: Copy) -> None:
        """So that whoever comes after a crash knows it by its offset, and need not copy once more.

        Not if another snapshot was asked for: the registry has heard of that, or will after this.
        """
        plan = self._ledger.plan
        await self._keeper.update(
            lambda registry: registry if plan.is_outdated(shape) else registry.copying(shape, copy)
        )

    async def follow(self, shape: str) -> SnapshotAgain | None:
        """The Postgres table was altered: add new columns to ours, or say that it is to be rebuilt.

        ShapeStopped if neither helps. One that was stopped is looked at again: it may have been mended.
        """
        async with self._turns[shape]:
            if shape in self._stopped:
                return await self._mended(self._shapes[shape])
            if self._ledger.plan.awaits_snapshot(shape):
                return None
            drift = await self._drift(self._shapes[shape])
            if drift.again:
                return SnapshotAgain(shape, drift.again)
            facts, added = await self._followed(self._shapes[shape], drift)
            if added:
                held = self._ledger.held(shape).tx_offset
                try:
                    await self._beside(self._jobs.flush, self._shapes[shape], facts, (), held, added)
                except ForeignCommit as error:
                    return _said(shape, str(error))
            await self._altered(shape, facts)
        return None

    async def judged(self, shape: str) -> None:
        """The Postgres table was looked at, and ours is as good as before: let the registry know it."""
        async with self._turns[shape]:
            facts = self._facts.get(shape)
            if facts is not None and not self._ledger.plan.awaits_snapshot(shape):
                await self._altered(shape, facts)

    async def _mended(self, shape: Shape) -> SnapshotAgain:
        drift = await self._drift(shape)
        if drift.stop:
            raise ShapeStopped(drift.stop)
        self._stopped.pop(shape.name)
        return SnapshotAgain(shape.name, drift.again or "what had stopped it is no longer so")

    async def _follow(self, shape: Shape) -> tuple[TableFacts, Sequence[ColumnFacts]]:
        drift = await self._drift(shape)
        if drift.again:
            await self._resnapshots.need([SnapshotAgain(shape.name, drift.again)])
            raise ShapeStopped(f"{drift.again}: it is about to be snapshotted again")
        return await self._followed(shape, drift)

    async def _followed(self, shape: Shape, drift: Drift) -> tuple[TableFacts, Sequence[ColumnFacts]]:
        if drift.stop:
            self._stopped[shape.name] = drift.stop
            await self._resnapshots.park(shape.name, drift.stop)
            raise ShapeStopped(drift.stop)
        for column in drift.added:
            _log.warning("column_added", shape=shape.name, column=column.name, type=column.type)
        for column in drift.widened:
            _log.warning("column_widened", shape=shape.name, column=column.name, type=column.type)
        return drift.facts, (*drift.added, *drift.widened)

    async def _drift(self, shape: Shape) -> Drift:
        now = await self._current_facts(shape)
        before, is_late = self._facts[shape.name], self._source.is_late
        drift = compare(shape, before, now, self._catalog.decoder, from_stream=is_late)
        if drift.widened and not await self._threads.run(self._jobs.may_widen, shape):
            return drift.by_snapshot(shape)
        return drift

    async def _altered(self, shape: str, facts: TableFacts) -> None:
        # Of partitions the registry knows what the collector has judged: one that was attached since is news
        # to the next look, and to whoever comes after a crash before it.
        facts = facts._replace(tree=self._ledger.routes.tree_of(facts.relation, shape))
        self._facts[shape] = facts
        await self._keeper.update(lambda registry: registry.altered(shape, facts))

    async def _current_facts(self, shape: Shape) -> TableFacts:
        table = shape.table
        facts = (await self._catalog.facts([table])).get(table)
        if facts is None:
            raise ShapeStopped(f"{shape.table} is not in the database. Fix: bring it back, or drop the shape")
        return facts

    def _refuse_problems(self, shape: Shape, facts: TableFacts) -> None:
        problems = table_problems(shape, facts, self._catalog.decoder, from_stream=self._source.is_late)
        if problems:
            raise ShapeStopped(". ".join(map(str, problems)))


def _said(shape: str, foreign: str) -> SnapshotAgain:
    _log.error("foreign_commit", shape=shape, detail=foreign)
    return SnapshotAgain(shape, foreign)


def _read_all(ranges: Sequence[ChangePart]) -> None:
    """SegmentUnreadable if this process can't read them either. Blocks."""
    for part in ranges:
        for _ in part.read():
            pass
