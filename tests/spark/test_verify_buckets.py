"""Sums of buckets: equal for equal rows in any order, and for no others; and where the others are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.lake.jobs.compare_buckets import BucketSums, bucket_sums
from tests.spark.test_verify import rows

APART = 1 << 8
"""Keys this far from each other are in ranges of their own."""


def sums(
    postgres: DataFrame, lake: DataFrame, key: Sequence[str] = ("id",), parts: int | None = None
) -> BucketSums:
    return bucket_sums(postgres, lake, key, postgres.columns, parts or postgres.rdd.getNumPartitions())


def apart(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(place * APART, value) for place, value in enumerate(values)]


@pytest.mark.parametrize(
    ("kind", "values", "others"),
    [
        (
            "double",
            ["NaN", "Infinity", "0.1", "0.0", "0.0"],
            ["0", "-Infinity", "0.10000000000000002", "-0", None],
        ),
        ("float", ["-0.0", "NaN", "-0.0", "1"], ["0.0", None, None, "1.0000001"]),
        ("string", ["", "a", "\u00e9", "0" * 40], [None, "a ", "e\u0301", "0" * 39 + "1"]),
        ("boolean", ["true", "false"], ["false", None]),
        ("smallint", ["0", "1"], [None, "-1"]),
        ("bigint", ["0", "9223372036854775807"], [None, "-9223372036854775808"]),
        ("date", ["2024-02-29", "1970-01-01"], ["2024-03-01", None]),
        ("timestamp", ["2024-01-01 00:00:00.000001", "1970-01-01 00:00:00"], ["2024-01-01 00:00:00", None]),
        ("timestamp_ntz", ["2024-01-01 00:00:00.000001"], ["2024-01-01 00:00:00"]),
        ("binary", ["a", ""], ["a\0", None]),
        ("decimal(12,2)", ["0.10", "0", "1.00"], ["0.11", None, "10.00"]),
        (
            "decimal(38,9)",
            ["1234567890123456789012.123456789", "0"],
            ["1234567890123456789012.123456788", None],
        ),
    ],
)
def test_every_value_has_sums_of_its_own(
    spark: SparkSession, kind: str, values: list[str | None], others: list[str | None]
) -> None:
    schema = f"id int, v {kind}"
    same = [*values, None]
    left, right = rows(spark, apart(same + values), schema), rows(spark, apart(same + others)[::-1], schema)
    found = sums(left, right)
    assert (len(found.differing), found.equal) == (len(values), len(same))


WEAK: list[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = [
    ([(1, "a", None)], [(1, None, "a")]),
    ([(1, "ab", "c")], [(1, "a", "bc")]),
    ([(1, "a", "b"), (2, "c", "d")], [(1, "c", "b"), (2, "a", "d")]),
    ([(1, "a", "b"), (2, "c", "d")], [(2, "a", "b"), (1, "c", "d")]),
    ([(1, "a", "b"), (2, "c", "d")], [(1, "a", "b"), (1, "a", "b")]),
    ([(1, "a", "b"), (1, "a", "b")], [(1, "c", "d"), (1, "c", "d")]),
    ([(1, "a", "b")], [(1, "a", "b"), (1, "a", "b")]),
    ([(1, "a", "b")], []),
    ([], [(1, "a", "b")]),
]
"""Pairs of contents that a simpler sum would take for equal."""


def test_what_a_weak_sum_would_miss(spark: SparkSession) -> None:
    def side(which: int) -> DataFrame:
        content = [
            (key + place * APART, *rest) for place, pair in enumerate(WEAK) for key, *rest in pair[which]
        ]
        return rows(spark, content, "id int, `a ``b.c` string, w string")

    found = sums(side(0), side(1))
    assert (len(found.differing), found.equal) == (len(WEAK), 0)


def test_empty_tables_have_no_buckets(spark: SparkSession) -> None:
    nothing = rows(spark, [], "id int, v string")
    assert sums(nothing, nothing) == BucketSums(0, 0, 0, (), 0, ("id",))


def test_sums_of_many_rows_do_not_overflow(spark: SparkSession) -> None:
    many = spark.range(300_000).selectExpr("'one' AS k", "id AS v")
    found = sums(many, many.orderBy("v", ascending=False), ("k",))
    assert (found.equal, found.differing) == (300_000, ())


def test_zeros_of_both_signs_are_one_key_and_two_rows(spark: SparkSession) -> None:
    left, right = rows(spark, [("0.0",)], "k double"), rows(spark, [("-0.0",)], "k double")
    found = sums(left, right, ("k",))
    assert len(found.differing) == 1
    assert (found.rows(left).count(), found.rows(right).count()) == (1, 1)


def test_what_differs_is_found_in_its_part_alone(spark: SparkSession) -> None:
    parts = 8
    postgres = spark.range(0, parts * 1000, 1, parts).selectExpr("id", "id * 2 AS v")
    lake = postgres.where("id <> 2500").selectExpr("id", "IF(id = 6500, 0, v) AS v")
    found = sums(postgres, lake)
    assert found.parts(range(parts)) == [2, 6]
    assert len(found.differing) == 2
    near = {row.id for row in found.rows(postgres).collect()}
    assert {2500, 6500} <= near
    assert len(near) <= 2 * APART
    assert found.equal == found.postgres - len(near)
    assert 2500 not in {row.id for row in found.rows(lake).collect()}


def test_rows_of_the_lake_alone_are_in_no_part(spark: SparkSession) -> None:
    postgres = spark.range(0, 1000, 1, 4)
    found = sums(postgres, postgres.union(spark.range(10**6, 10**6 + 1)))
    assert found.parts(range(4)) == []


@pytest.mark.parametrize("parts", [1, 63, 64, 130])
def test_parts_share_slices_if_they_are_many(spark: SparkSession, parts: int) -> None:
    postgres = spark.range(0, parts * APART, 1, parts)
    place = parts * 2 // 3
    found = sums(postgres, postgres.where(f"id <> {place * APART}").coalesce(2), parts=parts)
    again = found.parts(range(parts))
    assert place in again
    assert len(again) <= -(-parts // 63)
