"""The fold against a model that does the changes one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.lake.fold.apply import fold
from penstock.lake.fold.survey import KeyRange, survey, survey_here
from penstock.model.log_offset import LogOffset
from tests.spark.batches import (
    COLUMNS,
    FAR,
    FEW_EXAMPLES,
    KEY,
    TABLE,
    Change,
    apply_one_by_one,
    assert_folded,
    far_apart,
    folded,
    frame,
    repeated,
    table_frame,
)
from tests.spark.conftest import Started

TOAST = ("b",)
BOTH = ("a", "b")
CASES = {
    "the last update wins": [Change("update", 1, "x", "y"), Change("update", 1, "z", None)],
    "insert, then delete": [Change("insert", 9, "x", "y"), Change("delete", 9)],
    "delete, then insert": [Change("delete", 1), Change("insert", 1, "new", None)],
    "an absent column keeps the table's value": [Change("update", 1, "x", None, TOAST)],
    "absent in the later of two": [Change("update", 1, "x", "y"), Change("update", 1, "z", None, TOAST)],
    "absent in the earlier of two": [Change("update", 1, "x", None, TOAST), Change("update", 1, "z", "y")],
    "each absent once": [Change("update", 1, None, "y", ("a",)), Change("update", 1, "x", None, TOAST)],
    "a null is no absence": [Change("update", 1, None, "y"), Change("update", 1, None, "z", ("a",))],
    "absent behind an insert": [
        Change("delete", 1),
        Change("insert", 1, "n", None),
        Change("update", 1, "m", None, TOAST),
    ],
    "a key change": [Change("update", 7, "x", "y", old_id=1)],
    "a key change that lacks a column of the table": [Change("update", 7, "x", None, TOAST, 1)],
    "... and one of the batch": [Change("update", 1, "x", "y"), Change("update", 7, "z", None, TOAST, 1)],
    "a chain": [Change("update", key + 1, None, None, BOTH, key) for key in (3, 4, 5)],
    "a chain with a change in it": [
        Change("update", 7, "x", None, TOAST, 1),
        Change("update", 7, None, "y", ("a",)),
        Change("update", 8, None, None, BOTH, 7),
    ],
    "two rows change places": [
        Change("update", 7, None, None, BOTH, 1),
        Change("update", 1, None, None, BOTH, 2),
        Change("update", 2, None, None, BOTH, 7),
    ],
    "away and back": [Change("update", 7, "x", None, TOAST, 1), Change("update", 1, None, None, BOTH, 7)],
    "a changed key, deleted": [Change("update", 7, "x", None, TOAST, 1), Change("delete", 7)],
    "an insert that lacks a dropped column changes its key": [
        Change("insert", 9, "x", None, TOAST),
        Change("update", 8, None, None, BOTH, 9),
    ],
}


def test_each_case(spark: SparkSession) -> None:
    changes = far_apart(list(CASES.values()))
    table = repeated(TABLE, len(CASES))

    found = folded(spark, table, changes)

    expected = apply_one_by_one(table, changes)
    for place, name in enumerate(CASES):
        ours = range(place * FAR, (place + 1) * FAR)
        assert {k: v for k, v in found.items() if k in ours} == {
            k: v for k, v in expected.items() if k in ours
        }, name
    assert found == expected


def test_a_batch_without_absent_columns(spark: SparkSession) -> None:
    changes = far_apart([case for case in CASES.values() if not any(change.absent for change in case)])
    table = repeated(TABLE, len(CASES))

    assert not survey(frame(spark, changes), KEY).absent
    assert folded(spark, table, changes) == apply_one_by_one(table, changes)


def test_the_last_truncate_empties_the_table_and_cuts_the_batch(spark: SparkSession) -> None:
    changes = [
        Change("insert", 8, "before", "before"),
        Change("truncate"),
        Change("insert", 1, "between", "between"),
        Change("truncate"),
        Change("insert", 2, "behind", "b"),
        Change("update", 7, "moved", None, ("b",), 2),
    ]

    assert folded(spark, TABLE, changes) == {7: ("moved", "b")}


def test_the_filter_lets_rows_enter_and_leave(spark: SparkSession) -> None:
    changes = [
        Change("update", 1, "out", "x"),
        Change("update", 2, None, "unknown is not true"),
        Change("update", 5, "in", "y"),
        Change("insert", 6, "in", "z"),
        Change("insert", 7, "out", "z"),
        Change("delete", 3),
    ]

    assert folded(spark, TABLE, changes, where="a = 'in'") == {5: ("in", "y"), 6: ("in", "z")}


def test_a_survey_tells_what_a_batch_needs(spark: SparkSession) -> None:
    changes = [
        Change("truncate"),
        Change("update", 4, "x", None, ("b",)),
        Change("truncate"),
        Change("delete", 2),
    ]

    surveyed = survey(frame(spark, changes), KEY)

    here = survey_here(frame(spark, changes).toArrow(), KEY)
    assert replace(here, key_ranges=surveyed.key_ranges) == surveyed
    assert here.key_ranges == (KeyRange("id", 2, 2), KeyRange("id", 4, 4))
    assert surveyed.count == 4
    assert surveyed.truncated_at == LogOffset(3, 0)
    assert surveyed.absent == ("b",)
    assert not surveyed.linked
    assert not surveyed.only_inserts
    assert surveyed.key_ranges == (KeyRange("id", 2, 4),)


@pytest.mark.parametrize("kind", ["bigint", "decimal(38,3)", "string"])
def test_a_survey_looks_for_keys_between_the_bounds_of_files(spark: SparkSession, kind: str) -> None:
    """One that lies far from the others is in a range of its own; all else is as without the bounds."""
    keys = [1005, *range(7000, 7003), 7900, *range(9500, 9800)]
    changes = [*(Change("insert", key, "x", None, ("b",)) for key in keys), Change("truncate")]
    batch = frame(spark, changes).withColumn("id", F.col("id").cast(kind))
    value = {"bigint": int, "decimal(38,3)": Decimal, "string": str}[kind]

    surveyed = survey(batch, KEY, {"id": [value(low) for low in range(1000, 9001, 1000)]})

    whole = survey(batch, KEY)
    found = [(value(low), value(high)) for low, high in ((1005, 1005), (7000, 7900), (9500, 9799))]
    assert [(low, high) for _, low, high in surveyed.key_ranges] == found
    assert replace(surveyed, key_ranges=whole.key_ranges) == whole
    assert len(whole.key_ranges) == 1


def test_a_merge_looks_for_keys_within_the_batchs_range_only(spark: SparkSession) -> None:
    """Delta then opens only files that may hold one of them."""
    changes = [Change("update", 4, "x", "y"), Change("delete", 2)]
    within, whole = (
        str(fold(rows, survey(rows, KEY), KEY, COLUMNS).condition)
        for rows in (frame(spark, changes), frame(spark, [*changes, Change("truncate")]))
    )

    assert "and(>=(t.id, 2), <=(t.id, 4))" in within
    assert ">=" not in whole, "a truncated table is read whole anyway"


def test_inserts_alone_are_told_from_the_rest(spark: SparkSession) -> None:
    inserts = [Change("insert", 1, "a", "b"), Change("insert", 2, "a", None, ("b",))]
    for changes, alone in (
        (inserts, True),
        ([*inserts, Change("update", 3, "a", "b")], False),
        ([*inserts, Change("update", 4, "a", "b", (), 3)], False),
        ([*inserts, Change("truncate")], False),
    ):
        assert survey(frame(spark, changes), KEY).only_inserts is alone
        assert survey_here(frame(spark, changes).toArrow(), KEY).only_inserts is alone


def test_only_columns_that_a_change_lacks_cost_more(spark: SparkSession) -> None:
    batch = frame(spark, [Change("update", 1, "x", None, ("b",)), Change("update", 2, "x", "y")])

    net = fold(batch, survey(batch, KEY), KEY, COLUMNS)

    assert "array_contains" in str(net.updates["b"])
    assert "array_contains" not in str(net.updates["a"])


def test_a_survey_of_nothing(spark: SparkSession) -> None:
    surveyed = survey(frame(spark, []), KEY)

    assert survey(frame(spark, []), KEY, {"id": [1, 2]}) == surveyed
    assert survey_here(frame(spark, []).toArrow(), KEY) == surveyed
    assert (surveyed.count, surveyed.truncated_at, surveyed.absent, surveyed.linked) == (
        0,
        None,
        (),
        False,
    )
    assert surveyed.key_ranges == ()


def test_names_that_need_quotes(spark: SparkSession) -> None:
    odd = {"id": "the.key", "a": "a`b", "b": "where"}
    batch = frame(spark, [Change("update", 1, "x", None, ("b",)), Change("update", 7, "y", None, ("b",), 2)])
    batch = batch.withColumnsRenamed(odd).selectExpr(
        "* except (_penstock_absent, _penstock_old_key)",
        "transform(_penstock_absent, each -> 'where') as _penstock_absent",
        "cast(_penstock_old_key as struct<`the.key`: bigint>) as _penstock_old_key",
    )
    table = table_frame(spark, TABLE).withColumnsRenamed(odd)

    net = fold(batch, survey(batch, ["the.key"]), ["the.key"], list(odd.values()), table)

    found = sorted((tuple(row) for row in net.rows.collect()), key=lambda row: row[2])
    assert found == [
        ("upsert", ["where"], 1, "x", None),
        ("delete", None, 2, None, None),
        ("upsert", None, 7, "y", "b2"),
    ]


def test_columns_that_no_change_carries_cost_no_more_than_others(spark: SparkSession) -> None:
    """After DROP COLUMN. Of those that some changes carry, each group is an aggregate of its own."""
    dropped = [Change("update", 1, "x", None, ("b",)), Change("insert", 9, "x", None, ("b",))]
    lacking = [Change("update", 2, None, None, BOTH), Change("delete", 3)]
    for changes, groups, aggregates in (
        (dropped, (), 1),
        ([*dropped, *lacking], (("a",),), 2),
        ([*lacking, Change("update", 1, "x", "y")], (BOTH,), 2),
    ):
        batch = frame(spark, changes)
        surveyed = survey(batch, KEY)
        assert surveyed.together == survey_here(batch.toArrow(), KEY).together == groups
        net = fold(batch, surveyed, KEY, COLUMNS)
        plan = net.rows._jdf.queryExecution().analyzed().toString()
        assert plan.count("max_by(") == aggregates
        assert "Window" not in plan


@st.composite
def histories(draw: st.DrawFn, absences: Sequence[tuple[str, ...]], *, may_move: bool = True) -> list[Change]:
    """Changes that Postgres could make to TABLE, each without one of these sets of columns."""
    there = set(TABLE)
    changes = []
    values = st.sampled_from([None, "p", "q", "r"])
    for _ in range(draw(st.integers(1, 8))):
        free = sorted(set(range(1, 8)) - there)
        actions = ["update", "delete", *["move"] * may_move] if there else []
        action = draw(st.sampled_from([*actions, "insert"] if free else ["update", "delete"]))
        if action == "insert":
            key = draw(st.sampled_from(free))
            absent = draw(st.sampled_from([each for each in absences if "a" not in each]))
        else:
            key, absent = draw(st.sampled_from(sorted(there))), draw(st.sampled_from(absences))
        if action == "delete":
            changes.append(Change("delete", key))
            there.remove(key)
            continue
        a = None if "a" in absent else draw(values)
        b = None if "b" in absent else draw(values)
        if action == "insert":
            changes.append(Change("insert", key, a, b, absent))
            there.add(key)
            continue
        new = draw(st.sampled_from(free)) if action == "move" else key
        changes.append(Change("update", new, a, b, absent, key if new != key else None))
        there = there - {key} | {new}
    return changes


def many(absences: Sequence[tuple[str, ...]], *, may_move: bool = True) -> st.SearchStrategy[Any]:
    """Each example is forty histories in one batch: that is as quick in Spark as one of them."""
    return st.lists(histories(absences, may_move=may_move), min_size=40, max_size=40)


@FEW_EXAMPLES
@given(
    any_may_lack=many([(), ("a",), ("b",), BOTH]),
    dropped=many([("b",)], may_move=False),
    dropped_and_lacking=many([("b",), BOTH], may_move=False),
    together=many([(), BOTH], may_move=False),
)
def test_generated_histories(
    started: Started,
    any_may_lack: list[list[Change]],
    dropped: list[list[Change]],
    dropped_and_lacking: list[list[Change]],
    together: list[list[Change]],
) -> None:
    for cases in (any_may_lack, dropped, dropped_and_lacking, together):
        assert_folded(started.spark, cases)
