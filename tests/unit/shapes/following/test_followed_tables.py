"""FollowedTables: who follows what, and as what each table is known."""

from __future__ import annotations

from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.following.followed_tables import FollowedTables

ORDERS, ITEMS, OTHER = (Relation("public", name) for name in ("orders", "items", "other"))


def tree(relation: Relation, filenode: int = 1) -> Tree:
    return Tree(Member(relation, 1, filenode, "layout"))


def test_shapes_of_one_table_follow_it_together() -> None:
    tables = FollowedTables({"b": ORDERS, "a": ORDERS, "c": ITEMS}, [tree(ORDERS), tree(ITEMS), tree(OTHER)])

    assert tables.followers == {ORDERS: {"a", "b"}, ITEMS: {"c"}}
    assert tables.judged.keys() == {ORDERS, ITEMS}, "nobody follows the third one"
    assert sorted(tables.shapes_of([ORDERS, ITEMS])) == ["a", "b", "c"]
    assert tables.again({ORDERS: "why"}) == [SnapshotAgain("a", "why"), SnapshotAgain("b", "why")]


def test_a_table_without_a_tree_is_gone() -> None:
    tables = FollowedTables({"a": ORDERS, "c": ITEMS}, [tree(ORDERS)])

    assert (tables.is_gone("a"), tables.is_gone("c")) == (False, True)


def test_a_shape_that_was_judged_by_another_look_has_a_tree_of_its_own() -> None:
    own = tree(ORDERS, filenode=2)
    tables = FollowedTables({"a": ORDERS, "b": ORDERS}, [tree(ORDERS)], {"b": own})

    assert tables.tree_of(ORDERS, "a") == tree(ORDERS)
    assert tables.tree_of(ORDERS, "b") == own
    assert tables.own_trees_of(ORDERS) == [own]
