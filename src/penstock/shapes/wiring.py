"""The parts of one leadership, put together: from the stream to the tables and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from penstock.changelog.log import ChangeLog
from penstock.lake.ports import ShapeJobs
from penstock.model.log_offset import BEFORE_ALL, LogOffset
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Tree
from penstock.shapes.feed.collector import Collector
from penstock.shapes.feed.from_postgres import Incoming, PostgresFeed
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.feed.port import Feed
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.flushing.complaints import complaints, failing_holder
from penstock.shapes.flushing.job_runner import JobRunner, JobThreads
from penstock.shapes.flushing.removals import Removals
from penstock.shapes.flushing.table_watch import TableWatch
from penstock.shapes.flushing.work import Work
from penstock.shapes.pace.flush_plan import FlushLimits, FlushPlan, ShapeState, ShapeStatus
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.preparation import Prepared
from penstock.shapes.registry.decisions import Continue
from penstock.shapes.registry.keeper import Confirmed
from penstock.status.model import ShapeReading, ShapesReading

_log = structlog.get_logger()


class ShapeLine(NamedTuple):
    """A shape in a line, for people and for metrics."""

    status: ShapeStatus
    rows: int
    """Changes applied and rows copied in this leadership."""
    lag_bytes: int
    """WAL between what its table holds and what was received; 0 if it has everything."""


def trees_at_start(
    now: Mapping[Relation, TableFacts], known: Mapping[str, TableFacts]
) -> tuple[list[Tree], dict[str, Tree]]:
    """The tables as they were when somebody last looked: what was done since is found by the first look.

    And the trees of shapes that were judged up to another look than that. `known`: of shapes that go on.
    """
    trees = {relation: facts.tree for relation, facts in now.items()}
    first = {facts.relation: facts.tree for facts in known.values() if facts.relation in trees}
    own = {shape: facts.tree for shape, facts in known.items() if facts.tree != first.get(facts.relation)}
    return [first.get(relation, tree) for relation, tree in trees.items()], own


class Workplace(NamedTuple):
    """Where changes wait, and who carries them into the tables."""

    log: ChangeLog
    jobs: ShapeJobs
    threads: JobThreads
    limits: FlushLimits


class Database(NamedTuple):
    """The database itself, for looks at the catalog and for snapshots."""

    catalog: ShapeCatalog
    parameters: dict[str, Any]


class ShapesPipeline:
    """Makes the parts and knows how they hang together. They are run by the leadership."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        prepared: Prepared,
        *,
        incoming: Incoming,
        workplace: Workplace,
        database: Database,
        say_needed: Callable[[SnapshotAgain], None],
    ) -> None:
        self._shapes = shapes
        self.keeper = prepared.keeper
        start_lsn = prepared.slot.start_lsn
        held = {action.shape: action.offset for action in prepared.actions if isinstance(action, Continue)}
        known = self._known_facts(held)
        walk = incoming.walk(start_lsn)
        trees, own_trees = trees_at_start(prepared.facts, known)
        self.ledger = Ledger(
            collector=Collector(
                walk=walk,
                shapes={shape.name: shape.table for shape in shapes},
                trees=trees,
                held=held,
                own_trees=own_trees,
                looked={name: entry.looked_lsn or 0 for name, entry in self.keeper.registry.shapes.items()},
            ),
            log=workplace.log,
            tracker=FlushTracker(initial_lsn=start_lsn),
            plan=FlushPlan(workplace.limits),
        )
        self._enter_shapes(prepared, held)
        self.confirmed = Confirmed(self.ledger.tracker, self.keeper, self.ledger.offsets)
        self.resnapshots = Resnapshots(
            self.ledger, self.keeper, say_needed=say_needed, wake=lambda: self.runner.wake()
        )
        self.work = Work(
            shapes,
            jobs=workplace.jobs,
            threads=workplace.threads,
            ledger=self.ledger,
            keeper=self.keeper,
            catalog=database.catalog,
            parameters=database.parameters,
            facts=known,
            snapshot_again=self.resnapshots.need,
            park=self.resnapshots.park,
        )
        self.runner = JobRunner(self.ledger, self.work)
        self.feed: Feed = PostgresFeed(
            incoming,
            walk,
            self.ledger,
            self.confirmed,
            self.resnapshots,
            look_up=database.catalog.found,
            on_commits=self.runner.wake,
        )
        self.watch = TableWatch(
            shapes,
            catalog=database.catalog,
            ledger=self.ledger,
            work=self.work,
            removals=Removals(
                shapes,
                ledger=self.ledger,
                work=self.work,
                keeper=self.keeper,
                snapshot_again=self.resnapshots.need,
            ),
            snapshot_again=self.resnapshots.need,
            parameters=database.parameters,
        )

    async def park_holder_of_full_log(self, now: float, stall_s: float) -> None:
        """Nobody waits for a shape that fails while others could go on: it is snapshotted when it works."""
        if not self.feed.is_paused:
            return
        behind = self.ledger.tracker.stalled(now, 0.0)
        holder = failing_holder(self.ledger.plan.status(now), behind, stall_s=stall_s)
        if holder is not None:
            reason = f"the log is full, and it held it: {holder.error}"
            _log.error("shape_parked", shape=holder.shape, detail=reason)
            await self.resnapshots.need([SnapshotAgain(holder.shape, reason)])

    def lines(self, now: float) -> list[ShapeLine]:
        """Every shape."""
        received = self.feed.received_lsn
        return [
            ShapeLine(
                status,
                self.work.rows[status.shape],
                0
                if self.ledger.tracker.progress(status.shape) is None
                and not self.ledger.is_parked(status.shape)
                else max(0, received - max(0, status.offset.tx_offset)),
            )
            for status in self.ledger.plan.status(now)
        ]

    def reading(self, line_age_s: float, now: float) -> ShapesReading:
        """All of it in numbers."""
        ledger = self.ledger
        return ShapesReading(
            line_age_s,
            self.feed.received_lsn,
            ledger.tracker.frontier_lsn,
            ledger.transactions,
            ledger.changes,
            ledger.log.size_bytes,
            self.feed.is_paused,
            [
                ShapeReading(
                    line.status.shape,
                    line.status.state.value,
                    line.status.offset.tx_offset,
                    line.lag_bytes,
                    line.status.pending_s,
                    line.rows,
                    line.status.error,
                )
                for line in self.lines(now)
            ],
        )

    def awaits_snapshots(self) -> bool:
        """Whether some shape's table is still to be made, or may have to be; not if it was stopped."""
        stopped = self.stopped_shapes()
        return not self.ledger.collector.is_certain or any(
            self.ledger.plan.awaits_snapshot(shape.name) and shape.name not in stopped
            for shape in self._shapes
        )

    def stopped_shapes(self) -> dict[str, str]:
        """The shapes that wait for somebody to act, with the sentence of each."""
        statuses = self.ledger.plan.status(time.monotonic())
        return {each.shape: each.error or "" for each in statuses if each.state is ShapeState.STOPPED}

    def copied_shapes(self) -> set[str]:
        """The shapes whose rows are being copied."""
        return set(self.work.copying)

    def complaints(self, now: float, stall_s: float) -> dict[str, str]:
        """A sentence for each shape that holds something up."""
        return complaints(
            self.ledger.plan.stalled(now, stall_s),
            self.ledger.tracker.stalled(now, 0.0),
            log_is_full=self.feed.is_paused,
            stall_s=stall_s,
        )

    def unflushed_shapes(self) -> int:
        """How many shapes have something to flush; one that is parked or copied doesn't count."""
        progresses = [self.ledger.tracker.progress(shape.name) for shape in self._shapes]
        return sum(progress is not None and not progress.pinned for progress in progresses)

    def everything_is_flushed(self) -> bool:
        """Whether no shape has something to flush, but for those that fail or await a snapshot."""
        for status in self.ledger.plan.status(time.monotonic()):
            progress = self.ledger.tracker.progress(status.shape)
            if progress is not None and not progress.pinned and status.error is None:
                return False
        return True

    async def flush_everything(self) -> None:
        """What was read goes to the tables now, without waiting for anybody's interval."""
        await asyncio.to_thread(self.ledger.log.flush, time.monotonic())
        while not self.everything_is_flushed():
            self.ledger.plan.make_room(time.monotonic())
            self.runner.wake()
            await asyncio.sleep(0.05)

    def _known_facts(self, held: dict[str, LogOffset]) -> dict[str, TableFacts]:
        entries = self.keeper.registry.shapes
        return {name: facts for name in held if (facts := entries[name].facts) is not None}

    def _enter_shapes(self, prepared: Prepared, held: dict[str, LogOffset]) -> None:
        now = time.monotonic()
        for shape in self._shapes:
            self.ledger.add(
                shape.name,
                interval_s=shape.flush_interval_ms / 1000,
                held=held.get(shape.name, BEFORE_ALL),
                now=now,
            )
        for action in prepared.actions:
            if isinstance(action, SnapshotAgain):
                self.ledger.carry_out([action], now)
                # The decision is in the registry.
                self.ledger.noted(action.shape)
