"""Key changes are given the values that they lack: of every type of key, and as many as there may be."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from penstock.decoding.rows import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.decoding.type_map import DATE_INFINITY, TIMESTAMP_INFINITY
from penstock.lake.fold.inheritance import complete_key_changes
from penstock.lake.jobs.changes import local_frame
from tests.spark.batches import (
    FAR,
    FEW_EXAMPLES,
    TABLE,
    Change,
    apply_one_by_one,
    assert_folded,
    far_apart,
    folded,
    repeated,
)
from tests.spark.conftest import Started

Key = dict[str, object]

_MOMENTS = [
    *(0, 1, 2, 999, 1000, -1, -2),
    # 44 BC, and what Spark can't print.
    *(-63_517_824_000_000_000, -63_517_824_000_000_001),
    *(TIMESTAMP_INFINITY, TIMESTAMP_INFINITY - 1, -TIMESTAMP_INFINITY - 1, -TIMESTAMP_INFINITY),
]
KEY_TYPES = {
    "case": pa.int64(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "decimal": pa.decimal128(38, 2),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "more text": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
VALUES: dict[str, list[object]] = {
    "byte": [-128, 0, 127],
    "short": [-(2**15), 0, 2**15 - 1],
    "int": [-(2**31), 0, 2**31 - 1],
    "long": [-(2**63), 0, 2**53, 2**53 + 1, 2**63 - 1],
    "decimal": ["0.00", "0.01", "-0.01", "9" * 36 + ".99", "9" * 36 + ".98"],
    "float": [0.0, 1.5, math.nan, math.inf, -math.inf, 16_777_216.0, 16_777_218.0, 1e-45],
    "double": [0.0, 0.1, 0.1 + 0.2, 0.3, math.nan, math.inf, -math.inf, 5e-324],
    "boolean": [False, True],
    "text": ["", "null", " ", "a", "a ", "A", "ä", "a\u0308", "\\", '"', "\n"],
    "binary": [b"", b"\x00", b"\x00\x00", b"\xff", b"\xfe", b"\xc3\xa4"],
    "date": [0, 1, -1, -735_158, DATE_INFINITY, DATE_INFINITY - 1, -DATE_INFINITY - 1, -DATE_INFINITY],
    "timestamp": [*_MOMENTS],
    "timestamp_ntz": [*_MOMENTS],
}
FIRST: Key = {"case": 0, "more text": "", **{name: values[0] for name, values in VALUES.items()}}
DISTINCT: list[Key] = [
    FIRST,
    *[{**FIRST, name: value} for name, values in VALUES.items() for value in values[1:]],
    {**FIRST, "text": "a,b", "more text": "c"},
    {**FIRST, "text": "a", "more text": "b,c"},
    {**FIRST, "text": 'a","b', "more text": "c"},
    {**FIRST, "text": "a", "more text": 'b","c'},
]
SCHEMA = pa.schema(
    [
        (TX_OFFSET, pa.int64()),
        (OP_OFFSET, pa.int64()),
        (ACTION, pa.string()),
        (ABSENT, pa.list_(pa.string())),
        (OLD_KEY, pa.struct(KEY_TYPES.items())),
        *KEY_TYPES.items(),
        ("b", pa.string()),
    ]
)


def keys(rows: Iterable[Key]) -> list[pa.Array]:
    """The keys' columns. Dates and times are numbers: Python has not all of them."""
    rows = list(rows)
    return [_values([row[name] for row in rows], kind) for name, kind in KEY_TYPES.items()]


