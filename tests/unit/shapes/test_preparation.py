from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from penstock.decoding.plugins import decoder_for
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile, definition_hash
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.preparation import judge
from penstock.shapes.registry.registry import Registry, ShapeEntry

DECODER = decoder_for("wal2json")
TABLE = Relation("public", "t")
WITHOUT_KEY = {TABLE: TableFacts(Tree(Member(TABLE, 1, 1, "x")), ())}
SHAPE = Shape("a", Relation("public", "t"))
FILE = ShapesFile("shapes.toml", "/lake", (SHAPE,))
REGISTRY = Registry("7301", 1, "slot", 0, {"a": ShapeEntry(definition_hash(SHAPE), None, None)})


def test_a_shape_that_has_worked_is_parked_and_no_reason_to_refuse_all() -> None:
    refused, parked = judge(FILE, WITHOUT_KEY, (), REGISTRY, DECODER)
    assert refused == []
    assert list(parked) == ["a"]
    assert "Fix: " in parked["a"]


def test_a_shape_whose_table_is_gone_is_parked() -> None:
    refused, parked = judge(FILE, {}, [Relation("public", "t2")], REGISTRY, DECODER)
    assert refused == []
    assert "there is no table public.t" in parked["a"]
    assert "public.t2" not in parked["a"], "its name was right"


def test_a_shape_that_never_worked_or_was_edited_is_refused() -> None:
    edited = replace(FILE, shapes=(replace(SHAPE, where="id > 1"),))
    for judged in (
        judge(FILE, WITHOUT_KEY, (), None, DECODER),
        judge(FILE, WITHOUT_KEY, (), structs.replace(REGISTRY, shapes={}), DECODER),
        judge(edited, WITHOUT_KEY, (), REGISTRY, DECODER),
        judge(FILE, {}, (), None, DECODER),
        judge(edited, {}, (), REGISTRY, DECODER),
    ):
        assert judged.refused
        assert not judged.parked
