"""Bounds as the catalog prints them, and which of them the lake can be trusted with."""

from __future__ import annotations

import pytest

from penstock.model.relation import Relation
from penstock.postgres.catalog.partition_bounds import (
    Bounds,
    End,
    ListBound,
    RangeBound,
    are_disjoint,
    bounds_of,
    columns_of,
    is_default,
)
from penstock.postgres.catalog.table_tree import Member, Tree

ROOT, MONTH, LEAF = (Relation("public", name) for name in ("t", "t_1", "t_1_a"))
COLUMNS = (
    "n integer",
    "b bigint",
    "price numeric(12,2)",
    "exact numeric",
    "long numeric(50,2)",
    "day date",
    "at timestamp without time zone",
    "at3 timestamp(3) without time zone",
    "utc timestamp with time zone",
    "word text",
    "code character varying(10)",
    "padded character(3)",
    "who uuid",
    "ratio double precision",
    "odd public.odd_domain",
)


def tree(split: str, bound: str) -> Tree:
    """A table with one partition; `split`: the strategy and the columns."""
    leaf = Member(MONTH, 2, 2, "a", parent=1, bound=bound)
    table = Member(ROOT, 1, 0, "a", split=tuple(split.split()))
    return Tree(table, (leaf,), is_partitioned=True, columns=COLUMNS)


def read(split: str, bound: str) -> Bounds | None:
    found = tree(split, bound)
    return bounds_of(found, found.partitions[0])


def ends(*texts: str) -> tuple[End, ...]:
    ranks = {"MINVALUE": -1, "MAXVALUE": 1}
    return tuple(End(ranks[text]) if text in ranks else End(0, text) for text in texts)


@pytest.mark.parametrize(
    ("split", "bound", "low", "high"),
    [
        ("r n", "FOR VALUES FROM (0) TO (10)", ["0"], ["10"]),
        ("r b", "FOR VALUES FROM ('-5') TO ('9223372036854775807')", ["-5"], ["9223372036854775807"]),
        ("r n", "FOR VALUES FROM (MINVALUE) TO (MAXVALUE)", ["MINVALUE"], ["MAXVALUE"]),
        ("r price", "FOR VALUES FROM (1.50) TO ('2.00')", ["1.50"], ["2.00"]),
        ("r day", "FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')", ["2026-01-01"], ["2026-02-01"]),
        (
            "r at",
            "FOR VALUES FROM ('2026-01-01 00:00:00') TO ('2026-01-01 00:00:00.5')",
            ["2026-01-01 00:00:00"],
            ["2026-01-01 00:00:00.5"],
        ),
        (
            "r at3",
            "FOR VALUES FROM ('2026-01-01 00:00:00') TO (MAXVALUE)",
            ["2026-01-01 00:00:00"],
            ["MAXVALUE"],
        ),
        (
            "r utc",
            "FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2026-02-01 00:00:00+00')",
            ["2026-01-01 00:00:00+00"],
            ["2026-02-01 00:00:00+00"],
        ),
        (
            "r n day",
            "FOR VALUES FROM (1, '2026-01-01') TO (1, MAXVALUE)",
            ["1", "2026-01-01"],
            ["1", "MAXVALUE"],
        ),
        # A text is not compared here.
        ("r n word", "FOR VALUES FROM (1, MINVALUE) TO (1, MAXVALUE)", ["1", "MINVALUE"], ["1", "MAXVALUE"]),
    ],
)
def test_ranges(split: str, bound: str, low: list[str], high: list[str]) -> None:
    found = read(split, bound)
    assert found is not None
    (only,) = found
    assert isinstance(only, RangeBound)
    assert (only.columns, only.low, only.high) == (tuple(split.split()[1:]), ends(*low), ends(*high))
    assert columns_of(found) == set(split.split()[1:])


@pytest.mark.parametrize(
    ("split", "bound", "values"),
    [
        ("l n", "FOR VALUES IN (1, '-2', 3)", ("1", "-2", "3")),
        ("l day", "FOR VALUES IN ('2026-01-01')", ("2026-01-01",)),
        ("l price", "FOR VALUES IN (1.50)", ("1.50",)),
        ("l word", "FOR VALUES IN ('it''s', 'a, b', '(c)', 'NULL', '')", ("it's", "a, b", "(c)", "NULL", "")),
        ("l code", "FOR VALUES IN ('de', NULL)", ("de",)),
        (
            "l who",
            "FOR VALUES IN ('0b5f8c1e-0000-4000-8000-000000000000')",
            ("0b5f8c1e-0000-4000-8000-000000000000",),
        ),
    ],
)
def test_lists(split: str, bound: str, values: tuple[str, ...]) -> None:
    assert read(split, bound) == (ListBound(split.split()[1], values),)


