"""The looks at the followed tables: what comes of each, and who is followed when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.errors import PenstockError
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.flushing import table_watch as module
from penstock.shapes.flushing.table_watch import TableWatch

TABLE = Relation("public", "t")
TREE = Tree(Member(TABLE, 1, 1, "x"))
ALTERED = Tree(Member(TABLE, 1, 1, "y"))


class Site:
    """Stands for the catalog, the ledger's collector and Work."""

    def __init__(self) -> None:
        self.tree = TREE
        self.found: list[SnapshotAgain] = []
        self.again: list[SnapshotAgain] = []
        self.followed: list[str] = []
        self.answer: SnapshotAgain | Exception | None = None
        self.stopped: set[str] = set()
        self.doubts: list[object] = []
        self.departures: list[object] = []
        self.following = asyncio.Event()
        self.following.set()
        self.collector = self
        self.slot_plugin = "wal2json"
        one: Any = self
        self.watch = TableWatch(
            [Shape(name="a", table=TABLE)],
            catalog=one,
            ledger=one,
            work=one,
            removals=one,
            snapshot_again=self._snapshot_again,
            parameters={},
        )

    async def look(self, tables: set[Relation]) -> tuple[list[Tree], int, int]:
        assert tables == {TABLE}
        return [self.tree], 100, 90

    async def note_looks(self) -> None:
        pass

    def check(self, trees: Sequence[Tree], lsn: int, before: int) -> list[SnapshotAgain]:
        found, self.found = self.found, []
        return found

    def facts(self, shape: str) -> TableFacts:
        return TableFacts(TREE, ())

    def is_stopped(self, shape: str) -> bool:
        return shape in self.stopped

    async def follow(self, shape: str) -> SnapshotAgain | None:
        self.followed.append(shape)
        await self.following.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def _snapshot_again(self, again: Sequence[SnapshotAgain]) -> None:
        self.again += again

    async def looks(self, count: int) -> None:
        """Until so many looks more have ended, and what they began has had its turns."""
        until = self.watch.looks + count
        task = asyncio.create_task(self.watch.run())
        async with asyncio.timeout(10):
            while self.watch.looks < until:
                assert not task.done(), task
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_AFTER_FAILURE_S", 0.0)
    return Site()


async def test_a_table_that_is_as_before_costs_nothing(site: Site) -> None:
    await site.looks(3)
    assert (site.followed, site.again) == ([], [])


async def test_what_a_look_finds_is_snapshotted_again(site: Site) -> None:
    site.found = [SnapshotAgain("a", "it was rewritten")]
    await site.looks(2)
    assert site.again == [SnapshotAgain("a", "it was rewritten")]


async def test_an_altered_table_is_followed_once_at_a_time(site: Site) -> None:
    site.tree = ALTERED
    site.following.clear()
    await site.looks(5)
    assert site.followed == ["a"]


async def test_what_cannot_be_followed_is_snapshotted_again(site: Site) -> None:
    site.tree, site.answer = ALTERED, SnapshotAgain("a", "its key has changed")
    await site.looks(1)
    assert set(site.again) == {SnapshotAgain("a", "its key has changed")}


async def test_what_has_stopped_a_shape_may_have_been_taken_back(site: Site) -> None:
    site.stopped = {"a"}
    await site.looks(1)
    assert set(site.followed) == {"a"}


async def test_a_failure_is_said_once_and_tried_again(site: Site) -> None:
    site.tree, site.answer = ALTERED, PenstockError("no such column")
    with capture_logs() as said:
        await site.looks(20)
    assert len(site.followed) > 1
    assert [(line["event"], line["detail"]) for line in said] == [("shape_stopped", "no such column")]
    assert site.again == []
