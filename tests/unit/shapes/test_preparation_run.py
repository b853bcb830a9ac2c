"""Preparation from beginning to end: the order of its effects, and what a crash between them leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from penstock.decoding.plugins import decoder_for
from penstock.errors import LineLost, SlotInvalid, SlotMismatch
from penstock.lake.ports import ShapeJobs, TableState
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile, definition_hash
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_facts import ColumnFacts, IndexFacts, LeafFacts, TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.leader.line import EnsuredSlot
from penstock.postgres.slot.state import SlotState
from penstock.postgres.snapshot.open_transactions import OpenTransaction
from penstock.postgres.timeline import ServerIdentity
from penstock.shapes import preparation
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.pace.held import whole
from penstock.shapes.preparation import Preparation, Prepared, ShapesRefused
from penstock.shapes.registry.decisions import Continue
from penstock.shapes.registry.registry import Registry, RegistryError, ShapeEntry
from penstock.status.metrics import ShapesMetrics
from tests.fake_session import FakeSession

SHAPES = tuple(Shape(name, Relation("public", name)) for name in ("a", "b"))
FILE = ShapesFile("shapes.toml", "/lake", SHAPES)
SLOT = SlotState(
    "s", "logical", "wal2json", "db", False, None, 900, 800, "reserved", None, "db", retained_bytes=0
)
IDENTITY = ServerIdentity("7301", 1, {})
REGISTRY = Registry(
    "7301", 1, "s", 1000, {shape.name: ShapeEntry(definition_hash(shape), None, None) for shape in SHAPES}
)
ALL_NEW = (SnapshotAgain("a", "it is new"), SnapshotAgain("b", "it is new"))
LOOKS = ["slot", "registry", "catalog", "table a", "table b", "wal"]
"""How far the server's WAL goes is asked last: the tables may not be ahead of it."""


def facts_of(table: Relation) -> TableFacts:
    return TableFacts(
        Tree(Member(table, 1, 1, "a")),
        (ColumnFacts("id", 1, "integer", not_null=True),),
        (IndexFacts("pkey", ("id",), is_primary=True),),
        leaves=(LeafFacts(table, identity=("id",)),),
    )


