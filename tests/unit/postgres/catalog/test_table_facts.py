from __future__ import annotations

import msgspec

from penstock.model.relation import Relation
from penstock.postgres.catalog.table_facts import ColumnFacts, IndexFacts, LeafFacts, TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree

# As a registry of before has it: without `placed`, a tree's columns and children, and `is_virtual`.
WRITTEN = """
[[[["public", "t"], 5, 6, "a", false, "d", 7], [[["public", "t_1"], 8, 9, "b", true, "d", 0]], true],
 [["id", 1, "integer", "", true, false, null, []]],
 [["t_pkey", ["id"], true, false, true]], "p", "d",
 [[["public", "t_1"], "r", "p", "d", ["id"], false]], false, ["was"], 3, "UTF8"]
"""


def test_a_registry_of_before_is_read() -> None:
    t, leaf = Relation("public", "t"), Relation("public", "t_1")
    facts = TableFacts(
        Tree(Member(t, 5, 6, "a", False, "d", 7), (Member(leaf, 8, 9, "b", True, "d"),), True),
        (ColumnFacts("id", 1, "integer", not_null=True),),
        (IndexFacts("t_pkey", ("id",), is_primary=True),),
        kind="p",
        leaves=(LeafFacts(leaf, identity=("id",)),),
        gone=("was",),
        attributes=3,
    )
    assert msgspec.json.decode(WRITTEN, type=TableFacts) == facts
    assert msgspec.json.decode(msgspec.json.encode(facts), type=TableFacts) == facts
