"""wal2json's table patterns. `tests/integration/test_check_tables.py` holds them against wal2json itself."""

from __future__ import annotations

import pytest

from penstock.decoding.decoder import RecordContent
from penstock.decoding.table_patterns import is_told, parse_patterns
from penstock.model.relation import Relation


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


@pytest.mark.parametrize(
    ("added", "filtered", "told"),
    [
        (None, None, True),
        ("public.a", None, True),
        ("public.b", None, False),
        ("nonsense", None, False),
        ("*.a,public.b", None, True),
        (None, "public.*", False),
        ("public.*", "public.a", False),
        ("public.*", "other.a", True),
    ],
)
def test_a_table_is_told_if_it_is_added_and_not_filtered(
    added: str | None, filtered: str | None, told: bool
) -> None:
    content = RecordContent(add_tables=added, filter_tables=filtered)
    assert is_told(Relation("public", "a"), content) is told