def _values(values: list[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
    return pa.array(values, pa.string()).cast(kind) if pa.types.is_decimal(kind) else pa.array(values, kind)


class TypedChange(NamedTuple):
    """A change of a table with such a key. One with an old key lacks b."""

    op: int
    action: str
    key: Key
    old_key: Key | None = None
    b: str | None = None


def key_change(op: int, old: Key, new: Key) -> list[TypedChange]:
    return [TypedChange(op, "delete", old), TypedChange(op + 1, "insert", new, old)]


def typed_frame(spark: SparkSession, changes: Sequence[TypedChange]) -> DataFrame:
    """The changes as decoding/rows.py gives them, in one transaction."""
    moved = [change.old_key is not None for change in changes]
    old_keys = pa.StructArray.from_arrays(
        keys(change.old_key or FIRST for change in changes),
        fields=list(SCHEMA.field(OLD_KEY).type),
        mask=pa.array([not each for each in moved]),
    )
    columns = [
        pa.array([1] * len(changes)),
        pa.array([change.op for change in changes]),
        pa.array([change.action for change in changes]),
        pa.array([["b"] if each else None for each in moved], pa.list_(pa.string())),
        old_keys,
        *keys(change.key for change in changes),
        pa.array([change.b for change in changes], pa.string()),
    ]
    return local_frame(spark, pa.Table.from_arrays(columns, schema=SCHEMA))


def inherited(rows: DataFrame, table: dict[str, Key]) -> dict[int, str | None]:
    """What key changes have in b, by op_offset; the table has these keys by their b."""
    stored = pa.Table.from_arrays(
        [*keys(table.values()), pa.array(table, pa.string())], names=[*KEY_TYPES, "b"]
    )
    before = local_frame(rows.sparkSession, stored)
    done = complete_key_changes(rows, list(KEY_TYPES), [*KEY_TYPES, "b"], before)
    assert done.columns == rows.columns
    return {
        row[OP_OFFSET]: row.b for row in done.where(f"{OLD_KEY} is not null").select(OP_OFFSET, "b").collect()
    }


def test_different_keys_of_every_type_are_not_mixed_up(spark: SparkSession) -> None:
    """Of all keys in their order, every other has been updated in the batch: its neighbours have not."""
    changes = [
        TypedChange(place, "update", key, b=f"updated {place}")
        for place, key in enumerate(DISTINCT)
        if place % 2
    ]
    expected = {}
    for place, key in enumerate(DISTINCT):
        op = FAR + 2 * place
        changes += key_change(op, key, {**key, "case": 1})
        expected[op + 1] = f"updated {place}" if place % 2 else f"stored {place}"
    table = {f"stored {place}": key for place, key in enumerate(DISTINCT)}

    assert inherited(typed_frame(spark, changes), table) == expected


def test_keys_that_are_equal_though_they_look_different(spark: SparkSession) -> None:
    """0.0 and -0.0 are one key to Postgres and Spark, but a change between them comes as a key change."""
    zero, minus = ({**FIRST, "float": each, "double": each} for each in (0.0, -0.0))
    nan: Key = {**FIRST, "float": math.nan, "double": math.nan}
    changes = [
        TypedChange(0, "update", {**zero, "case": 1}, b="updated 1"),
        *key_change(2, {**minus, "case": 1}, {**zero, "case": 10}),
        *key_change(4, {**minus, "case": 2}, {**zero, "case": 2}),
        *key_change(6, {**zero, "case": 2}, {**minus, "case": 2}),
        TypedChange(8, "update", {**nan, "case": 3}, b="updated 3"),
        *key_change(10, {**nan, "case": 3}, {**zero, "case": 30}),
        *key_change(12, {**nan, "case": 4}, {**zero, "case": 40}),
    ]
    table = {f"stored {key['case']}": key for key in ({**zero, "case": 2}, {**nan, "case": 4})}

    assert inherited(typed_frame(spark, changes), table) == {
        3: "updated 1",
        5: "stored 2",
        7: "stored 2",
        11: "updated 3",
        13: "stored 4",
    }


@st.composite
def moving(draw: st.DrawFn, there: frozenset[int]) -> list[Change]:
    """Changes of rows that mostly move, between so few keys that they often meet."""
    changes = []
    values = st.sampled_from(["p", "q", "r", None])
    absences = st.sampled_from([("b",), ("b",), ("a", "b"), ("a",), ()])
    for _ in range(draw(st.integers(1, 12))):
        free = sorted(set(range(1, 6)) - there)
        actions = ["move", "move", "move", "update", "delete"] if there else []
        action = draw(st.sampled_from([*actions, "insert"]))
        if action == "insert":
            key = draw(st.sampled_from(free)) if free else None
            if key is not None:
                changes.append(Change("insert", key, draw(values), draw(values)))
                there |= {key}
            continue
        key = draw(st.sampled_from(sorted(there)))
        if action == "delete":
            changes.append(Change("delete", key))
            there -= {key}
            continue
        absent = draw(absences)
        a, b = (None if name in absent else draw(values) for name in ("a", "b"))
        new = draw(st.sampled_from(free)) if action == "move" and free else key
        changes.append(Change("update", new, a, b, absent, key if new != key else None))
        there = there - {key} | {new}
    return changes


@FEW_EXAMPLES
@given(cases=st.lists(moving(frozenset(TABLE)), min_size=60, max_size=60))
def test_rows_that_move(started: Started, cases: list[list[Change]]) -> None:
    assert_folded(started.spark, cases)


@FEW_EXAMPLES
@given(
    before=st.lists(moving(frozenset(TABLE)), min_size=20, max_size=20),
    behind=st.lists(moving(frozenset()), min_size=60, max_size=60),
)
def test_rows_that_move_behind_a_truncate(
    started: Started, before: list[list[Change]], behind: list[list[Change]]
) -> None:
    """The same keys are in the table, and in changes before the truncate: none of that is to be found."""
    changes = [*far_apart(before), Change("truncate"), *far_apart(behind)]
    table = repeated(TABLE, len(before))

    assert folded(started.spark, table, changes) == apply_one_by_one(table, changes)


def test_key_changes_before_a_truncate_only(spark: SparkSession) -> None:
    changes = [Change("update", 7, "x", None, ("b",), 1), Change("truncate"), Change("insert", 1, "y", "z")]

    assert folded(spark, TABLE, changes) == {1: ("y", "z")}


def test_a_mass_key_change_stays_out_of_the_driver(spark: SparkSession) -> None:
    """`UPDATE t SET id = id + 1000000`, twice: the driver's memory doesn't grow with the rows."""
    count, step = 20_000, 1_000_000
    table = spark.range(count).selectExpr("id", "'a' as a", "concat('b', id) as b")
    rows = mass_key_change(spark, count, 0, step).union(mass_key_change(spark, count, step, 2 * step))

    tracemalloc.start()
    done = complete_key_changes(rows, ["id"], ["id", "a", "b"], table)
    wrong = done.where(f"{OLD_KEY} is not null and not b <=> concat('b', id % {step})").count()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert done.count() == 4 * count
    assert wrong == 0
    assert peak_bytes < 2 << 20


def mass_key_change(spark: SparkSession, count: int, old: int, new: int) -> DataFrame:
    """Rows with the keys from `old` on get those from `new` on; b is a TOAST column."""
    halves = spark.range(count).selectExpr("id", "explode(array('delete', 'insert')) as half")
    inserted = "half = 'insert'"
    return halves.selectExpr(
        f"{new}L as {TX_OFFSET}",
        f"2 * id + if({inserted}, 1, 0) as {OP_OFFSET}",
        f"half as {ACTION}",
        f"if({inserted}, array('b'), null) as {ABSENT}",
        f"if({inserted}, named_struct('id', id + {old}), null) as {OLD_KEY}",
        f"id + if({inserted}, {new}, {old}) as id",
        f"if({inserted}, 'a', null) as a",
        "cast(null as string) as b",
    )