@pytest.mark.parametrize(
    ("split", "bound"),
    [
        ("h n", "FOR VALUES WITH (modulus 2, remainder 0)"),
        ("r n", "DEFAULT"),
        ("l n", "DEFAULT"),
        # An expression, another operator class, a collation for which other bytes are equal; or not known.
        ("", "FOR VALUES FROM (0) TO (10)"),
        ("r n", ""),
        # An order of its own.
        ("r word", "FOR VALUES FROM ('a') TO ('b')"),
        ("r code", "FOR VALUES FROM ('a') TO ('b')"),
        # Blanks at its end don't count, in Postgres.
        ("l padded", "FOR VALUES IN ('a  ')"),
        # Strings in the lake.
        ("r exact", "FOR VALUES FROM (1) TO (2)"),
        ("l exact", "FOR VALUES IN (1)"),
        ("r long", "FOR VALUES FROM (1.00) TO (2.00)"),
        ("r ratio", "FOR VALUES FROM ('1') TO ('2')"),
        ("l odd", "FOR VALUES IN (1)"),
        # What texts don't sort.
        ("r day", "FOR VALUES FROM ('2026-01-01') TO ('infinity')"),
        ("r day", "FOR VALUES FROM ('0044-03-15 BC') TO ('2026-01-01')"),
        ("r day", "FOR VALUES FROM ('2026-01-01') TO ('12026-01-01')"),
        ("r price", "FOR VALUES FROM (1) TO ('NaN')"),
        ("r utc", "FOR VALUES FROM ('2026-01-01 00:00:00+05:30') TO (MAXVALUE)"),
        # Nobody prints it so today.
        ("l word", r"FOR VALUES IN (E'\\x')"),
        ("r n", "FOR VALUES FROM (0) TO (10) AND MORE"),
        ("r missing", "FOR VALUES FROM (0) TO (10)"),
    ],
)
def test_what_is_left_to_a_copy(split: str, bound: str) -> None:
    assert read(split, bound) is None


def test_all_levels_count() -> None:
    month = Member(MONTH, 2, 0, "a", parent=1, bound="FOR VALUES FROM (0) TO (10)", split=("l", "word"))
    leaf = Member(LEAF, 3, 3, "a", parent=2, bound="FOR VALUES IN ('a')")
    two = tree("r n", "")._replace(partitions=(month, leaf))
    assert bounds_of(two, leaf) == (
        RangeBound(("n",), ends("0"), ends("10"), ("integer",)),
        ListBound("word", ("a",)),
    )
    by_hash = two._replace(partitions=(month._replace(split=("h", "b")), leaf))
    assert bounds_of(by_hash, leaf) is None
    assert bounds_of(by_hash, month) is not None, "its own bounds need nothing of what is below"
    assert bounds_of(two._replace(partitions=(leaf,)), leaf) is None, "what is above it isn't known"


def test_default_at_any_level() -> None:
    month = Member(MONTH, 2, 0, "a", parent=1, bound="DEFAULT", split=("l", "word"))
    leaf = Member(LEAF, 3, 3, "a", parent=2, bound="FOR VALUES IN ('a')")
    two = tree("r n", "")._replace(partitions=(month, leaf))
    assert is_default(two, leaf)
    assert not is_default(tree("r n", "FOR VALUES FROM (0) TO (10)"), leaf)


@pytest.mark.parametrize(
    ("split", "one", "other", "expected"),
    [
        ("r n", "FROM (0) TO (10)", "FROM (10) TO (20)", True),
        ("r n", "FROM (9) TO (10)", "FROM (10) TO (11)", True),
        ("r n", "FROM (0) TO (10)", "FROM (9) TO (20)", False),
        ("r n", "FROM ('-10') TO ('-9')", "FROM ('-9') TO (0)", True),
        ("r n", "FROM (0) TO (MAXVALUE)", "FROM (MINVALUE) TO (0)", True),
        ("r n", "FROM (0) TO (MAXVALUE)", "FROM (MINVALUE) TO (1)", False),
        ("r price", "FROM (1.50) TO (9.00)", "FROM (10.00) TO (11.00)", True),
        ("r day", "FROM ('2026-01-01') TO ('2026-02-01')", "FROM ('2026-02-01') TO ('2026-03-01')", True),
        ("r day", "FROM ('2026-01-01') TO ('2026-02-02')", "FROM ('2026-02-01') TO ('2026-03-01')", False),
        (
            "r at",
            "FROM ('2026-01-01 00:00:00') TO ('2026-01-01 00:00:00.5')",
            "FROM ('2026-01-01 00:00:00.5') TO (MAXVALUE)",
            True,
        ),
        ("r n day", "FROM (1, MINVALUE) TO (1, MAXVALUE)", "FROM (2, MINVALUE) TO (2, MAXVALUE)", True),
        (
            "r n day",
            "FROM (1, MINVALUE) TO (2, '2026-01-02')",
            "FROM (2, '2026-01-01') TO (3, MINVALUE)",
            False,
        ),
        ("l n", "IN (1, 2)", "IN (3)", True),
        ("l n", "IN (1, 2)", "IN (2, 3)", False),
        ("l price", "IN (1.0)", "IN (1.00)", False),
        ("l word", "IN ('a')", "IN ('A')", True),
        ("r word", "FROM ('a') TO ('b')", "FROM ('c') TO ('d')", False),
    ],
)
def test_what_can_not_overlap(split: str, one: str, other: str, expected: bool) -> None:
    first, second = read(split, f"FOR VALUES {one}"), read(split, f"FOR VALUES {other}")
    assert are_disjoint(first, second) is expected
    assert are_disjoint(second, first) is expected
