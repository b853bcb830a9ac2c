"""Rows within a partition's bounds, as Spark sees them; and their deletion, which is one commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.decoding.rows import Column
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.errors import ForeignCommit, TableConflict
from penstock.lake.jobs.bounds import delete_within, within
from penstock.lake.jobs.changes import ShapeLayout, local_frame
from penstock.lake.spark.spark_session import shape_session
from penstock.model.relation import Relation
from penstock.postgres.catalog.partition_bounds import Bounds, bounds_of
from penstock.postgres.catalog.table_tree import Member, Tree
from tests.spark.conftest import Started

COLUMNS = (
    Column("id", "integer"),
    Column("n", "bigint"),
    Column("price", "numeric(12,2)"),
    Column("day", "date"),
    Column("at", "timestamp without time zone"),
    Column("utc", "timestamp with time zone"),
    Column("word", "text"),
)
ROWS = (
    ("1", "-9223372036854775808", "-1.00", "-infinity", "-infinity", "-infinity", ""),
    ("2", "0", "0.00", "0044-03-15 BC", "0044-03-15 00:00:00 BC", "0044-03-15 00:00:00+00 BC", "a"),
    ("3", "9", "1.49", "2026-01-31", "2026-01-31 23:59:59.999999", "2026-01-31 23:59:59.999999+00", "A"),
    ("4", "10", "1.50", "2026-02-01", "2026-02-01 00:00:00", "2026-02-01 00:00:00+00", "it's"),
    ("5", "11", "1.51", "2026-02-28", "2026-02-28 12:00:00", "2026-02-28 12:00:00+00", "a "),
    ("6", "20", "2.00", "2026-03-01", "2026-03-01 00:00:00", "2026-03-01 00:00:00+00", "\u00e4"),
    ("7", "9223372036854775807", "9999999999.99", "infinity", "infinity", "infinity", "NULL"),
)
ALL = {1, 2, 3, 4, 5, 6, 7}
CASES: tuple[tuple[str, str, set[int]], ...] = (
    ("r n", "FROM (0) TO (10)", {2, 3}),
    ("r n", "FROM (MINVALUE) TO (0)", {1}),
    ("r n", "FROM (10) TO (MAXVALUE)", {4, 5, 6, 7}),
    ("r n", "FROM (MINVALUE) TO (MAXVALUE)", ALL),
    ("r price", "FROM (1.50) TO (2.00)", {4, 5}),
    ("r day", "FROM ('2026-02-01') TO ('2026-03-01')", {4, 5}),
    ("r day", "FROM (MINVALUE) TO ('2026-02-01')", {1, 2, 3}),
    ("r day", "FROM ('2026-03-01') TO (MAXVALUE)", {6, 7}),
    ("r at", "FROM ('2026-02-01 00:00:00') TO ('2026-03-01 00:00:00')", {4, 5}),
    ("r at", "FROM ('2026-01-31 23:59:59.999999') TO ('2026-02-01 00:00:00')", {3}),
    ("r utc", "FROM ('2026-02-01 00:00:00+00') TO ('2026-03-01 00:00:00+00')", {4, 5}),
    ("r utc", "FROM (MINVALUE) TO ('2026-02-01 00:00:00+00')", {1, 2, 3}),
    ("r n day", "FROM (9, '2026-01-31') TO (11, '2026-02-28')", {3, 4}),
    ("r n day", "FROM (9, '2026-02-01') TO (11, '2026-03-01')", {4, 5}),
    ("r n day", "FROM (10, MINVALUE) TO (10, MAXVALUE)", {4}),
    ("r n day", "FROM (9, MAXVALUE) TO (11, MINVALUE)", {4}),
    ("l n", "IN (0, 10, 12)", {2, 4}),
    ("l price", "IN (1.50, '-1.00')", {1, 4}),
    ("l day", "IN ('2026-02-28')", {5}),
    ("l utc", "IN ('2026-02-01 00:00:00+00')", {4}),
    ("l word", "IN ('a', 'it''s', 'NULL')", {2, 4, 7}),
    ("l word", "IN ('')", {1}),
    ("l word", "IN (NULL)", set()),
)


def rows() -> pa.Table:
    texts = zip(*ROWS, strict=True)
    arrays = [column.parse(pa.array(each, pa.string())) for column, each in zip(COLUMNS, texts, strict=True)]
    return pa.Table.from_arrays(arrays, [column.name for column in COLUMNS])


def bounds(split: str, bound: str) -> Bounds:
    table = Member(Relation("public", "t"), 1, 0, "a", split=tuple(split.split()))
    only = Member(Relation("public", "t_1"), 2, 2, "a", parent=1, bound=f"FOR VALUES {bound}")
    columns = tuple(f"{column.name} {column.type}" for column in COLUMNS)
    found = bounds_of(Tree(table, (only,), is_partitioned=True, columns=columns), only)
    assert found is not None
    return found


@pytest.fixture
def table(started: Started, tmp_path: Path) -> ShapeTable:
    session = shape_session(started.spark)
    table = ShapeTable(session, str(tmp_path / "table"), AppId("1", "shape", 1))
    table.overwrite_from(local_frame(session, rows()), 100, ["id", "n"])
    return table


def test_spark_sees_the_rows_that_postgres_put_there(spark: SparkSession) -> None:
    conditions = [within(bounds(split, bound), COLUMNS) for split, bound, _ in CASES]
    named = [each.alias(str(place)) for place, each in enumerate(conditions)]
    found = local_frame(spark, rows()).select("id", *named).collect()
    for place, (split, bound, expected) in enumerate(CASES):
        assert {row["id"] for row in found if row[str(place)]} == expected, f"{split} {bound}"


LAYOUT = ShapeLayout(
    "public.t", COLUMNS, ("id",), tuple(column.name for column in COLUMNS), plugin="wal2json"
)


def test_deleting_is_one_commit_of_ours_that_leaves_the_offset(started: Started, table: ShapeTable) -> None:
    version = table.read_state().version
    february = bounds("r day", "FROM ('2026-02-01') TO ('2026-03-01')")
    assert delete_within(started.spark, table, LAYOUT, february, 100) == 2
    assert table.read_state() == (version + 1, (1, 100))
    assert table.foreign_commit(table.read_state()) is None
    assert {row["id"] for row in table.rows().select("id").collect()} == ALL - {4, 5}
    assert delete_within(started.spark, table, LAYOUT, february, 100) == 0
    assert table.read_state().version == version + 1, "nothing to delete, no commit"


def test_what_others_changed_is_not_built_on(started: Started, table: ShapeTable) -> None:
    assert table.foreign_commit(table.read_state()) is None
    started.spark.sql(f"DELETE FROM delta.`{table.path}` WHERE id = 1")
    with pytest.raises(ForeignCommit):
        delete_within(started.spark, table, LAYOUT, bounds("r n", "FROM (0) TO (10)"), 100)


def test_a_leader_that_was_frozen_deletes_nothing_of_its_successor(
    started: Started, table: ShapeTable
) -> None:
    with pytest.raises(TableConflict):
        delete_within(started.spark, table, LAYOUT, bounds("r n", "FROM (0) TO (10)"), 99)
    assert table.rows().count() == len(ROWS)