class World:
    """Server, storage and registry, as a start finds them; notes in which order they are met."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.slot: SlotState | None = SLOT
        self.made = SLOT._replace(confirmed_flush_lsn=2000, restart_lsn=1900)
        self.refuses_slot: Exception | None = None
        self.flush_lsn = 5000
        self.facts: dict[Relation, TableFacts] = {shape.table: facts_of(shape.table) for shape in SHAPES}
        self.tables = {"a": TableState(True, 950), "b": TableState(True, 40)}
        self.registry: Registry | None = REGISTRY
        self.writes = 0
        self.fails_at_write: int | None = None

    # The line

    async def read_slot(self) -> SlotState | None:
        self.order.append("slot")
        return self.slot

    async def kept_awake(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await work

    async def connect(self) -> FakeSession:
        self.order.append("wal")
        answer = (format_lsn(self.flush_lsn),)
        return FakeSession({"pg_current_wal_flush_lsn": answer}, pause=lambda _: None)

    async def ensure_slot(self) -> EnsuredSlot:
        if self.refuses_slot is not None:
            raise self.refuses_slot
        if self.slot is not None:
            return EnsuredSlot(self.slot, created=False)
        self.order.append("slot made")
        self.slot = self.made
        return EnsuredSlot(self.slot, created=True)

    # The catalog, the storage and the registry

    async def look(self, tables: Collection[Relation]) -> Mapping[Relation, TableFacts]:
        self.order.append("catalog")
        return {table: facts for table, facts in self.facts.items() if table in tables}

    def state(self, shape: Shape, known: int | None = None) -> TableState:
        entry = None if self.registry is None else self.registry.shapes.get(shape.name)
        assert known == (None if entry is None else entry.offset)
        self.order.append(f"table {shape.name}")
        return self.tables[shape.name]

    def read(self) -> Registry | None:
        self.order.append("registry")
        return self.registry

    def write(self, registry: Registry) -> None:
        self.writes += 1
        if self.writes == self.fails_at_write:
            raise RegistryError("the disk is full")
        self.order.append("written")
        self.registry = registry

    def awaited(self) -> dict[str, str | None]:
        assert self.registry is not None
        return {name: entry.awaits_snapshot for name, entry in self.registry.shapes.items()}


class Catalog:
    """Only `facts` and the decoder are asked."""

    decoder = decoder_for("wal2json")

    def __init__(self, world: World) -> None:
        self.facts = world.look


class Site:
    """A world, and one who prepares in it."""

    def __init__(self, threads: JobThreads) -> None:
        self.world = World()
        self.metrics = ShapesMetrics()
        self._threads = threads

    async def start(
        self,
        *,
        identity: ServerIdentity = IDENTITY,
        resnapshot: frozenset[str] = frozenset(),
        file: ShapesFile = FILE,
        slot_within_s: float | None = None,
    ) -> Prepared:
        prepares = Preparation(
            file,
            slot="s",
            plugin="wal2json",
            line=cast(Any, self.world),
            catalog=cast(Any, Catalog(self.world)),
            store=self.world,
            threads=self._threads,
            metrics=self.metrics,
            slot_within_s=slot_within_s,
        )
        return await prepares.run(identity, cast(ShapeJobs, self.world), resnapshot)

    def counted(self, name: str) -> float:
        return next(
            float(sample.value)
            for metric in getattr(self.metrics, name).collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        )


@pytest.fixture
def site() -> Iterator[Site]:
    threads = JobThreads(1)
    yield Site(threads)
    threads.close()


@pytest.fixture
def world(site: Site) -> World:
    return site.world


def make_new(world: World) -> None:
    """As before the very first start."""
    world.slot, world.registry = None, None
    world.tables = dict.fromkeys(world.tables, TableState(False, None))


async def test_the_first_start(site: Site, world: World) -> None:
    make_new(world)
    prepared = await site.start()

    assert world.order == [*LOOKS, "written", "slot made", "written"]
    assert prepared.actions == ALL_NEW
    assert prepared.slot == world.made
    assert prepared.keeper.registry == world.registry
    assert world.awaited() == {"a": "it is new", "b": "it is new"}
    assert prepared.keeper.registry.ceiling_lsn == 2000, "where the slot begins"
    assert site.counted("slot_creations") == 1


async def test_a_slot_that_cant_be_made_says_what_it_waits_for(
    site: Site, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_new(world)

    async def waits() -> EnsuredSlot:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def open_ones(_: object) -> list[OpenTransaction]:
        return [OpenTransaction("7", 4711, None, None, None)]

    monkeypatch.setattr(world, "ensure_slot", waits)
    monkeypatch.setattr(preparation, "open_transactions", open_ones)
    with pytest.raises(LineLost, match="slot s could not be made: it waits for open transactions: pid 4711"):
        await site.start(slot_within_s=0.01)
    assert world.awaited() == {"a": "it is new", "b": "it is new"}


async def test_an_ordinary_restart(site: Site, world: World) -> None:
    prepared = await site.start()

    assert world.order == [*LOOKS, "written"]
    assert prepared.actions == (Continue("a", whole(950)), Continue("b", whole(40)))
    assert world.registry == REGISTRY
    assert prepared.facts == world.facts
    assert site.counted("slot_creations") == 0


@pytest.mark.parametrize("crash", ["before the slot is made", "before the ceiling is written"])
async def test_a_crash_in_the_first_start_changes_nothing_for_the_next(
    site: Site, world: World, crash: str
) -> None:
    make_new(world)
    if crash == "before the slot is made":
        world.refuses_slot = LineLost("cut")
    else:
        world.fails_at_write = 2
    with pytest.raises((LineLost, RegistryError)):
        await site.start()
    world.refuses_slot = world.fails_at_write = None

    prepared = await site.start()
    assert all(isinstance(action, SnapshotAgain) for action in prepared.actions)
    assert prepared.keeper.registry.ceiling_lsn == 2000


async def test_a_slot_that_was_lost_and_created_again_is_never_taken_for_the_former(
    site: Site, world: World
) -> None:
    """The registry knows that all tables wait before there is a slot that could be confirmed."""
    world.slot = None
    world.fails_at_write = 2
    with pytest.raises(RegistryError):
        await site.start()
    assert world.slot == world.made
    assert all(reason is not None and "is missing" in reason for reason in world.awaited().values())

    prepared = await site.start()
    assert all(isinstance(action, SnapshotAgain) for action in prepared.actions)


@pytest.mark.parametrize(
    ("slot", "error"),
    [
        (SLOT._replace(plugin="pgoutput"), SlotMismatch),
        (SLOT._replace(slot_type="physical", plugin=None), SlotMismatch),
        (SLOT._replace(database="other"), SlotMismatch),
        (SLOT._replace(wal_status="lost"), SlotInvalid),
    ],
)
async def test_a_slot_that_is_not_ours_ends_it_before_anything_is_looked_at(
    site: Site, world: World, slot: SlotState, error: type[Exception]
) -> None:
    world.slot = slot
    with pytest.raises(error):
        await site.start()
    assert world.order == ["slot"]
    assert world.registry == REGISTRY


async def test_a_shape_that_never_worked_refuses_all_and_writes_nothing(site: Site, world: World) -> None:
    new = Shape("new", Relation("public", "new"))
    world.tables["new"] = TableState(False, None)
    with pytest.raises(ShapesRefused, match=r"there is no table public\.new"):
        await site.start(file=replace(FILE, shapes=(*SHAPES, new)))
    assert world.registry == REGISTRY
    assert "written" not in world.order


async def test_another_server_refuses_all_in_one_sentence(site: Site, world: World) -> None:
    with pytest.raises(ShapesRefused) as raised:
        await site.start(identity=IDENTITY._replace(system_id="9999"))
    assert str(raised.value).count("belongs to the database system 7301") == 1
    assert "written" not in world.order


async def test_a_table_that_others_wrote_first_is_no_place_for_a_new_shape(site: Site, world: World) -> None:
    make_new(world)
    world.tables["a"] = TableState(True, None)
    with pytest.raises(ShapesRefused, match="was not written by Penstock"):
        await site.start()
    assert world.slot is None


def gone(world: World) -> None:
    del world.facts[SHAPES[0].table]


def without_key(world: World) -> None:
    world.facts[SHAPES[0].table] = world.facts[SHAPES[0].table]._replace(indexes=(), leaves=())


def written_by_others(world: World) -> None:
    world.tables["a"] = TableState(True, 950, foreign="a DELETE of somebody")


def older_database(world: World) -> None:
    world.flush_lsn = 949


@pytest.mark.parametrize(
    ("change", "says", "event", "shapes"),
    [
        (gone, "there is no table public.a", "shape_parked", "a"),
        (without_key, "Fix: ", "shape_parked", "a"),
        (written_by_others, "a DELETE of somebody", "foreign_commit", "a"),
        (older_database, "an older copy", "snapshot_needed", "ab"),
    ],
)
async def test_what_speaks_against_a_table_is_in_the_registry_before_anything_is_done(
    site: Site, world: World, change: Any, says: str, event: str, shapes: str
) -> None:
    change(world)
    with capture_logs() as said:
        prepared = await site.start()

    again = {action.shape: action.reason for action in prepared.actions if isinstance(action, SnapshotAgain)}
    assert list(again) == list(shapes)
    assert all(says in reason for reason in again.values())
    assert {name: reason for name, reason in world.awaited().items() if reason is not None} == again
    assert event in [line["event"] for line in said]


async def test_who_asks_for_a_snapshot_gets_it_for_the_shapes_that_there_are(
    site: Site, world: World
) -> None:
    prepared = await site.start(resnapshot=frozenset({"b", "unknown"}))
    assert prepared.actions == (
        Continue("a", whole(950)),
        SnapshotAgain("b", "--resnapshot asked for it"),
    )
    assert world.awaited() == {"a": None, "b": "--resnapshot asked for it"}
