"""Before the stream begins: which tables go on, which are rebuilt, and a slot."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

import structlog

from penstock.decoding.decoder import Decoder
from penstock.errors import LineLost, NeedsOperator
from penstock.lake.ports import ShapeJobs
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.shape import ShapesFile, definition_hash
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.leader.line import LeaderLine
from penstock.postgres.slot.state import SlotState, check_slot
from penstock.postgres.snapshot.open_transactions import open_transactions, waits_for
from penstock.postgres.timeline import ServerIdentity, flushed_lsn
from penstock.service.slot_creation import say_slot_created
from penstock.shapes.definition.table_rules import refusals
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.pace.held import whole
from penstock.shapes.registry.decisions import Action, Decision, Refuse, ServerFacts, decide
from penstock.shapes.registry.keeper import RegistryKeeper
from penstock.shapes.registry.registry import Registry, RegistryStore
from penstock.status.metrics import ShapesMetrics

_log = structlog.get_logger()


class ShapesRefused(NeedsOperator):
    """The shapes, the storage and the database don't go together as they are."""


class Prepared(NamedTuple):
    """What is known when the stream may begin."""

    slot: SlotState | None
    """None: the changes come from a stream, which needs no slot of ours."""
    actions: tuple[Action, ...]
    keeper: RegistryKeeper
    facts: Mapping[Relation, TableFacts]
    """Of the followed tables as they are now; without those that are gone."""


class Judged(NamedTuple):
    """What is wrong with the shapes and the tables that they name."""

    refused: list[str]
    """Lines: nothing starts before somebody acts."""
    parked: dict[str, str]
    """Shapes that have worked before, and why they can't now: they hold nobody."""


def judge(
    file: ShapesFile,
    facts: Mapping[Relation, TableFacts],
    tables: Collection[Relation],
    registry: Registry | None,
    decoder: Decoder,
    *,
    from_stream: bool = False,
) -> Judged:
    """Judge each shape; `facts`, `tables`, `decoder` and `from_stream` as `refusals` takes them."""
    judged = Judged([], {})
    for shape in file.shapes:
        entry = None if registry is None else registry.shapes.get(shape.name)
        has_worked = entry is not None and entry.definition == definition_hash(shape)
        # Nobody meant another name if this one was right before.
        meant = () if has_worked else tables
        lines = refusals(replace(file, shapes=(shape,)), facts, decoder, meant, from_stream=from_stream)
        if lines and has_worked:
            judged.parked[shape.name] = " ".join(lines)
        else:
            judged.refused.extend(lines)
    return judged


