"""Exactly once in the table: one flush, one commit, one offset."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.lake.delta import rearrange, upkeep
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.delta.table_properties import properties
from penstock.lake.errors import ForeignCommit, OffsetRefused, SparkError, StorageFailed, TableConflict
from penstock.lake.fold.apply import NetChanges, fold
from penstock.lake.fold.survey import survey_here
from penstock.lake.ports import Position
from penstock.lake.spark.spark_session import plain_error, shape_session
from tests.spark.batches import (
    COLUMNS,
    KEY,
    Change,
    Table,
    apply_one_by_one,
    contents,
    frame,
    net,
    table_frame,
)
from tests.spark.conftest import Started

OpenTable = Callable[..., ShapeTable]

ROWS: Table = {1: ("a1", "b1"), 2: ("a2", "b2"), 3: ("a3", "b3")}


@pytest.fixture
def open_table(started: Started, tmp_path: Path) -> OpenTable:
    """Opens the test's table, in a new session each time; as of the timeline 1 unless told."""

    def open_on(timeline: int = 1) -> ShapeTable:
        app_id = AppId("1", "shape", timeline)
        return ShapeTable(shape_session(started.spark), str(tmp_path / "table"), app_id)

    return open_on


@pytest.fixture
def table(spark: SparkSession, open_table: OpenTable) -> ShapeTable:
    """A table with ROWS, at offset 100."""
    table = open_table()
    assert table.overwrite_from(table_frame(spark, ROWS), 100, KEY) == 100
    return table


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
        versions = [action["txn"]["version"] for action in actions if _is_offset(action)]
        found.append(versions[0] if versions else None)
    return found


def _is_offset(action: dict[str, Any]) -> bool:
    return "txn" in action and not action["txn"]["appId"].startswith("penstock-upkeep:")


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
    assert DeltaTable(str(tmp_path / "table")).transaction_version("penstock:1:shape:1") == 200


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

    with pytest.raises(SparkError, match="USER_RAISED_EXCEPTION") as raised:
        table.merge(NetChanges(failing, good.key, good.columns), 200)
    assert "planted" not in f"{raised.value}{raised.value.__cause__}"

    assert table.read_state().offset == 100
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
    assert table.read_state().offset == frozen.read_state().offset == 250


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

    assert table.overwrite_from(wider, 200, KEY) == 200

    assert offsets(tmp_path) == [100, 200]
    assert table.rows().columns == ["id", "a", "b", "c"]
    assert contents(table.rows()) == {5: ("a5", "b5")}
    for version in (199, 200):
        with pytest.raises(OffsetRefused, match="would be skipped"):
            table.overwrite_from(wider, version, KEY)
    properties = DeltaTable(str(tmp_path / "table")).metadata().configuration
    assert properties["delta.logRetentionDuration"] == "interval 1 days"
    assert properties["delta.enableDeletionVectors"] == "false"


