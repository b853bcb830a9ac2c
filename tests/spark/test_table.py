"""Exactly once in the table: one flush, one commit, one offset."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.spark.apply import NetChanges, fold, survey
from penstock.spark.table import OffsetRefused, ShapeTable, TableConflict
from tests.spark.batches import (
    COLUMNS,
    KEY,
    Change,
    Table,
    apply_one_by_one,
    contents,
    frame,
    table_frame,
)

OpenTable = Callable[[], ShapeTable]

ROWS: Table = {1: ("a1", "b1"), 2: ("a2", "b2"), 3: ("a3", "b3")}


@pytest.fixture
def table(spark: SparkSession, open_table: OpenTable) -> ShapeTable:
    """A table with ROWS, at offset 100."""
    table = open_table()
    assert table.overwrite_from(table_frame(spark, ROWS), 100) == 100
    return table


def net(spark: SparkSession, table: ShapeTable, *changes: Change) -> NetChanges:
    batch = frame(spark, changes)
    return fold(batch, survey(batch, KEY), KEY, COLUMNS, table.rows())


def schema(ddl: str) -> StructType:
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


def commits(tmp_path: Path) -> list[list[dict[str, Any]]]:
    """The actions of each commit, oldest first."""
    files = sorted((tmp_path / "table" / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def offsets(tmp_path: Path) -> list[int | None]:
    """The offset that each commit carries."""
    found = []
    for actions in commits(tmp_path):
        versions = [action["txn"]["version"] for action in actions if "txn" in action]
        found.append(versions[0] if versions else None)
    return found


def in_deltalake(tmp_path: Path) -> Table:
    """The table as the `deltalake` package reads it."""
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    return {row["id"]: (row["a"], row["b"]) for row in rows}


def test_a_flush_is_one_commit_that_carries_its_offset(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    changes = [
        Change("update", 1, "new", None, ("b",)),
        Change("delete", 2),
        Change("insert", 4, "a4", None),
        Change("update", 7, "moved", None, ("b",), 3),
    ]

    assert table.merge(net(spark, table, *changes), 200) == 200

    assert offsets(tmp_path) == [100, 200]
    assert contents(table.rows()) == apply_one_by_one(ROWS, changes)
    assert in_deltalake(tmp_path) == contents(table.rows())
    assert DeltaTable(str(tmp_path / "table")).transaction_version("penstock:1:shape") == 200


def test_a_truncate_is_in_the_same_commit(spark: SparkSession, table: ShapeTable, tmp_path: Path) -> None:
    changes = [Change("delete", 1), Change("truncate"), Change("insert", 2, "a", "b"), Change("delete", 2)]

    table.merge(net(spark, table, *changes, Change("insert", 9, "x", "y")), 200)

    assert offsets(tmp_path) == [100, 200]
    assert contents(table.rows()) == {9: ("x", "y")}


def test_a_repeated_flush_changes_nothing(spark: SparkSession, table: ShapeTable, tmp_path: Path) -> None:
    other = net(spark, table, Change("delete", 1))

    assert table.merge(other, 100) == 100
    assert table.merge(other, 99) == 100

    assert offsets(tmp_path) == [100]
    assert contents(table.rows()) == ROWS


def test_a_batch_without_effect_still_moves_the_offset(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    assert table.merge(net(spark, table, Change("delete", 77)), 200) == 200
    assert table.merge(net(spark, table), 300) == 300

    assert offsets(tmp_path) == [100, 200, 300]
    assert contents(table.rows()) == ROWS


def test_a_failed_merge_leaves_nothing(spark: SparkSession, table: ShapeTable, tmp_path: Path) -> None:
    good = net(spark, table, Change("update", 1, "x", "y"), Change("update", 2, "x", "y"))
    failing = good.rows.withColumn("b", F.expr("if(id = 2, raise_error('planted'), b)"))

    with pytest.raises(PySparkException, match="planted"):
        table.merge(NetChanges(failing, good.key, good.columns), 200)

    assert table.read_offset() == 100
    assert contents(table.rows()) == ROWS
    assert table.merge(good, 200) == 200
    assert offsets(tmp_path) == [100, 200]


def held(rows: DataFrame, reached: Path, go: Path) -> DataFrame:
    """The same rows; but whoever reads them says that it is there, and waits until it may go."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reached.touch()
        deadline = time.monotonic() + 100
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield from batches

    return rows.coalesce(1).mapInArrow(hold, rows.schema)