class Preparation:
    """Done by the lock's holder, in this order.

    1. Look: at the server, the slot, the followed tables and the shapes' tables.
    2. Decide, and write the registry with what was decided before anything is done about it.
    3. Make the slot if it is missing. Its start becomes the ceiling before any snapshot can count.
    """

    def __init__(
        self,
        file: ShapesFile,
        *,
        slot: str,
        plugin: str,
        line: LeaderLine,
        catalog: ShapeCatalog,
        store: RegistryStore,
        threads: JobThreads,
        metrics: ShapesMetrics,
        slot_within_s: float | None = None,
        from_stream: bool = False,
    ) -> None:
        """`slot_within_s`: making the slot waits for open transactions, and is given up after this time.

        `from_stream`: changes come from a stream, and whether it reaches back far enough is seen there. So no
        slot is made, and one that is there is not looked at.
        """
        self._file = file
        self._slot = slot
        self._plugin = plugin
        self._line = line
        self._catalog = catalog
        self._store = store
        self._threads = threads
        self._metrics = metrics
        self._slot_within_s = slot_within_s
        self._from_stream = from_stream

    async def run(self, identity: ServerIdentity, jobs: ShapeJobs, resnapshot: Set[str]) -> Prepared:
        """Do all of it. ShapesRefused if somebody has to act first."""
        slot = None if self._from_stream else await self._line.read_slot()
        if slot is not None:
            check_slot(slot, self._plugin)
        registry = await asyncio.to_thread(self._store.read)
        facts, offsets, foreign = await self._line.kept_awake(self._look(jobs, registry))
        registry = self._judged(registry, facts)
        if registry is not None:
            for shape in resnapshot & registry.shapes.keys():
                registry = registry.awaiting(shape, "--resnapshot asked for it")
            for shape in foreign.keys() & registry.shapes.keys():
                _log.error("foreign_commit", shape=shape, detail=foreign[shape])
                registry = registry.awaiting(shape, foreign[shape])
        flush_lsn = await flushed_lsn(await self._line.connect())
        decision = self._decide(registry, identity, slot, offsets, flush_lsn)
        assert decision.registry is not None, "nothing is refused"
        await asyncio.to_thread(self._store.write, decision.registry)
        keeper = RegistryKeeper(self._store, decision.registry)
        ensured = None if self._from_stream else await self._ensure_slot(keeper)
        return Prepared(ensured, decision.actions, keeper, facts)

    async def _look(
        self, jobs: ShapeJobs, registry: Registry | None
    ) -> tuple[Mapping[Relation, TableFacts], Mapping[str, LogOffset | None], Mapping[str, str]]:
        shapes = self._file.shapes
        facts = await self._catalog.facts({shape.table for shape in shapes})
        known = {} if registry is None else {name: each.offset for name, each in registry.shapes.items()}
        states = await asyncio.gather(
            *(self._threads.run(jobs.state, shape, known.get(shape.name)) for shape in shapes)
        )
        offsets = {
            shape.name: None if state.tx_offset is None else whole(state.tx_offset)
            for shape, state in zip(shapes, states, strict=True)
            if state.exists
        }
        foreign = {
            shape.name: state.foreign
            for shape, state in zip(shapes, states, strict=True)
            if state.foreign is not None
        }
        return facts, offsets, foreign

    def _judged(self, registry: Registry | None, facts: Mapping[Relation, TableFacts]) -> Registry | None:
        """Shapes that can't work as their tables are now are parked; ShapesRefused if they never have."""
        decoder = self._catalog.decoder
        judged = judge(self._file, facts, (), registry, decoder, from_stream=self._from_stream)
        if judged.refused:
            raise ShapesRefused(" ".join(judged.refused))
        for shape, sentence in judged.parked.items():
            assert registry is not None, "it knows them"
            _log.error("shape_parked", shape=shape, detail=sentence)
            registry = registry.awaiting(shape, sentence)
        return registry

    def _decide(
        self,
        registry: Registry | None,
        identity: ServerIdentity,
        slot: SlotState | None,
        offsets: Mapping[str, LogOffset | None],
        flush_lsn: int,
    ) -> Decision:
        name, confirmed = self._slot, None if slot is None else slot.confirmed_flush_lsn
        if self._from_stream:
            # The slot that the tables were fed from is theirs, should they go back to it.
            name, confirmed = self._slot if registry is None else registry.slot, 0
        server = ServerFacts(*identity, name, confirmed, flush_lsn)
        decision = decide(registry, server, self._file.shapes, offsets)
        refused = [action.sentence for action in decision.actions if isinstance(action, Refuse)]
        if refused:
            raise ShapesRefused(" ".join(dict.fromkeys(refused)))
        for action in decision.actions:
            if isinstance(action, SnapshotAgain):
                self.say_needed(action)
            elif registry is not None and registry.shapes[action.shape].awaits_snapshot is not None:
                _log.info("snapshot_found", shape=action.shape, note="its copy was complete before the stop")
        return decision

    def say_needed(self, again: SnapshotAgain) -> None:
        """Count and log that a shape has to be snapshotted."""
        self._metrics.snapshots_needed.labels(again.shape).inc()
        _log.warning("snapshot_needed", shape=again.shape, reason=again.reason)

    async def _ensure_slot(self, keeper: RegistryKeeper) -> SlotState:
        try:
            async with asyncio.timeout(self._slot_within_s):
                slot, created = await self._line.ensure_slot()
        except TimeoutError:
            sentence = waits_for(await open_transactions(await self._line.connect()))
            raise LineLost(f"slot {self._slot} could not be made: {sentence}") from None
        check_slot(slot, self._plugin)
        if created:
            note = "every shape is snapshotted before anything is confirmed"
            say_slot_created(slot, self._metrics, note=note)
            await keeper.update(lambda registry: registry.with_ceiling(slot.start_lsn))
        return slot
