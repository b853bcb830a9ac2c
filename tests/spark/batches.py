"""Small batches of changes, as decoding/rows.py gives them, and what they come to when done one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings
from pyspark.sql import DataFrame, SparkSession

from penstock.decoding.rows import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.fold.apply import NetChanges, fold
from penstock.lake.fold.survey import survey

KEY = ("id",)
COLUMNS = ("id", "a", "b")
TABLE_SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
SCHEMA = pa.schema(
    [
        (TX_OFFSET, pa.int64()),
        (OP_OFFSET, pa.int64()),
        (ACTION, pa.string()),
        (ABSENT, pa.list_(pa.string())),
        (OLD_KEY, pa.struct([("id", pa.int64())])),
        *TABLE_SCHEMA,
    ]
)

Values = tuple[str | None, str | None]
Table = dict[int, Values]

TABLE: Table = {1: ("a1", "b1"), 2: ("a2", "b2"), 3: ("a3", None)}
FAR = 1000
"""How far apart the keys of cases lie that share a batch."""
FEW_EXAMPLES = settings(
    max_examples=2,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[*HealthCheck],
)
"""Each is many histories in one batch: that is as quick in Spark as one of them."""


class Change(NamedTuple):
    """One operation. A key change stands for both its halves."""

    action: str
    id: int | None = None
    a: str | None = None
    b: str | None = None
    absent: tuple[str, ...] = ()
    old_id: int | None = None


def frame(spark: SparkSession, changes: Iterable[Change]) -> DataFrame:
    """The changes as a DataFrame, each in a transaction of its own but for a key change's halves."""
    rows: list[tuple[object, ...]] = []
    for tx, change in enumerate(changes, start=1):
        absent = list(change.absent) or None
        if change.old_id is not None:
            rows.append((tx, 0, "delete", None, None, change.old_id, None, None))
            rows.append((tx, 1, "insert", absent, {"id": change.old_id}, change.id, change.a, change.b))
        else:
            rows.append((tx, 0, change.action, absent, None, change.id, change.a, change.b))
    return arrow_frame(spark, rows, SCHEMA)


def apply_one_by_one(table: Mapping[int, Values], changes: Iterable[Change]) -> Table:
    """The model: what Postgres does."""
    rows = dict(table)
    for change in changes:
        if change.action == "truncate":
            rows.clear()
            continue
        assert change.id is not None
        before: Values = (None, None)
        if change.action != "insert":
            before = rows.pop(change.id if change.old_id is None else change.old_id)
        if change.action != "delete":
            a = before[0] if "a" in change.absent else change.a
            b = before[1] if "b" in change.absent else change.b
            rows[change.id] = (a, b)
    return rows


def apply_net(table: Mapping[int, Values], net: DataFrame, *, truncated: bool) -> Table:
    """What a MERGE of net changes does."""
    rows = {} if truncated else dict(table)
    for row in net.collect():
        before = rows.pop(row.id, None)
        absent = row[ABSENT] or ()
        assert before is not None or not absent
        if row[ACTION] == "upsert":
            kept = before or (None, None)
            rows[row.id] = (kept[0] if "a" in absent else row.a, kept[1] if "b" in absent else row.b)
    return rows


def table_frame(spark: SparkSession, table: Mapping[int, Values]) -> DataFrame:
    """A table's rows as a DataFrame."""
    return arrow_frame(spark, [(key, *values) for key, values in table.items()], TABLE_SCHEMA)


def arrow_frame(spark: SparkSession, rows: Iterable[tuple[object, ...]], schema: pa.Schema) -> DataFrame:
    """Rows as a DataFrame; through Arrow, which takes Spark no job."""
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    return spark.createDataFrame(table)


def contents(table: DataFrame) -> Table:
    """A table's rows, each key once."""
    rows = [(row.id, (row.a, row.b)) for row in table.select(*COLUMNS).collect()]
    assert len(rows) == len(dict(rows))
    return dict(rows)


def net(spark: SparkSession, table: ShapeTable, *changes: Change) -> NetChanges:
    """The net effect of changes on a table."""
    batch = frame(spark, changes)
    return fold(batch, survey(batch, KEY), KEY, COLUMNS, table.rows())


def folded(spark: SparkSession, table: Table, changes: Sequence[Change], where: str | None = None) -> Table:
    """The table after a batch, as our fold has it."""
    batch = frame(spark, changes).persist()
    try:
        surveyed = survey(batch, KEY)
        net = fold(batch, surveyed, KEY, COLUMNS, table_frame(spark, table), where)
        return apply_net(table, net.rows, truncated=net.truncated)
    finally:
        batch.unpersist()


def far_apart(cases: Sequence[Sequence[Change]]) -> list[Change]:
    """Several cases as one batch, each with keys of its own; so one Spark job proves them all."""
    return [
        change._replace(
            id=None if change.id is None else change.id + place * FAR,
            old_id=None if change.old_id is None else change.old_id + place * FAR,
        )
        for place, case in enumerate(cases)
        for change in case
    ]


def repeated(table: Table, times: int) -> Table:
    """The table, with a copy of its rows for each case."""
    return {key + place * FAR: values for place in range(times) for key, values in table.items()}


def assert_folded(spark: SparkSession, cases: Sequence[Sequence[Change]]) -> None:
    """Our fold of all cases, as one batch, comes to what they come to one by one."""
    changes = far_apart(cases)
    table = repeated(TABLE, len(cases))

    found = folded(spark, table, changes)

    expected = apply_one_by_one(table, changes)
    wrong = {key // FAR for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)}
    assert not wrong, [cases[place] for place in wrong]
