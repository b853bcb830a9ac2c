"""The shapes file that `penstock init` writes, read back as `penstock shapes` reads it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.init.shapes_text import TableLook, render_shapes, shape_name
from penstock.model.relation import Relation
from penstock.model.shape import ShapesFile
from penstock.shapes.definition.shapes_file import load_shapes_file

ORDERS = TableLook(Relation("public", "orders"), 1200, 3 << 20, ("id",), "default")


def read_back(text: str) -> ShapesFile:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "shapes.toml")
        path.write_text(text)
        return load_shapes_file(path)


@pytest.mark.parametrize(
    ("relation", "taken", "name"),
    [
        (Relation("public", "orders"), set(), "orders"),
        (Relation("sales", "orders"), {"orders"}, "sales_orders"),
        (Relation("sales", "orders"), {"orders", "sales_orders"}, "sales_orders_2"),
        (Relation("sales", "orders"), {"orders", "sales_orders", "sales_orders_2"}, "sales_orders_3"),
        (Relation("public", "Order Lines"), set(), "order_lines"),
        (Relation("public", "2024"), set(), "t_2024"),
        (Relation("public", "übersicht"), set(), "t__bersicht"),
        (Relation("public", "x" * 63), {"x" * 63}, "public_" + "x" * 56),
    ],
)
def test_names(relation: Relation, taken: set[str], name: str) -> None:
    assert shape_name(relation, taken) == name


def test_a_table_that_can_be_followed_and_one_that_can_not() -> None:
    keyless = ORDERS._replace(
        relation=Relation("public", "keyless"),
        rows=None,
        key=(),
        partitions=3,
        problems=["public.keyless has no key. Fix: ALTER TABLE public.keyless ADD PRIMARY KEY (…)"],
    )
    text = render_shapes("shop", [ORDERS._replace(where_needs="ALTER TABLE orders"), keyless])

    assert text.partition('storage = "./lake"\n\n')[2].splitlines() == [
        "# public.orders, about 1,200 rows, 3.0 MB, key id, replica identity default",
        "# A where needs ALTER TABLE orders",
        "[[shape]]",
        'name = "orders"',
        'table = "public.orders"',
        "",
        "# public.keyless, rows not counted yet, 3.0 MB, no key, replica identity default, 3 partitions",
        "# Left out: public.keyless has no key. Fix: ALTER TABLE public.keyless ADD PRIMARY KEY (…)",
        "#[[shape]]",
        '#name = "keyless"',
        '#table = "public.keyless"',
    ]
    assert [(shape.name, shape.table) for shape in read_back(text).shapes] == [("orders", ORDERS.relation)]


identifiers = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20).filter(
    lambda name: name.isprintable() and len(name.encode()) <= 63
)
relations = st.builds(Relation, identifiers, identifiers)


@settings(max_examples=50)
@given(st.lists(relations, min_size=1, max_size=8, unique=True), st.text(max_size=20))
def test_any_names_come_back(relations: list[Relation], words: str) -> None:
    tables = [ORDERS._replace(relation=relation, key=(words, "id")) for relation in relations]
    left_out = ORDERS._replace(relation=Relation(words, words), problems=[words])

    file = read_back(render_shapes(words, [left_out, *tables]))

    assert [shape.table for shape in file.shapes] == relations
