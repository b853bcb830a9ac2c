"""What looks at the catalog mean for tables whose changes come late."""

from __future__ import annotations

from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.feed.stream_routes import StreamRoutes

ORDERS = Relation("public", "orders")
PART = Relation("public", "orders_1")
TREE = Tree(Member(ORDERS, 1, 10, "columns"))


def routes(tree: Tree = TREE) -> StreamRoutes:
    found = StreamRoutes({"all": ORDERS, "some": ORDERS}, [tree])
    assert not found.is_certain
    assert found.look([tree], 100) == []
    assert found.is_certain
    return found


def with_file(filenode: int, tree: Tree = TREE) -> Tree:
    return tree._replace(table=tree.table._replace(filenode=filenode))


def names(again: list[SnapshotAgain]) -> list[str]:
    return [each.shape for each in again]


def test_a_look_decides_nothing_before_the_stream_is_there() -> None:
    found = routes()
    altered = TREE._replace(table=TREE.table._replace(layout="others"))
    assert found.look([altered], 200) == []
    assert found.reached(199) == []
    assert not found.is_certain
    assert found.is_waiting(ORDERS)
    assert found.tree_of(ORDERS, "all") == TREE
    again = found.reached(200)
    assert names(again) == ["all", "some"]
    assert "was altered" in again[0].reason
    assert found.is_certain
    assert found.tree_of(ORDERS, "all") == altered


def test_a_look_that_the_stream_has_passed_is_judged_at_once() -> None:
    found = routes()
    found.reached(500)
    assert names(found.look([with_file(11)], 200)) == ["all", "some"]


def test_a_new_file_with_the_same_toast_table_is_explained() -> None:
    tree = TREE._replace(table=TREE.table._replace(toast=5))
    found = routes(tree)
    found.look([with_file(11, tree)], 200)
    assert found.reached(200) == [], "of what may have made it only a TRUNCATE changes rows: it is streamed"
    assert found.tree_of(ORDERS, "all") == with_file(11, tree)


def test_a_new_file_without_a_toast_table_may_hide_a_load() -> None:
    found = routes()
    found.look([with_file(11)], 200)
    again = found.reached(200)
    assert names(again) == ["all", "some"]
    assert "may have been UNLOGGED meanwhile" in again[0].reason


def test_looks_behind_the_one_that_waits_are_compared_with_it() -> None:
    tree = TREE._replace(table=TREE.table._replace(toast=5))
    rewritten = with_file(12, tree)._replace(table=tree.table._replace(filenode=12, toast=6))
    found = routes(tree)
    found.look([with_file(11, tree)], 200)
    found.look([rewritten], 300)
    assert found.reached(250) == []
    assert found.is_certain
    assert found.look([rewritten], 400) == []
    assert not found.is_certain
    assert names(found.reached(400)) == ["all", "some"], "the second file is not explained"


def test_a_copy_behind_the_look_has_what_it_saw() -> None:
    found = routes()
    found.look([with_file(11)], 200)
    found.copy_begins("all", 200)
    assert names(found.reached(300)) == ["some"]


def test_a_table_that_is_gone_and_comes_back() -> None:
    found = routes()
    found.look([], 200)
    assert not found.is_gone("all")
    again = found.reached(200)
    assert names(again) == ["all", "some"]
    assert found.is_gone("all")
    assert found.look([], 300) == []
    assert found.is_certain
    found.look([TREE], 400)
    again = found.reached(400)
    assert "there is a table public.orders again" in again[0].reason
    assert not found.is_gone("all")


def test_a_new_partition_counts_at_once_and_is_copied_when_the_stream_is_there() -> None:
    tree = Tree(Member(ORDERS, 1, 0, "columns"), is_partitioned=True)
    found = routes(tree)
    grown = tree._replace(partitions=(Member(PART, 2, 20, "columns"),))
    found.look([grown], 200)
    assert found.relations_of(ORDERS) == {ORDERS, PART}
    assert names(found.reached(200)) == ["all", "some"]


def test_each_shape_is_held_against_the_tree_that_it_was_judged_by() -> None:
    found = StreamRoutes({"all": ORDERS, "some": ORDERS}, [TREE], {"some": with_file(9)})
    found.reached(1_000)
    assert names(found.look([TREE], 100)) == ["some"]
    assert found.look([TREE], 200) == []
    assert found.is_certain
