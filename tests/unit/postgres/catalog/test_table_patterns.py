"""wal2json's table patterns. `tests/integration/test_check_tables.py` holds them against wal2json itself."""

from __future__ import annotations

import pytest

from penstock.model.relation import Relation
from penstock.postgres.catalog.table_patterns import parse_patterns


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        (None, []),
        ("", []),
        ("public.orders", [("public", "orders")]),
        (" public.orders , *.audit,shop.*", [("public", "orders"), (None, "audit"), ("shop", None)]),
        ("*.*", [(None, None)]),
        (r"public.a\,b", [("public", "a,b")]),
        (r"a\.b.c", [("a.b", "c")]),
        ("a.b.c", [("a", "b.c")]),
        (r"public.\*", [("public", "*")]),
        (r"public.a\\", [("public", "a\\")]),
        (r"public.\ orders", [("public", " orders")]),
        ("orders", []),
        (",public.orders,", [("public", "orders")]),
    ],
)
def test_parse(setting: str | None, found: list[tuple[str | None, str | None]]) -> None:
    assert [(pattern.schema, pattern.table) for pattern in parse_patterns(setting)] == found


def test_the_text_is_kept_as_it_was_written() -> None:
    assert [pattern.text for pattern in parse_patterns(r" a\.b.c ,*.t")] == [r"a\.b.c", "*.t"]


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("public.orders", {"public.orders"}),
        ("public.*", {"public.orders", "public.items"}),
        ("*.orders", {"public.orders", "shop.orders"}),
        ("*.*", {"public.orders", "public.items", "shop.orders"}),
        ("public.Orders", set()),
        ("public.order", set()),
        ("pub*.orders", set()),
    ],
)
def test_a_star_stands_for_a_whole_part_and_the_rest_is_literal(setting: str, meant: set[str]) -> None:
    tables = [Relation("public", "orders"), Relation("public", "items"), Relation("shop", "orders")]
    (pattern,) = parse_patterns(setting)

    assert {str(table) for table in tables if pattern.matches(table)} == meant
