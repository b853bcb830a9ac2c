"""StreamWatch: what a look at the catalog leads to while the stream is behind it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import cast

import pytest

from penstock.errors import ConnectionFailed
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.feed.stream_ledger import StreamLedger
from penstock.shapes.feed.stream_routes import StreamRoutes
from penstock.shapes.flushing.stream_watch import StreamWatch
from penstock.shapes.flushing.work import Work

ORDERS = Relation("public", "orders")
SHAPES = (Shape("a", ORDERS), Shape("b", ORDERS))


def tree(filenode: int) -> Tree:
    return Tree(Member(ORDERS, 1, filenode, "layout"))


class Site:
    """Stands for the catalog, the ledger and Work; the routes are real."""

    def __init__(self) -> None:
        self.routes = StreamRoutes({shape.name: ORDERS for shape in SHAPES}, [tree(1)])
        self.known = {"a": TableFacts(tree(1), ()), "b": TableFacts(tree(1), ())}
        self.trees, self.lsn = [tree(1)], 100
        self.again: list[SnapshotAgain] = []
        self.told: list[str] = []
        self.is_lost = False
        self.watch = StreamWatch(
            SHAPES,
            catalog=cast(ShapeCatalog, self),
            ledger=cast(StreamLedger, self),
            work=cast(Work, self),
            snapshot_again=self.snapshot_again,
        )

    async def look(self, tables: Set[Relation]) -> tuple[list[Tree], int, int]:
        assert tables == {ORDERS}
        if self.is_lost:
            raise ConnectionFailed("the server has gone")
        return self.trees, self.lsn, self.lsn

    async def snapshot_again(self, again: Sequence[SnapshotAgain]) -> None:
        self.again += again

    def facts(self, shape: str) -> TableFacts | None:
        return self.known.get(shape)

    async def judged(self, shape: str) -> None:
        self.told.append(shape)


async def test_a_table_that_is_as_it_was_is_nothing_to_tell() -> None:
    site = Site()
    await site.watch.last_look()

    assert (site.again, site.told, site.routes.is_certain) == ([], [], True)


async def test_another_file_is_told_to_nobody_before_the_stream_is_there() -> None:
    site = Site()
    site.trees = [tree(2)]
    await site.watch.last_look()

    assert (site.again, site.told) == ([], [])
    assert site.routes.is_waiting(ORDERS)


async def test_what_was_judged_is_kept_for_shapes_that_have_a_table() -> None:
    site = Site()
    del site.known["b"]
    site.routes.reached(100)
    site.trees = [tree(2)]
    await site.watch.last_look()

    assert [again.shape for again in site.again] == ["a", "b"], "nothing in the stream explains it"
    assert site.told == ["a"], "b awaits its snapshot, which keeps what it sees"


async def test_a_table_that_is_gone_is_not_judged() -> None:
    site = Site()
    site.routes.reached(100)
    site.trees = []
    await site.watch.last_look()

    assert [again.shape for again in site.again] == ["a", "b"]
    assert site.told == []


async def test_only_the_last_look_may_fail() -> None:
    site = Site()
    site.is_lost = True
    await site.watch.last_look()
    with pytest.raises(ConnectionFailed):
        await site.watch.run()

    assert site.watch.looks == 0, "no look has come to its end"
