"""What `penstock check` says of numbers that an old wal2json can't write."""

from __future__ import annotations

from dataclasses import replace

from penstock.decoding.plugins import decoder_for
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile
from penstock.postgres.catalog.table_facts import ColumnFacts, TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.preflight.postgres_check import PluginFacts
from penstock.shapes.definition import shapes_check as preflight

T = Relation("public", "t")
COLUMNS = (
    ColumnFacts("id", 1, "bigint"),
    ColumnFacts("price", 2, "numeric(9,2)"),
    ColumnFacts("ratio", 3, "real"),
)
FACTS = {T: TableFacts(Tree(Member(T, 1, 1, "x")), COLUMNS)}
SHAPE = Shape("t", Relation(*T))


def test_a_decimal_that_is_null_for_nan_in_any_case_needs_no_newer_wal2json() -> None:
    def found(shape: Shape, *, has_strings: bool = False) -> list[str]:
        file = ShapesFile("shapes.toml", "/lake", (shape,))
        return [
            each.found
            for each in preflight._not_numbers(file, FACTS, PluginFacts(decoder_for("wal2json"), has_strings))
        ]

    said = "wal2json before 2.6 writes NaN and infinities as null, in "
    assert found(SHAPE) == [f"{said}t.price, t.ratio"]
    assert found(replace(SHAPE, numeric_nan="null")) == [f"{said}t.ratio"]
    assert found(SHAPE, has_strings=True) == []
