"""A flush, from the log's segments to the table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.decoding.rows import Column, DecodeError, LayoutChanged
from penstock.lake.delta import rearrange
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.data_files import DataFile, DataFiles
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.errors import TableConflict
from penstock.lake.jobs import changes as changes_module
from penstock.lake.jobs import flush as flush_module
from penstock.lake.jobs.flush import Flushed, flush, settings_for
from tests.spark.batches import arrow_frame
from tests.spark.test_changes import TRUNCATE, delete, insert, layout, update, write_log

ROWS = {1: "a1", 2: "a2", 3: "a3", 4: "a4"}
NARROW = layout("id", "a")


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> ShapeTable:
    """A table with ROWS, at offset 100."""
    table = ShapeTable(spark, str(tmp_path / "table"), AppId("1", "shape", 1))
    schema = pa.schema([("id", pa.int64()), ("a", pa.string())])
    table.overwrite_from(arrow_frame(spark, ROWS.items(), schema), 100, ("id",))
    return table


def contents(table: ShapeTable) -> dict[int, Any]:
    """Each row's values, without the key; the value itself where there is just one."""
    rows = [tuple(row) for row in table.rows().collect()]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] if len(row) > 2 else row[1] for row in rows}


def offsets(tmp_path: Path) -> list[int | None]:
    """The offset that each commit carries, oldest first."""
    found: list[int | None] = []
    for file in sorted((tmp_path / "table" / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        found.append(next((action["txn"]["version"] for action in actions if "txn" in action), None))
    return found


def wider(missing: str | None, type: str = "integer") -> tuple[Any, Sequence[Column]]:
    """A layout with a new column, and that column."""
    added = Column("c", type, missing=missing)
    return replace(NARROW, columns=(*NARROW.columns, added), stored=("id", "a", "c")), [added]


@pytest.mark.parametrize("local_bytes", [0, 1 << 20], ids=["workers", "driver"])
def test_a_flush_is_one_commit(
    spark: SparkSession,
    table: ShapeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    local_bytes: int,
) -> None:
    monkeypatch.setattr(changes_module, "LOCAL_BYTES", local_bytes)
    transactions = {
        110: [insert(id=5, a="new"), update(id=5, a="newer"), update(id=1, a=None)],
        120: [delete(2), update(3, id=30), insert(id=6, a="short"), delete(6)],
    }

    flushed = flush(spark, table, NARROW, write_log(tmp_path / "log", transactions), 120)

    assert (flushed.offset, flushed.changes) == (120, 8)
    assert flushed.decode_s > 0
    assert contents(table) == {1: None, 4: "a4", 5: "newer", 30: "a3"}
    assert offsets(tmp_path) == [100, 120]
    assert nothing_is_kept(spark)


def nothing_is_kept(spark: SparkSession) -> bool:
    return bool(spark._jsparkSession.sharedState().cacheManager().isEmpty())


def test_nothing_new_is_no_commit(spark: SparkSession, table: ShapeTable, tmp_path: Path) -> None:
    plan = write_log(tmp_path / "log", {90: [delete(1)], 100: [delete(2)]})

    assert flush(spark, table, NARROW, [], 500) == Flushed(100)
    assert flush(spark, table, NARROW, plan, 100) == Flushed(100)

    assert offsets(tmp_path) == [100]
    assert contents(table) == ROWS


def test_what_the_table_has_is_not_applied_again(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    """Neither is it decoded: the old part here would not even fit."""
    plan = write_log(
        tmp_path / "log", {90: [delete(1), insert(id="x", a="y")], 100: [TRUNCATE], 110: [delete(2)]}
    )

    flushed = flush(spark, table, NARROW, plan, 115)

    assert (flushed.offset, flushed.changes) == (115, 1)
    assert contents(table) == {1: "a1", 3: "a3", 4: "a4"}


def test_a_table_that_moved_meanwhile_is_left(
    spark: SparkSession, table: ShapeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else flushes after this flush has read the offset."""
    early = write_log(tmp_path / "early", {110: [delete(1)]})
    late = write_log(tmp_path / "late", {110: [delete(1)], 120: [delete(2)]})

    def decode_slowly(*arguments: Any) -> pa.Table:
        monkeypatch.undo()
        flush(spark, table, NARROW, early, 110)
        return changes_module.decode_here(*arguments)

    monkeypatch.setattr(flush_module, "decode_here", decode_slowly)
    with pytest.raises(TableConflict, match="went from version 0 to 1 during a flush"):
        flush(spark, table, NARROW, late, 120)

    assert offsets(tmp_path) == [100, 110]


def test_settings_for_few_changes_end_with_the_flush(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    names = ("spark.sql.shuffle.partitions", "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    before = [spark.conf.get(name) for name in names]

    flush(spark, table, NARROW, write_log(tmp_path / "log", {110: [delete(2)]}), 110)

    assert [spark.conf.get(name) for name in names] == before


@pytest.mark.parametrize("local_bytes", [0, 1 << 20], ids=["workers", "driver"])
def test_a_change_that_does_not_fit_leaves_the_table(
    spark: SparkSession,
    table: ShapeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    local_bytes: int,
) -> None:
    monkeypatch.setattr(changes_module, "LOCAL_BYTES", local_bytes)
    plan = write_log(tmp_path / "log", {110: [delete(1)], 120: [insert(id="hunter2", a="x")]})

    with pytest.raises(DecodeError, match=r"^public\.orders at 0/78:0: column id \(bigint\): "):
        flush(spark, table, NARROW, plan, 120)

    assert offsets(tmp_path) == [100]
    assert nothing_is_kept(spark)


def test_the_filter_may_read_a_column_that_is_not_stored(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    filtered = replace(layout("id", "a", "c"), stored=("id", "a"), where="c > 10")
    frames = [update(id=1, a="out", c=1), update(id=2, a="in", c=11), insert(id=9, a="out", c=None)]

    flush(spark, table, filtered, write_log(tmp_path / "log", {110: frames}), 110)

    assert contents(table) == {2: "in", 3: "a3", 4: "a4"}


def test_an_added_column_is_filled_in_the_same_commit(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    """The transactions before 130 were written before the column was added."""
    transactions = {
        110: [insert(id=5, a="old insert"), update(id=1, a="old update"), update(2, id=20)],
        130: [insert(id=6, a="new insert", c=7), update(id=3, a="new update", c=None)],
    }
    wide, added = wider("5")

    flushed = flush(spark, table, wide, write_log(tmp_path / "log", transactions), 130, added)

    assert flushed.offset == 130
    assert contents(table) == {
        1: ("old update", 5),
        3: ("new update", None),
        4: ("a4", 5),
        5: ("old insert", 5),
        6: ("new insert", 7),
        20: ("a2", 5),
    }
    assert offsets(tmp_path) == [100, 130]


def test_a_column_that_is_there_already_is_left_alone(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    wide, added = wider("5")
    flush(spark, table, wide, [], 100, added)
    plan = write_log(tmp_path / "log", {110: [update(id=1, a="x", c=6)], 120: [update(id=1, a="y")]})
    flush(spark, table, wide, plan, 120, added)

    assert flush(spark, table, wide, [], 120, added) == Flushed(120)

    assert contents(table) == {1: ("y", 6)} | {key: (ROWS[key], 5) for key in (2, 3, 4)}
    assert offsets(tmp_path) == [100, None, 120]


@pytest.mark.parametrize(("missing", "value"), [("5", 5), (None, None)])
def test_a_quiet_table_gets_its_column_and_keeps_its_offset(
    spark: SparkSession, table: ShapeTable, tmp_path: Path, missing: str | None, value: int | None
) -> None:
    wide, added = wider(missing)

    assert flush(spark, table, wide, [], 90, added).offset == 100

    assert contents(table) == {key: (a, value) for key, a in ROWS.items()}
    assert offsets(tmp_path) == [100, None]


def test_a_truncate_takes_the_rows_that_would_be_filled(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    wide, added = wider("5")
    plan = write_log(tmp_path / "log", {110: [TRUNCATE, insert(id=1, a="x"), insert(id=9, a="y", c=1)]})

    flush(spark, table, wide, plan, 110, added)

    assert contents(table) == {1: ("x", 5), 9: ("y", 1)}
    assert offsets(tmp_path) == [100, 110]


@pytest.mark.parametrize(
    ("type", "missing", "value"),
    [
        ("date", "infinity", 2**31 - 1),
        ("timestamp with time zone", "-infinity", -(2**63)),
        ("timestamp without time zone", "0044-03-15 12:00:00 BC", -63517780800000000),
    ],
)
def test_values_of_new_columns_that_python_can_not_hold(
    spark: SparkSession, table: ShapeTable, type: str, missing: str, value: int
) -> None:
    wide, added = wider(missing, type)

    flush(spark, table, wide, [], 100, added)

    ticks = pa.int32() if type == "date" else pa.int64()
    assert table.rows().toArrow()["c"].cast(ticks).to_pylist() == [value] * len(ROWS)


@pytest.mark.parametrize(("type", "missing", "value"), [
    ("boolean", "t", True),
    ("bytea", "\\x00ff", b"\x00\xff"),
    ("numeric(6,2)", "1.50", Decimal("1.50")),
    ("double precision", "-Infinity", float("-inf")),
    ("text", "it's", "it's"),
])  # fmt: skip
def test_values_of_new_columns(
    spark: SparkSession, table: ShapeTable, type: str, missing: str, value: object
) -> None:
    wide, added = wider(missing, type)

    flush(spark, table, wide, [], 100, added)

    assert table.rows().select("c").toArrow()["c"].to_pylist() == [value] * len(ROWS)


@pytest.mark.parametrize("column", [Column("a", "integer"), Column("A", "text")])
def test_an_added_column_that_is_stored_as_another_is_refused(
    spark: SparkSession, table: ShapeTable, column: Column
) -> None:
    with pytest.raises(LayoutChanged, match=r"a \(string\) is stored already: snapshot it again"):
        flush(spark, table, NARROW, [], 100, [column])


def data_files(*files: tuple[int, int | None]) -> DataFiles:
    adds = [
        {"path": str(place), "size": size, "stats": json.dumps({"numRecords": rows})}
        for place, (size, rows) in enumerate(files)
    ]
    return DataFiles(0, adds, ("id",))


@pytest.mark.parametrize(
    ("files", "changes", "partitions", "compiled"),
    [
        ([], 1, "1", False),
        ([(500_000, 35_000)], 1, "1", False),
        ([(500_000, 35_000)] * 9, 1, "1", True),
        ([(43 << 20, 3_000_000)], 1, None, True),
        ([(43 << 20, None)], 1, None, True),
        ([], 200_000, "1", True),
        # Wide rows: a few thousand of them are as much work as millions of narrow ones.
        ([(30 << 20, 3_000)], 1, "1", True),
        ([(4 << 20, 3_000)] * 2, 1, "1", False),
    ],
)
def test_what_is_to_be_rewritten_decides_how(
    files: list[tuple[int, int | None]], changes: int, partitions: str | None, compiled: bool
) -> None:
    touched = [DataFile(str(place), size, rows, {}) for place, (size, rows) in enumerate(files)]

    rows = changes + sum(file.most_rows for file in touched)
    settings = settings_for(rows, sum(file.size for file in touched), 35_000)

    assert settings["spark.sql.files.maxRecordsPerFile"] == "35000"
    assert settings.get("spark.sql.shuffle.partitions") == partitions
    assert settings.get("spark.sql.codegen.wholeStage", "true") == str(compiled).lower()


@pytest.mark.parametrize(
    ("files", "rows"),
    [
        ([(16 << 20, 35_000)], 35_000),
        ([(64 << 20, 35_000)], 17_500),
        ([(8 << 20, 2_500), (24 << 20, 7_500)], 10_000),
        ([(16 << 20, 35_000), (1 << 30, None)], 35_000),
        ([(16 << 20, 200_000_000)], 35_000),
    ],
)
def test_wide_rows_are_written_into_files_of_fewer(files: list[tuple[int, int | None]], rows: int) -> None:
    assert min(rearrange.FILE_ROWS, rearrange.rows_a_file(data_files(*files).all())) == rows


def test_a_flush_over_neighbours_leaves_files_as_small_as_upkeep_would(
    spark: SparkSession, table: ShapeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rearrange, "_LARGEST_FILE", 64 << 10)
    rows = spark.range(0, 12_000, numPartitions=4).selectExpr("id", "uuid() a")
    table.overwrite_from(rows, 200, ("id",))
    wanted = rearrange.rows_a_file(table.files(("id",)).all())
    frames = [update(id=key, a="x") for key in range(0, 12_000, 3000)]

    flush(spark, table, NARROW, write_log(tmp_path / "log", {210: frames}), 210)

    counted = [file.rows or 0 for file in table.files(("id",)).all()]
    assert wanted < 3000
    assert sum(counted) == 12_000
    assert max(counted) <= wanted


def test_one_old_key_in_a_large_load_opens_one_file(
    spark: SparkSession, table: ShapeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proved by files that are gone: whoever looked into them would fail."""
    monkeypatch.setattr(changes_module, "LOCAL_BYTES", 0)
    table.overwrite_from(spark.range(0, 4000, numPartitions=4).selectExpr("id", "'a' a"), 200, ("id",))
    files = sorted(table.files(("id",)).all(), key=lambda file: file.bounds["id"])
    paths = [tmp_path / "table" / file.path for file in files]
    new = [insert(id=key, a="new") for key in range(9000, 9100)]
    for path in paths[1:]:
        path.rename(path.with_suffix(".gone"))

    old = write_log(tmp_path / "old", {210: [update(id=5, a="x"), *new[:50]]})
    assert flush(spark, table, NARROW, old, 210).offset == 210
    paths[0].rename(paths[0].with_suffix(".gone"))
    all_new = write_log(tmp_path / "new", {220: new[50:]})
    assert flush(spark, table, NARROW, all_new, 220).offset == 220

    for path in paths:
        path.with_suffix(".gone").rename(path)
    assert contents(table) == (
        dict.fromkeys(range(4000), "a") | {5: "x"} | dict.fromkeys(range(9000, 9100), "new")
    )
