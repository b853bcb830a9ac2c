"""Comparing two tables by key and value: planted differences are found, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.lake.comparison import Comparison, Counts, Difference, Values, Verdict
from penstock.lake.jobs.compare import RECHECK_LIMIT, compare, only, without

SCHEMA = "id bigint, `a ``b.c` string, n decimal(38,9)"
COLUMNS = ("id", "a `b.c", "n")
NUMERIC = "12345678901234567890123456789.123456789"
ROWS = [(number, f"text {number}", NUMERIC) for number in range(1, 9)]


def rows(spark: SparkSession, content: Sequence[tuple[Any, ...]], schema: str = SCHEMA) -> DataFrame:
    """Rows from texts and numbers, which Spark casts to the types."""
    fields = spark.createDataFrame([], schema).schema.fields
    texts = spark.createDataFrame(
        [tuple(None if value is None else str(value) for value in row) for row in content],
        ", ".join(f"c{place} string" for place in range(len(fields))),
    )
    return texts.select(
        *[texts[f"c{place}"].cast(field.dataType).alias(field.name) for place, field in enumerate(fields)]
    )


def compared(
    spark: SparkSession, postgres: Sequence[tuple[Any, ...]], lake: Sequence[tuple[Any, ...]]
) -> Comparison:
    return compare(rows(spark, postgres), rows(spark, lake), ("id",), COLUMNS)


def test_equal_tables_are_equal(spark: SparkSession) -> None:
    comparison = compared(spark, ROWS, ROWS[::-1])
    assert comparison.counts == Counts(postgres=8, lake=8, equal=8)
    assert comparison.first(10) == []
    assert comparison.keys().num_rows == 0


def test_empty_tables_are_equal(spark: SparkSession) -> None:
    assert compared(spark, [], []).counts == Counts()


def test_planted_differences_are_found_and_nothing_else(spark: SparkSession) -> None:
    last_digit = NUMERIC[:-1] + "8"
    lake = [
        *ROWS[:2],
        (3, "changed", NUMERIC),
        (4, "text 4", last_digit),
        (5, None, NUMERIC),
        *ROWS[6:],
        (9, "nobody's", NUMERIC),
    ]
    comparison = compared(spark, ROWS, lake)
    assert comparison.counts == Counts(postgres=8, lake=8, equal=4, different=3, missing=1, extra=1)
    assert comparison.counts.differing == 5
    assert comparison.first(10) == [
        Difference(Verdict.DIFFERENT, {"id": "3"}, ("a `b.c",)),
        Difference(Verdict.DIFFERENT, {"id": "4"}, ("n",)),
        Difference(Verdict.DIFFERENT, {"id": "5"}, ("a `b.c",)),
        Difference(Verdict.MISSING, {"id": "6"}),
        Difference(Verdict.EXTRA, {"id": "9"}),
    ]
    assert [each.values for each in comparison.first(5, show_values=True)] == [
        {"a `b.c": Values("text 3", "changed")},
        {"n": Values(NUMERIC, last_digit)},
        {"a `b.c": Values("text 5", None)},
        {"id": Values("6", None), "a `b.c": Values("text 6", None), "n": Values(NUMERIC, None)},
        {"id": Values(None, "9"), "a `b.c": Values(None, "nobody's"), "n": Values(None, NUMERIC)},
    ]
    assert [each.key["id"] for each in comparison.first(2)] == ["3", "4"]
    assert sorted(comparison.keys()["id"].to_pylist()) == [3, 4, 5, 6, 9]


def test_a_row_that_the_lake_has_twice_is_a_difference(spark: SparkSession) -> None:
    comparison = compared(spark, ROWS[:2], [*ROWS[:2], ROWS[0]])
    assert comparison.counts == Counts(postgres=2, lake=3, equal=1, different=1)
    assert comparison.first(10) == [Difference(Verdict.DIFFERENT, {"id": "1"}, copies=2)]


@pytest.mark.parametrize(
    ("kind", "values", "others"),
    [
        ("double", ["NaN", "Infinity", "0.1"], ["Infinity", "-Infinity", "0.10000000000000002"]),
        ("double", ["0.0"], ["-0.0"]),
        ("float", ["-0.0", "NaN"], ["0.0", "1"]),
        ("string", ["", "a"], [None, "a "]),
        ("boolean", ["true"], ["false"]),
        ("date", ["2024-02-29"], ["2024-03-01"]),
        ("timestamp", ["2024-01-01 00:00:00.000001"], ["2024-01-01 00:00:00"]),
        ("binary", ["a"], ["a\0"]),
        ("decimal(12,2)", ["0.10"], ["0.11"]),
    ],
)
def test_values_equal_themselves_and_no_others(
    spark: SparkSession, kind: str, values: list[str | None], others: list[str | None]
) -> None:
    schema = f"id int, v {kind}"
    left = rows(spark, list(enumerate([*values, None])), schema)
    right = rows(spark, list(enumerate([*others, None])), schema)
    assert compare(left, left, ("id",), ("id", "v")).counts.equal == len(values) + 1
    found = compare(left, right, ("id",), ("id", "v")).counts
    assert (found.different, found.equal) == (len(values), 1)


def test_infinite_dates_and_timestamps_are_compared_and_shown(spark: SparkSession) -> None:
    def moments(day: int, at: int) -> DataFrame:
        days = pa.array([day], pa.int32()).cast(pa.date32())
        ats = pa.array([at], pa.int64()).cast(pa.timestamp("us", "UTC"))
        return spark.createDataFrame(pa.table({"id": ats, "day": days}), "id timestamp, day date")

    forever = moments(2**31 - 1, 2**63 - 1)
    assert compare(forever, forever, ("id",), ("id", "day")).counts == Counts(1, 1, 1)
    comparison = compare(forever, moments(2**31 - 2, 2**63 - 1), ("id",), ("id", "day"))
    (difference,) = comparison.first(10, show_values=True)
    assert difference.values == {"day": Values("+5881580-07-11", "+5881580-07-10")}
    again = spark.createDataFrame(comparison.keys(), "id timestamp")
    assert only(forever, again).count() == 1


def test_a_key_of_several_columns_with_odd_types(spark: SparkSession) -> None:
    schema = "`Group` string, part binary, d double, v int"
    key = ("d", "part", "Group")
    left = rows(spark, [("g", "p", "NaN", 1), ("g", "q", "-0.0", 2), ("h", "p", "1", 3)], schema)
    right = rows(spark, [("g", "p", "NaN", 1), ("g", "q", "0.0", 2), ("h", "p", "1", 4)], schema)
    comparison = compare(left, right, key, ("Group", "part", "d", "v"))
    assert comparison.counts == Counts(postgres=3, lake=3, equal=1, different=2)
    assert comparison.first(2, show_values=True) == [
        Difference(
            Verdict.DIFFERENT,
            {"d": "0.0", "part": "\\x71", "Group": "g"},
            ("d",),
            values={"d": Values("-0.0", "0.0")},
        ),
        Difference(
            Verdict.DIFFERENT,
            {"d": "1.0", "part": "\\x70", "Group": "h"},
            ("v",),
            values={"v": Values("3", "4")},
        ),
    ]
    keys = spark.createDataFrame(comparison.keys(), "d double, part binary, `Group` string")
    assert [row.v for row in only(left, keys).orderBy("v").collect()] == [2, 3]
    assert [row.d for row in without(keys, only(right, keys).where("v = 2").select(*key)).collect()] == [1.0]


def test_keys_to_look_at_again_are_limited(spark: SparkSession) -> None:
    many = spark.range(RECHECK_LIMIT + 5).selectExpr("id", "id * 2 AS v")
    other = many.selectExpr("id", "v + 1 AS v")
    comparison = compare(many, other, ("id",), ("id", "v"))
    assert comparison.counts.different == RECHECK_LIMIT + 5
    assert comparison.keys().num_rows == RECHECK_LIMIT
    comparison.close()