def test_a_snapshot_may_have_other_columns_and_another_key(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    table.overwrite_from(spark.sql("select 'k' as k, date'2026-01-02' as id"), 200, ("k",))

    assert [tuple(row) for row in table.rows().collect()] == [("k", date(2026, 1, 2))]
    assert offsets(tmp_path) == [100, 200]
    properties = DeltaTable(str(tmp_path / "table")).metadata().configuration
    assert properties["delta.dataSkippingStatsColumns"] == "`k`"


def test_a_table_without_a_flush_has_no_offset(
    spark: SparkSession, open_table: OpenTable, tmp_path: Path
) -> None:
    table = open_table()
    assert not table.exists()
    assert table.read_state().offset is None

    table.create(schema("id bigint, a string, b string"), KEY)

    assert table.exists()
    assert table.read_state().offset is None
    assert open_table().merge(net(spark, table, Change("insert", 1, "x", "y")), 10) == 10
    assert table.read_state().offset == 10
    assert in_deltalake(tmp_path) == {1: ("x", "y")}


def test_the_offset_is_found_without_the_file_beside_the_commit(
    table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    spark_of = table.rows().sparkSession
    for file in (tmp_path / "table" / "_delta_log").glob("*.crc"):
        file.unlink()
    assert spark_of._jvm is not None
    spark_of._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    assert open_table().read_state().offset == 100


@pytest.fixture
def tended_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth version is a time for upkeep."""
    monkeypatch.setattr(upkeep, "UPKEEP_COMMITS", 4)
    monkeypatch.setattr(zlib, "crc32", lambda _: 0)


@pytest.mark.usefixtures("tended_often")
def test_upkeep_comes_once_in_so_many_commits_and_leaves_the_offset(
    spark: SparkSession, table: ShapeTable, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tended = [table.upkeep()]
    for place in range(5):
        far = net(spark, table, Change("insert", 1000 * (place + 4), "a", "b"))
        table.merge(far, 200 + place)
        tended += [table.needs_upkeep, table.upkeep(), table.upkeep()]

    assert "".join("-X"[each] for each in tended) == "-" + 3 * "---" + "XX-" + "---"
    assert offsets(tmp_path) == [100, 200, 201, 202, 203, None, None, 204]
    assert table.read_state().offset == 204
    assert len(table.rows().inputFiles()) == 2
    assert contents(table.rows()) == in_deltalake(tmp_path)
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("tended_often")
def test_upkeep_comes_though_every_commit_is_made_by_another_process(
    spark: SparkSession, open_table: OpenTable
) -> None:
    open_table().overwrite_from(spark.range(3).selectExpr("cast(id as int) id", "'a' a", "'b' b"), 100, KEY)
    tended = []
    for place in range(6):
        table = open_table()
        table.merge(net(spark, table, Change("insert", 1000 + place, "a", "b")), 200 + place)
        tended.append(table.upkeep())

    # Version 4 is the fourth of them, OPTIMIZE makes version 5 and the note version 6.
    assert "".join("-X"[each] for each in tended) == "---X-X"


@pytest.mark.usefixtures("tended_often")
def test_upkeep_that_one_process_left_is_done_by_the_next(
    spark: SparkSession, open_table: OpenTable, tmp_path: Path
) -> None:
    """And once: the note is the table's, and others may have a look at it."""
    table = open_table()
    table.overwrite_from(spark.range(3).selectExpr("cast(id as int) id", "'a' a", "'b' b"), 100, KEY)
    for place in range(4):
        table.merge(net(spark, table, Change("insert", 1000 + place, "a", "b")), 200 + place)
    found = []
    for _ in range(2):
        table = open_table()
        assert not table.needs_upkeep, "nobody has looked"
        state = table.state_to_build_on()
        found.append((state.version, state.offset, table.needs_upkeep))
        table.files(KEY)
        table.upkeep()

    assert found == [(4, 203, True), (6, 203, False)]
    assert commits(tmp_path)[-1][0]["commitInfo"]["operation"] == "Manual Update"


def test_tables_that_grow_together_are_not_tended_together(started: Started, tmp_path: Path) -> None:
    tables = [
        ShapeTable(started.spark, str(tmp_path / name), AppId("1", name, 1))
        for name in (f"shape_{number}" for number in range(100))
    ]
    due = Counter[int]()
    for table in tables:
        for version in range(2 * upkeep.UPKEEP_COMMITS):
            table._upkeep.saw(version)
            if table.needs_upkeep:
                due[version] += 1
                table._upkeep.tended_at = version

    assert due.total() == 200
    assert max(due.values()) <= 5


def test_upkeep_keeps_of_the_log_what_its_retention_asks_for(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    """A file a commit; and nothing that is older than the table's own property and below a checkpoint."""
    log = tmp_path / "table" / "_delta_log"
    for place in range(3):
        table.merge(net(spark, table, Change("insert", 1000 + place, "a", "b")), 200 + place)
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(table._spark._jsparkSession, table.path).checkpoint()
    for place in range(2):
        table.merge(net(spark, table, Change("insert", 2000 + place, "a", "b")), 300 + place)

    table.shorten_log()

    names = sorted(path.name for path in log.iterdir())
    assert [name for name in names if name.endswith(".json")] == [f"{each:020}.json" for each in range(6)]
    assert [name for name in names if name.endswith(("0.crc", "2.crc"))] == []
    assert f"{5:020}.crc" in names
    long_ago = time.time() - 90_000
    for second, path in enumerate(sorted(log.iterdir())):
        os.utime(path, (long_ago, long_ago + second))

    open_table().shorten_log()

    kept = sorted(path.name for path in log.iterdir() if path.name.endswith((".json", ".parquet")))
    assert kept == [f"{3:020}.checkpoint.parquet", *[f"{each:020}.json" for each in (3, 4, 5)]]
    assert open_table().read_state().offset == 301
    assert contents(open_table().rows()) == in_deltalake(tmp_path)


def test_upkeep_splits_large_files_and_puts_small_ones_together(
    spark: SparkSession, open_table: OpenTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush rewrites each file that holds one of its keys, and reads each that may."""
    monkeypatch.setattr(rearrange, "FILE_ROWS", 1000)
    # Spark draws the ranges from a sample, by default from one that leaves files 30 % apart at times.
    spark.conf.set("spark.sql.execution.rangeExchange.sampleSizePerPartition", "2000")
    table = ShapeTable(spark, str(tmp_path / "table"), AppId("1", "shape", 1))
    shuffled = "cast(pmod(id * 7919, 20000) as int) id"
    large = spark.range(0, 12_000, numPartitions=1).selectExpr(shuffled, "uuid() a", "uuid() b")
    small = spark.range(12_000, 20_000, numPartitions=80).selectExpr(shuffled, "uuid() a", "uuid() b")
    table.overwrite_from(large.union(small), 100, KEY)
    assert len(table.rows().inputFiles()) == 81
    before = contents(table.rows())

    table.optimize()

    files = table.files(KEY).all()
    assert len(files) == 20
    assert all(800 <= (file.rows or 0) <= 1200 for file in files)
    assert [len(table.files(KEY).touched({"id": [(key, key)]})) for key in (5, 9000, 19_990)] == [1, 1, 1]
    assert contents(open_table().rows()) == in_deltalake(tmp_path) == before
    assert table.read_state().offset == 100
    *_, last = commits(tmp_path)
    assert {
        action[kind]["dataChange"] for action in last for kind in ("add", "remove") if kind in action
    } == {False}
    table.optimize()
    assert len(commits(tmp_path)) == 2, "it is well now"


def test_any_thread_may_snapshot_and_tend(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    """Some of Delta's Java asks the thread for its session."""
    rows = table_frame(spark, ROWS).repartition(3)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(table.overwrite_from, rows, 200, KEY).result() == 200
    with ThreadPoolExecutor(1) as pool:
        pool.submit(table.optimize).result()

    assert len(table.rows().inputFiles()) == 1
    assert offsets(tmp_path) == [100, 200, None]


FOREIGN = (
    "DELETE FROM {} WHERE id = 1",
    "RESTORE TABLE {} TO VERSION AS OF 0",
    "ALTER TABLE {} ADD COLUMNS (c INT)",
)
HARMLESS = (
    "ALTER TABLE {} SET TBLPROPERTIES ('theirs' = 'x', 'delta.logRetentionDuration' = 'interval 8 days')",
    "ALTER TABLE {} ADD CONSTRAINT positive CHECK (id > 0)",
    "OPTIMIZE {}",
)


@pytest.mark.parametrize("statement", FOREIGN)
def test_rows_that_others_have_changed_are_not_built_on(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, statement: str
) -> None:
    table.merge(net(spark, table, Change("insert", 9, "a9", "b9")), 200)
    spark.sql(statement.format(f"delta.`{table.path}`"))
    what = statement.partition(" {}")[0].replace("ALTER TABLE", "ADD COLUMNS").replace(" FROM", "")
    what = what.replace("RESTORE TABLE", "RESTORE")

    for writer in (table, open_table()):
        with pytest.raises(ForeignCommit, match=f"{what} by Apache-Spark.* in version 2"):
            writer.merge(net(spark, table, Change("insert", 10, "a", "b")), 300)
    assert table.read_state().offset == 200
    assert open_table().overwrite_from(table_frame(spark, ROWS), 300, KEY) == 300
    assert open_table().merge(net(spark, table, Change("delete", 1)), 400) == 400


def test_what_others_do_without_changing_rows_is_built_on_and_stays(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    for place in range(3):
        table.merge(net(spark, table, Change("insert", 10 + place, "a", "b")), 200 + place)
    for statement in HARMLESS:
        spark.sql(statement.format(f"delta.`{table.path}`"))

    assert table.merge(net(spark, table, Change("delete", 1)), 300) == 300
    assert open_table().merge(net(spark, table, Change("delete", 2)), 400) == 400
    assert contents(table.rows()) == {3: ROWS[3]} | {10 + place: ("a", "b") for place in range(3)}
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    spark.sql(f"ALTER TABLE delta.`{table.path}` ADD CONSTRAINT short CHECK (length(b) < 9)")

    open_table().overwrite_from(table_frame(spark, ROWS).drop("b"), 500, KEY)

    kept = DeltaTable(str(tmp_path / "table")).metadata().configuration
    assert kept["theirs"] == "x"
    assert kept["delta.logRetentionDuration"] == "interval 8 days"
    assert kept["delta.enableChangeDataFeed"] == "true"
    assert kept["delta.constraints.positive"] == "id > 0"
    assert "delta.constraints.short" not in kept, "its column is gone"
    assert kept["delta.dataSkippingStatsColumns"] == "`id`,`a`"


def test_new_keys_that_no_file_may_hold_are_appended(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    """Proved by files that are gone: whoever looked into them would fail."""
    new = net(spark, table, Change("insert", 10, "a", "b"), Change("insert", 11, "a", None))
    between = net(spark, table, Change("insert", 0, "a", "b"), Change("insert", 20, "a", "b"))
    held_back = net(spark, table, Change("insert", 30, "a", "b"))
    for file in (tmp_path / "table").glob("*.parquet"):
        file.rename(file.with_suffix(".gone"))

    assert table.merge(new, 200) == 200
    assert open_table().merge(new, 200) == 200, "once"
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        table.merge(between, 300)
    for file in (tmp_path / "table").glob("*.gone"):
        file.rename(file.with_suffix(".parquet"))
    assert table.merge(between, 300) == 300

    assert offsets(tmp_path) == [100, 200, 300]
    operations = [action["commitInfo"]["operation"] for each in commits(tmp_path) for action in each[:1]]
    assert operations[1:] == ["WRITE", "MERGE"]
    assert contents(table.rows()) == ROWS | {
        0: ("a", "b"),
        10: ("a", "b"),
        11: ("a", None),
        20: ("a", "b"),
    }
    state = table.read_state()
    open_table().merge(net(spark, table, Change("delete", 20)), 350)
    with pytest.raises(TableConflict):
        table.merge(held_back, 400, made_from=state.version)


def test_an_append_from_another_version_than_expected_is_refused(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    appending = ShapeTable._appending

    def after_another(self: ShapeTable, changes: NetChanges, version: int) -> Any:
        monkeypatch.undo()
        other = shape_session(spark)
        open_table().merge(net(other, table, Change("insert", 30, "other", "o")), 150)
        return appending(self, changes, version)

    mine = net(spark, table, Change("insert", 30, "mine", "m"))
    monkeypatch.setattr(ShapeTable, "_appending", after_another)
    with pytest.raises(TableConflict):
        table.merge(mine, 200)
    assert contents(table.rows()) == ROWS | {30: ("other", "o")}


def test_keys_that_lie_apart_do_not_touch_what_is_between(
    spark: SparkSession, open_table: OpenTable, tmp_path: Path
) -> None:
    table = open_table()
    rows = table_frame(spark, dict.fromkeys(range(300), ("a", "b"))).repartitionByRange(3, "id")
    table.overwrite_from(rows, 100, KEY)
    middle = min(table.files(KEY).touched({"id": [(150, 150)]}))
    (tmp_path / "table" / middle.path).unlink()
    batch = frame(spark, [Change("update", 1, "x", "y"), Change("update", 299, "x", "y")])
    surveyed = survey_here(batch.toArrow(), KEY)

    assert table.merge(fold(batch, surveyed, KEY, COLUMNS, table.rows()), 200) == 200


def test_a_new_timeline_may_be_behind_the_old_one(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    table.merge(net(spark, table, Change("delete", 3)), 900)
    switched = open_table(2)
    assert switched.read_position() == Position(1, 900)

    assert switched.overwrite_from(table_frame(spark, {5: ("a5", "b5")}), 300, KEY) == 300
    assert switched.merge(net(spark, switched, Change("insert", 6, "a6", "b6")), 400) == 400

    assert offsets(tmp_path) == [100, 900, 300, 400]
    assert open_table().read_position() == switched.read_position() == Position(2, 400)
    assert contents(switched.rows()) == {5: ("a5", "b5"), 6: ("a6", "b6")}


def test_a_table_goes_on_from_an_older_timelines_offset(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    switched = open_table(2)

    assert switched.merge(net(spark, table, Change("delete", 1)), 100) == 100
    assert offsets(tmp_path) == [100]
    assert switched.merge(net(spark, table, Change("delete", 2)), 150) == 150
    assert switched.read_position() == Position(2, 150)


def test_a_writer_on_an_older_timeline_is_refused(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, tmp_path: Path
) -> None:
    open_table(2).overwrite_from(table_frame(spark, ROWS), 50, KEY)

    with pytest.raises(TableConflict, match="follows timeline 2, this writer 1"):
        table.merge(net(spark, table, Change("delete", 1)), 900)
    with pytest.raises(TableConflict, match="follows timeline 2, this writer 1"):
        table.overwrite_from(table_frame(spark, ROWS), 900, KEY)
    assert offsets(tmp_path) == [100, 50]


def test_offsets_of_others_do_not_count(table: ShapeTable, started: Started, tmp_path: Path) -> None:
    for app_id in (AppId("1", "shap", 1), AppId("1", "shape:1", 1), AppId("2", "shape", 1)):
        other = ShapeTable(shape_session(started.spark), str(tmp_path / "table"), app_id)
        assert other.read_position() is None
    assert table.read_position() == Position(1, 100)


def test_deltalake_reads_what_is_outside_the_years_1_to_9999(
    spark: SparkSession, open_table: OpenTable, tmp_path: Path
) -> None:
    days = [2**31 - 1, -(2**31), -1_000_000]
    moments = [2**63 - 1, -(2**63), -63_549_403_200_000_000]
    rows = pa.table(
        {
            "day": pa.array(days, pa.int32()).cast(pa.date32()),
            "at": pa.array(moments, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "seen": pa.array(moments, pa.int64()).cast(pa.timestamp("us")),
            "na`me.d": pa.array(["x", "y", "z"]),
        }
    )
    columns = "day date, at timestamp, seen timestamp_ntz, `na``me.d` string"
    table = open_table()
    table.overwrite_from(spark.createDataFrame(rows, schema(columns)).coalesce(1), 100, ("day", "at"))

    read = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    frame = DeltaTable(str(tmp_path / "table")).to_pandas(types_mapper=pd.ArrowDtype)

    assert read["day"].cast(pa.int32()).to_pylist() == days
    for name in ("at", "seen"):
        assert read[name].cast(pa.int64()).to_pylist() == moments
        assert pa.array(frame[name]).cast(pa.int64()).to_pylist() == moments
    [add] = [action["add"] for action in commits(tmp_path)[0] if "add" in action]
    assert json.loads(add["stats"])["minValues"] == {"na`me.d": "x"}


def test_statistics_are_for_keys_first_and_never_for_dates() -> None:
    wide = ", ".join(f"c{number} int" for number in range(30))
    chosen = properties(schema(f"day date, flag boolean, {wide}, `k.ey` string"), ("day", "k.ey"))
    none = properties(schema("day date, raw binary"), ("day",))

    names = chosen["delta.dataSkippingStatsColumns"].split(",")
    assert names == ["`k.ey`", *[f"`c{number}`" for number in range(15)]]
    assert none["delta.dataSkippingNumIndexedCols"] == "0"
    assert "delta.dataSkippingStatsColumns" not in none


def test_a_storage_that_can_not_be_written_is_said_in_one_line(
    spark: SparkSession, started: Started, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "table")
    table = ShapeTable(shape_session(started.spark), path, AppId("1", "shape", 1))

    with pytest.raises(StorageFailed) as raised:
        table.overwrite_from(table_frame(spark, ROWS), 100, KEY)

    assert str(raised.value).startswith(f"can't write {path}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            "An error occurred while calling o9.save.\n: IOException: No space left on device\n\tat x",
            StorageFailed,
            "can't write /t: No space left on device; make room there",
        ),
        (
            "java.io.FileNotFoundException: /t/x (Permission denied)",
            StorageFailed,
            "give this user the right",
        ),
        (
            "[CAST_INVALID_INPUT] The value 'hunter2' can't be cast. SQLSTATE: 22018\nat x",
            SparkError,
            r"/t: a value does not fit what is done with it \(CAST_INVALID_INPUT\)\. Fix: ",
        ),
        (
            "[TASK_WRITE_FAILED] /t. SQLSTATE: 58030\n[CAST_INVALID_INPUT] The 'hunter2'. SQLSTATE: 22018",
            SparkError,
            r"\(CAST_INVALID_INPUT\)",
        ),
        (
            "An error occurred while calling o9.save.\n: java.lang.Error: first\n\tat second",
            SparkError,
            "^/t: java.lang.Error: first$",
        ),
        ("", SparkError, "^/t: $"),
    ],
)
def test_sparks_texts_become_one_line(text: str, kind: type[Exception], said: str) -> None:
    error = plain_error("/t", text)

    assert type(error) is kind
    assert re.search(said, str(error))
    assert "hunter2" not in str(error)


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
    assert table.read_state().offset == 300


@pytest.mark.parametrize("is_opened_anew", [False, True])
def test_news_are_noticed_by_names_alone(
    spark: SparkSession, table: ShapeTable, open_table: OpenTable, is_opened_anew: bool
) -> None:
    """The version that was seen last is there, and no next one: nothing is read."""
    if is_opened_anew:
        table = open_table()
        assert table.may_be_news(), "nobody has looked yet"
    table.state_to_build_on()
    assert not table.may_be_news()
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('mine' = '1')")
    assert table.may_be_news()
    assert table.foreign_commit(table.read_state()) is None
    assert not table.may_be_news(), "seen, and tolerated"
    spark.sql(f"DELETE FROM delta.`{table.path}` WHERE id = 1")
    assert table.may_be_news()
    assert "DELETE" in (table.foreign_commit(table.read_state()) or "")