def test_two_writers_conflict_instead_of_mixing(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    """A leader that was frozen in mid-MERGE wakes after another one flushed, less than it would."""
    frozen, leader = open_table(), open_table()
    slow = net(spark, table, Change("update", 1, "frozen", "f"), Change("insert", 8, "frozen", "f"))
    reached, go = tmp_path / "reached", tmp_path / "go"
    slow = NetChanges(held(slow.rows, reached, go), slow.key, slow.columns)
    with ThreadPoolExecutor(1) as pool:
        merging = pool.submit(frozen.merge, slow, 300)
        try:
            wait_for(reached)
            assert leader.merge(net(spark, table, Change("insert", 9, "leader", "l")), 250) == 250
        finally:
            go.touch()
        with pytest.raises(TableConflict):
            merging.result()

    assert offsets(tmp_path) == [100, 250]
    assert contents(table.rows()) == ROWS | {9: ("leader", "l")}
    assert table.read_offset() == frozen.read_offset() == 250


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 100
    waiter = threading.Event()
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never came"
        waiter.wait(0.05)


def test_a_snapshot_makes_or_replaces_the_table_in_one_commit(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    wider = table_frame(spark, {5: ("a5", "b5")}).withColumn("c", F.lit(7))

    assert table.overwrite_from(wider, 200) == 200

    assert offsets(tmp_path) == [100, 200]
    assert table.rows().columns == ["id", "a", "b", "c"]
    assert contents(table.rows()) == {5: ("a5", "b5")}
    for version in (199, 200):
        with pytest.raises(OffsetRefused, match="would be skipped"):
            table.overwrite_from(wider, version)
    properties = DeltaTable(str(tmp_path / "table")).metadata().configuration
    assert properties["delta.logRetentionDuration"] == "interval 1 days"
    assert properties["delta.enableDeletionVectors"] == "false"


def test_a_table_without_a_flush_has_no_offset(
    spark: SparkSession, open_table: OpenTable, tmp_path: Path
) -> None:
    table = open_table()
    assert not table.exists()
    assert table.read_offset() is None

    table.create(schema("id bigint, a string, b string"))

    assert table.exists()
    assert table.read_offset() is None
    assert open_table().merge(net(spark, table, Change("insert", 1, "x", "y")), 10) == 10
    assert table.read_offset() == 10
    assert in_deltalake(tmp_path) == {1: ("x", "y")}


def test_the_offset_is_found_without_the_file_beside_the_commit(
    table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    spark_of = table.rows().sparkSession
    for file in (tmp_path / "table" / "_delta_log").glob("*.crc"):
        file.unlink()
    assert spark_of._jvm is not None
    spark_of._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    assert open_table().read_offset() == 100


def test_upkeep_and_new_columns_leave_the_offset(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    table.merge(net(spark, table, Change("insert", 4, "a4", "b4")), 200)
    before = contents(table.rows())

    table.add_columns(schema("`a.new``one` timestamp_ntz, amount decimal(38,4)"))
    table.optimize()
    table.vacuum()

    assert table.read_offset() == 200
    assert contents(table.rows()) == before == in_deltalake(tmp_path)
    assert table.rows().columns == ["id", "a", "b", "a.new`one", "amount"]
    assert len(table.rows().inputFiles()) == 1
    assert table.merge(net(spark, table, Change("delete", 4)), 300) == 300
    assert contents(table.rows()) == ROWS == in_deltalake(tmp_path)


def test_files_out_of_the_batchs_key_range_are_not_read(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    """Proved by their absence."""
    far = table_frame(spark, dict.fromkeys(range(1000, 1010), ("far", "far"))).coalesce(1)
    inserts = far.withColumns({"_penstock_action": F.lit("upsert"), "_penstock_absent": F.lit(None)})
    table.merge(NetChanges(inserts, KEY, COLUMNS), 200)
    for action in commits(tmp_path)[-1]:
        if "add" in action:
            (tmp_path / "table" / action["add"]["path"]).unlink()
    within = net(spark, table, Change("update", 1, "x", "y"), Change("delete", 999))

    assert table.merge(within, 300) == 300

    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        table.merge(net(spark, table, Change("update", 1, "x", "y"), Change("delete", 1000)), 400)
    assert table.read_offset() == 300
