"""Snapshot again: pinned, then in the registry, then nobody waits; a crash in between loses nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from penstock.changelog.log import ChangeLog
from penstock.changelog.runs import create_run
from penstock.decoding.wal2json import Wal2Json
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Collector, Committed
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.feed.resnapshots import Resnapshots
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.registry.keeper import RegistryKeeper
from penstock.shapes.registry.registry import Registry, RegistryError, ShapeEntry

START = 100
TABLES = {"a": Relation("public", "a"), "b": Relation("public", "b")}
TREES = [Tree(Member(table, oid, 1, "x")) for oid, table in enumerate(TABLES.values(), start=1)]


class Store:
    """A registry in memory. `on_write` sees how things are before the write has happened."""

    def __init__(self, registry: Registry) -> None:
        self.on_disk = registry
        self.on_write: Callable[[], None] = lambda: None

    def read(self) -> Registry:
        return self.on_disk

    def write(self, registry: Registry) -> None:
        self.on_write()
        self.on_disk = registry


class Site(NamedTuple):
    """Two shapes that have worked so far, and everything that is said of them, in order."""

    ledger: Ledger
    store: Store
    resnapshots: Resnapshots
    order: list[str]

    def commit(self, commit_lsn: int, *touched: str) -> None:
        self.ledger.carry_out([Committed(LogOffset(commit_lsn, 0), commit_lsn + 8, frozenset(touched))], 1.0)

    def is_pinned(self, shape: str) -> bool:
        return self.ledger.tracker.progress(shape) is not None

    def awaited(self) -> dict[str, str | None]:
        return {name: entry.awaits_snapshot for name, entry in self.store.on_disk.shapes.items()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    held = Held()
    ledger = Ledger(
        held=held,
        collector=Collector(
            walk=FrameWalk(Wal2Json(), confirmed_lsn=START, needs_lsn=True),
            shapes=TABLES,
            trees=TREES,
            held=held,
        ),
        log=ChangeLog(create_run(tmp_path, "run")),
        tracker=FlushTracker(initial_lsn=START),
        plan=FlushPlan(held=held),
    )
    for shape in TABLES:
        ledger.add(shape, interval_s=0.0, held=whole(90), now=0.0)
    store = Store(Registry("7301", 1, "slot", 0, dict.fromkeys(TABLES, ShapeEntry("hash", None, None))))
    order: list[str] = []

    def on_write() -> None:
        pinned = [shape for shape in TABLES if ledger.tracker.progress(shape) is not None]
        parked = [shape for shape in TABLES if ledger.is_parked(shape)]
        order.append(f"written, pinned {pinned}, parked {parked}")

    store.on_write = on_write
    resnapshots = Resnapshots(
        ledger,
        RegistryKeeper(store, store.on_disk),
        say_needed=lambda again: order.append(f"said {again.shape}"),
        wake=lambda: order.append("woken"),
    )
    return Site(ledger, store, resnapshots, order)


async def test_pinned_then_written_then_nobody_waits(site: Site) -> None:
    await site.resnapshots.need([SnapshotAgain("a", "it was rewritten")])

    assert site.order == ["written, pinned ['a'], parked []", "said a", "woken"]
    assert site.awaited() == {"a": "it was rewritten", "b": None}
    assert site.ledger.is_parked("a")
    assert not site.is_pinned("a")


async def test_several_are_one_write(site: Site) -> None:
    await site.resnapshots.need([SnapshotAgain("a", "x"), SnapshotAgain("b", "y")])
    assert site.order == ["written, pinned ['a', 'b'], parked []", "said a", "said b", "woken"]
    assert site.awaited() == {"a": "x", "b": "y"}


async def test_nothing_to_do_writes_nothing_and_wakes_nobody(site: Site) -> None:
    await site.resnapshots.need([])
    assert site.order == []


async def test_nothing_is_confirmed_until_the_registry_has_it(site: Site) -> None:
    """Somebody else's transactions go on meanwhile: they must not move what is confirmed."""
    frontiers = []

    def while_writing() -> None:
        site.commit(200)
        frontiers.append(site.ledger.tracker.frontier_lsn)

    site.store.on_write = while_writing
    await site.resnapshots.need([SnapshotAgain("a", "it was rewritten")])
    frontiers.append(site.ledger.tracker.frontier_lsn)

    assert frontiers == [START, 208]


@pytest.mark.parametrize(
    "act",
    [
        lambda resnapshots: resnapshots.need([SnapshotAgain("a", "it was rewritten")]),
        lambda resnapshots: resnapshots.park("a", "its table has no key"),
    ],
    ids=["need", "park"],
)
async def test_a_registry_that_can_not_be_written_leaves_it_pinned(
    site: Site, act: Callable[[Resnapshots], Awaitable[None]]
) -> None:
    """The leadership ends with this error; what the last status confirms is what the table has."""

    def refuse() -> None:
        raise RegistryError("the disk is full")

    site.store.on_write = refuse
    with pytest.raises(RegistryError):
        await act(site.resnapshots)

    site.commit(200)
    assert site.is_pinned("a")
    assert not site.ledger.is_parked("a")
    assert site.ledger.tracker.frontier_lsn == START
    assert site.awaited() == {"a": None, "b": None}
    assert site.order == [], "nobody is told or woken"


async def test_a_shape_that_awaits_its_snapshot_for_another_reason_keeps_nobody_waiting(site: Site) -> None:
    await site.resnapshots.need([SnapshotAgain("a", "it was rewritten")])
    await site.resnapshots.need([SnapshotAgain("a", "it was altered")])
    assert site.ledger.is_parked("a")
    assert not site.is_pinned("a")


async def test_a_parked_shape_waits_for_a_person_and_no_snapshot_begins(site: Site) -> None:
    with capture_logs() as said:
        await site.resnapshots.park("a", "its table has no key")

    assert site.order == ["written, pinned ['a'], parked []"], "there is nothing to do: nobody is woken"
    assert [(line["event"], line["shape"], line["detail"]) for line in said] == [
        ("shape_parked", "a", "its table has no key")
    ]
    assert site.awaited()["a"] == "its table has no key"
    assert site.ledger.is_parked("a")
    assert site.ledger.plan.start(10.0) == []


async def test_a_snapshot_is_started_for_a_shape_that_needs_one(site: Site) -> None:
    await site.resnapshots.need([SnapshotAgain("a", "it was rewritten")])
    assert [start.shape for start in site.ledger.plan.start(1e9)] == ["a"]


async def test_a_shape_whose_table_is_gone_is_parked_loudly(site: Site) -> None:
    """The look at the catalog that finds it gone says so; the plan starts nothing for it."""
    again = site.ledger.collector.check(TREES[1:], 150)
    assert [each.shape for each in again] == ["a"]
    with capture_logs() as said:
        await site.resnapshots.need(again)

    assert [(line["event"], line["shape"]) for line in said] == [("shape_parked", "a")]
    assert site.ledger.is_parked("a")
    assert site.ledger.plan.start(1e9) == []


async def test_one_that_is_pinned_already_is_only_noted(site: Site) -> None:
    """The reader carries out the collector's steps itself, before the next frame is taken."""
    again = [SnapshotAgain("a", "a TRUNCATE of a partition")]
    site.ledger.carry_out(again, 1.0)
    assert site.is_pinned("a")
    await site.resnapshots.note(again)
    assert site.order == ["written, pinned ['a'], parked []", "said a", "woken"]
    assert site.ledger.is_parked("a")
