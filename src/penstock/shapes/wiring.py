"""The parts of one leadership, put together: from the stream to the tables and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.changelog.log import ChangeLog
from penstock.lake.ports import ShapeJobs
from penstock.model.log_offset import BEFORE_ALL, LogOffset
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Tree
from penstock.shapes.feed.books import ShapeBooks
from penstock.shapes.feed.collector import Collector
from penstock.shapes.feed.from_postgres import Incoming, PostgresFeed
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.feed.port import Feed
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.flushing.idle_tables import IdleTables
from penstock.shapes.flushing.job_runner import JobRunner, JobThreads
from penstock.shapes.flushing.removals import Removals
from penstock.shapes.flushing.table_watch import TableWatch
from penstock.shapes.flushing.work import ChangeSource, Work
from penstock.shapes.pace.flush_plan import FlushLimits, FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held
from penstock.shapes.parking import Parking
from penstock.shapes.preparation import Prepared
from penstock.shapes.readings import Readings
from penstock.shapes.registry.decisions import Continue
from penstock.shapes.registry.keeper import Confirmed


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
    """Who carries changes into the tables."""

    jobs: ShapeJobs
    threads: JobThreads
    limits: FlushLimits
    count_quarantined: Callable[[int], None]


class Database(NamedTuple):
    """The database itself, for looks at the catalog and for snapshots."""

    catalog: ShapeCatalog
    parameters: dict[str, Any]


class Watch(Protocol):
    """Looks at the followed tables again and again."""

    looks: int
    """How many looks have come to their end."""

    def stalled(self, now: float, after_s: float) -> str | None:
        """What has been in doubt for so long, in words; None if nothing has."""

    async def run(self) -> None:
        """Look until cancelled."""

    async def last_look(self) -> None:
        """Look once more, at the end."""


class Start(NamedTuple):
    """What is known of the shapes when changes may begin to come."""

    offsets: Mapping[str, LogOffset]
    """What the tables hold, of the shapes that go on."""
    known: Mapping[str, TableFacts]
    """Of those: their Postgres tables, as the registry has them."""

    @classmethod
    def of(cls, prepared: Prepared) -> Start:
        """By what was decided."""
        actions = prepared.actions
        offsets = {action.shape: action.offset for action in actions if isinstance(action, Continue)}
        entries = prepared.keeper.registry.shapes
        known = {name: facts for name in offsets if (facts := entries[name].facts) is not None}
        return cls(offsets, known)


class ShapesPipeline:
    """The parts that every leadership has, and how they hang together. They are run by the leadership."""

    feed: Feed
    watch: Watch

    def __init__(
        self,
        shapes: Sequence[Shape],
        prepared: Prepared,
        *,
        start: Start,
        ledger: ShapeBooks,
        source: ChangeSource,
        workplace: Workplace,
        database: Database,
        say_needed: Callable[[SnapshotAgain], None],
    ) -> None:
        """`ledger`: without any shape yet."""
        self.keeper = prepared.keeper
        self.ledger = ledger
        self._enter_shapes(shapes, prepared, start)
        self.confirmed = Confirmed(ledger.tracker, self.keeper, ledger.offsets)
        self.resnapshots = Resnapshots(
            ledger, self.keeper, say_needed=say_needed, wake=lambda: self.runner.wake()
        )
        self.work = Work(
            shapes,
            jobs=workplace.jobs,
            threads=workplace.threads,
            count_quarantined=workplace.count_quarantined,
            ledger=ledger,
            keeper=self.keeper,
            catalog=database.catalog,
            parameters=database.parameters,
            facts=start.known,
            snapshot_again=self.resnapshots.need,
            park=self.resnapshots.park,
            source=source,
        )
        self.runner = JobRunner(ledger, self.work)
        self.idle = IdleTables([shape.name for shape in shapes], self.work.look)

    @property
    def readings(self) -> Readings:
        """What the shapes are doing."""
        return Readings(self.ledger, self.feed, self.work.rows)

    def _enter_shapes(self, shapes: Sequence[Shape], prepared: Prepared, start: Start) -> None:
        now = time.monotonic()
        for shape in shapes:
            self.ledger.add(
                shape.name,
                interval_s=shape.flush_interval_ms / 1000,
                held=start.offsets.get(shape.name, BEFORE_ALL),
                now=now,
            )
        for action in prepared.actions:
            if isinstance(action, SnapshotAgain):
                self.ledger.begin_again([action], now)
                # The decision is in the registry.
                self.ledger.noted(action.shape)


class PostgresPipeline(ShapesPipeline):
    """Changes come from a slot of our own, through a log on disk."""

    ledger: Ledger

    def __init__(
        self,
        shapes: Sequence[Shape],
        prepared: Prepared,
        *,
        incoming: Incoming,
        log: ChangeLog,
        workplace: Workplace,
        database: Database,
        say_needed: Callable[[SnapshotAgain], None],
    ) -> None:
        assert prepared.slot is not None, "changes come from it"
        start, start_lsn = Start.of(prepared), prepared.slot.start_lsn
        held = Held()
        walk = incoming.walk(start_lsn)
        trees, own_trees = trees_at_start(prepared.facts, start.known)
        entries = prepared.keeper.registry.shapes
        ledger = Ledger(
            held=held,
            collector=Collector(
                walk=walk,
                shapes={shape.name: shape.table for shape in shapes},
                trees=trees,
                held=held,
                own_trees=own_trees,
                looked={name: entries[name].looked_lsn or 0 for name in start.offsets},
            ),
            log=log,
            tracker=FlushTracker(initial_lsn=start_lsn),
            plan=FlushPlan(workplace.limits, held),
        )
        super().__init__(
            shapes,
            prepared,
            start=start,
            ledger=ledger,
            source=ChangeSource(log_directory=log.directory.parent),
            workplace=workplace,
            database=database,
            say_needed=say_needed,
        )
        self.feed = PostgresFeed(
            incoming,
            walk,
            ledger,
            self.confirmed,
            self.resnapshots,
            look_up=database.catalog.found,
            on_commits=self.runner.wake,
        )
        self.watch = TableWatch(
            shapes,
            catalog=database.catalog,
            ledger=ledger,
            work=self.work,
            removals=Removals(
                shapes,
                ledger=ledger,
                work=self.work,
                keeper=self.keeper,
                snapshot_again=self.resnapshots.need,
            ),
            snapshot_again=self.resnapshots.need,
            parameters=database.parameters,
        )
        self.parking = Parking(ledger, self.feed, self.resnapshots)
