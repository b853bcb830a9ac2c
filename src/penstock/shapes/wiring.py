"""The parts of one leadership, put together: from the stream to the tables and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
from penstock.shapes.flushing.job_runner import JobRunner, JobThreads
from penstock.shapes.flushing.removals import Removals
from penstock.shapes.flushing.table_watch import TableWatch
from penstock.shapes.flushing.work import Work
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
        start = {action.shape: action.offset for action in prepared.actions if isinstance(action, Continue)}
        known = self._known_facts(start)
        held = Held()
        walk = incoming.walk(start_lsn)
        trees, own_trees = trees_at_start(prepared.facts, known)
        self.ledger = Ledger(
            held=held,
            collector=Collector(
                walk=walk,
                shapes={shape.name: shape.table for shape in shapes},
                trees=trees,
                held=held,
                own_trees=own_trees,
                looked={name: self.keeper.registry.shapes[name].looked_lsn or 0 for name in start},
            ),
            log=workplace.log,
            tracker=FlushTracker(initial_lsn=start_lsn),
            plan=FlushPlan(workplace.limits, held),
        )
        self._enter_shapes(prepared, start)
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
        self.parking = Parking(self.ledger, self.feed, self.resnapshots)
        self.readings = Readings(self.ledger, self.feed, self.work.rows)

    def _known_facts(self, start: Mapping[str, LogOffset]) -> dict[str, TableFacts]:
        entries = self.keeper.registry.shapes
        return {name: facts for name in start if (facts := entries[name].facts) is not None}

    def _enter_shapes(self, prepared: Prepared, start: Mapping[str, LogOffset]) -> None:
        now = time.monotonic()
        for shape in self._shapes:
            self.ledger.add(
                shape.name,
                interval_s=shape.flush_interval_ms / 1000,
                held=start.get(shape.name, BEFORE_ALL),
                now=now,
            )
        for action in prepared.actions:
            if isinstance(action, SnapshotAgain):
                self.ledger.carry_out([action], now)
                # The decision is in the registry.
                self.ledger.noted(action.shape)
