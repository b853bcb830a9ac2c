"""Columns get wider types: the tables whose owners let Delta do it stay what they are."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.decoding.rows import Column
from penstock.decoding.widening import TYPE_WIDENING, can_be_widened
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.rearrange import rewrite
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.jobs.difference import merge_difference
from penstock.lake.spark.spark_session import shape_session
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesSite
from tests.spark.conftest import RunOnce, Started

TABLES = """
CREATE TABLE prices (id numeric(6,0) PRIMARY KEY, amount numeric(10,2), note varchar(10));
INSERT INTO prices SELECT g, g + 0.25, 'n' || g FROM generate_series(1, 9) g;
CREATE TABLE counts (id int PRIMARY KEY, s smallint, v text);
INSERT INTO counts SELECT g, g, 'v' || g FROM generate_series(1, 9) g;
"""
WIDER = (
    "UPDATE prices SET amount = 99999999.99 WHERE id = 1",
    "ALTER TABLE prices ALTER amount TYPE numeric(12,2), ALTER id TYPE numeric(8,0),"
    " ALTER note TYPE varchar(20)",
    "UPDATE prices SET amount = 9999999999.99, note = 'longer than before' WHERE id = 2",
    "INSERT INTO prices VALUES (12345678, -0.01, null)",
    "UPDATE counts SET s = 7 WHERE id = 7",
    "ALTER TABLE counts ALTER id TYPE bigint, ALTER s TYPE int USING CASE id WHEN 8 THEN 80 ELSE s END",
    "UPDATE counts SET s = 70000 WHERE id = 2; DELETE FROM counts WHERE id = 3",
    "INSERT INTO counts VALUES (9000000000, 70000, 'new')",
)


def operations(table: Path) -> list[str]:
    """What each commit did, oldest first."""
    commits = [file.read_text() for file in sorted((table / "_delta_log").glob("*.json"))]
    found = [json.loads(line) for commit in commits for line in commit.splitlines()]
    return [action["commitInfo"]["operation"] for action in found if "commitInfo" in action]


def in_spark(spark: SparkSession, table: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.read.format("delta").load(str(table)).collect())


@pytest.mark.timeout(600)
def test_tables_that_may_be_widened_are_and_stay_what_they_were(
    postgres: PrivatePostgres, database: str, tmp_path: Path, run_once: RunOnce, started: Started
) -> None:
    """With changes of before and after in one flush, and a rewrite that changes a value in passing."""
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(TABLES)
    site.write_file(*[f'name = "{name}"\ntable = "public.{name}"' for name in ("prices", "counts")])
    assert run_once(site) == 0
    for name in ("prices", "counts"):
        table = f"delta.`{site.table(name)}`"
        started.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{TYPE_WIDENING}' = 'true')")
    for statement in WIDER:
        site.sql(statement)

    # The first flush of a rewritten table fails, and its snapshot may take long on a busy machine.
    assert run_once(site, STALL_S="60") == 0

    spark = shape_session(started.spark)
    for name in ("prices", "counts"):
        rows = in_spark(spark, site.table(name))
        assert rows == sorted(site.sql(f"SELECT * FROM {name}"))
        made, *later = operations(site.table(name))
        assert made.startswith("CREATE OR REPLACE")
        assert later[0] == "SET TBLPROPERTIES"
        assert later[1] == "CHANGE COLUMNS"
        assert set(later[2:]) == {"MERGE"}, "no copy"
    types = dict(spark.read.format("delta").load(str(site.table("prices"))).dtypes)
    assert types == {"id": "decimal(8,0)", "amount": "decimal(12,2)", "note": "string"}
    types = dict(spark.read.format("delta").load(str(site.table("counts"))).dtypes)
    assert types == {"id": "bigint", "s": "int", "v": "string"}


@pytest.mark.timeout(600)
def test_more_digits_need_neither_the_owner_nor_a_copy(
    postgres: PrivatePostgres, database: str, tmp_path: Path, run_once: RunOnce
) -> None:
    """With a new column in the same ALTER. What Postgres rewrites is copied: any value may be another."""
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(TABLES + "CREATE TABLE both_kinds (LIKE prices INCLUDING ALL);")
    site.sql("ALTER TABLE both_kinds ADD n int; INSERT INTO both_kinds VALUES (1, 1.25, 'n1', 7)")
    site.write_file(*[f'name = "{name}"\ntable = "public.{name}"' for name in ("prices", "both_kinds")])
    assert run_once(site) == 0
    site.sql(WIDER[0])
    site.sql(
        "ALTER TABLE prices ALTER amount TYPE numeric(12,2), ALTER id TYPE numeric(8,0), ADD n int DEFAULT 7"
    )
    site.sql("UPDATE prices SET amount = 9999999999.99 WHERE id = 2; DELETE FROM prices WHERE id = 3")
    site.sql("INSERT INTO prices VALUES (12345678, -0.01, null, 8)")
    site.sql("ALTER TABLE both_kinds ALTER amount TYPE numeric(12,2), ALTER n TYPE bigint USING n * 10")
    site.sql("INSERT INTO both_kinds VALUES (2, 9999999999.99, 'n2', 9000000000)")

    with capture_logs() as said:
        assert run_once(site, STALL_S="60") == 0

    for name in ("prices", "both_kinds"):
        site.assert_equal(name, ("id", "amount", "note", "n"), f"SELECT id, amount, note, n FROM {name}")
    assert operations(site.table("prices"))[1:] == ["CHANGE COLUMNS", "MERGE"]
    assert {line["shape"] for line in said if line["event"] == "snapshot_done"} == {"both_kinds"}
    (rewritten,) = [line for line in said if line["event"] == "table_rewritten"]
    assert rewritten["columns"] == ["amount", "id"]


class TestTable:
    """What a wider type does to a table, and what it doesn't."""

    @pytest.fixture
    def table(self, spark: SparkSession, tmp_path: Path) -> ShapeTable:
        """At offset 100, and may be widened."""
        table = ShapeTable(spark, str(tmp_path / "table"), AppId("1", "shape", 1))
        rows = spark.createDataFrame(
            [(1, Decimal("1.25"), 0.1), (2, None, 0.0), (3, Decimal("3.00"), -0.0)],
            "id int, d decimal(10,2), r float",
        )
        table.overwrite_from(rows.coalesce(1), 100, ["id"])
        spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{TYPE_WIDENING}' = 'true')")
        return table

    def test_a_wider_type_is_a_commit_of_its_own_that_a_crash_may_leave(
        self, spark: SparkSession, table: ShapeTable, tmp_path: Path
    ) -> None:
        wider = [Column("d", "numeric(12,2)"), Column("id", "integer")]
        table.widen(wider)
        assert operations(tmp_path / "table")[-1] == "CHANGE COLUMN"
        before = table.read_state()
        assert before.offset == 100

        another = ShapeTable(spark, table.path, AppId("1", "shape", 1))
        another.widen(wider)

        assert another.state_to_build_on() == before, "nobody else's rows, and nothing is done twice"
        assert dict(spark.read.format("delta").load(table.path).dtypes)["d"] == "decimal(12,2)"

    def test_a_table_whose_owner_does_not_let_it_stays(
        self, spark: SparkSession, table: ShapeTable, tmp_path: Path
    ) -> None:
        spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{TYPE_WIDENING}' = 'false')")
        assert not table.widen([Column("d", "numeric(12,2)")]), "it has had types that Delta widened"
        rows = spark.createDataFrame([(1, Decimal("1.25"), 0.1)], "id bigint, d decimal(10,2), r float")
        assert merge_difference(table, rows, 200, ["id"]) is None
        assert operations(tmp_path / "table")[-1] == "SET TBLPROPERTIES"

    def test_only_what_differs_is_written(
        self, spark: SparkSession, table: ShapeTable, tmp_path: Path
    ) -> None:
        rows = spark.createDataFrame(
            [(1, Decimal("1.25"), 0.1), (3, Decimal("3.00"), 0.0), (4, None, None)],
            "id bigint, d decimal(10,2), r float",
        )

        assert merge_difference(table, rows, 200, ["id"]) == 200

        assert in_spark(spark, tmp_path / "table") == sorted(tuple(row) for row in rows.collect())
        metrics = spark.sql(f"DESCRIBE HISTORY delta.`{table.path}` LIMIT 1").collect()[0]["operationMetrics"]
        counts = [metrics[f"numTargetRows{what}"] for what in ("Inserted", "Updated", "Deleted")]
        assert counts == ["1", "1", "1"], "-0.0 is another value"

    def test_the_change_feed_has_what_differs(self, spark: SparkSession, table: ShapeTable) -> None:
        spark.sql(
            f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
        )
        before = table.read_state().version
        rows = spark.createDataFrame(
            [(1, Decimal("1.25"), 0.1), (3, Decimal("3.00"), -0.0), (4, None, None)],
            "id bigint, d decimal(10,2), r float",
        )
        assert merge_difference(table, rows, 200, ["id"]) == 200

        feed = spark.read.format("delta").option("readChangeFeed", "true")
        # Delta refuses a range that begins before the new type.
        changes = feed.option("startingVersion", before + 1).load(table.path)

        assert sorted((row["_change_type"], row["id"]) for row in changes.collect()) == [
            ("delete", 2),
            ("insert", 4),
        ]

    def test_files_with_the_former_type_are_found_by_what_they_hold(
        self, spark: SparkSession, table: ShapeTable
    ) -> None:
        """By their statistics, which are those of the former type."""
        table.change_types({"id": "bigint", "d": "decimal(12,2)"})
        found = spark.read.format("delta").load(table.path)
        for condition, count in (("id = 2L", 1), ("id > 2L", 1), ("d = 1.25BD", 1), ("d < 3BD", 1)):
            assert found.where(condition).count() == count, condition

    def test_upkeep_and_a_new_snapshot_keep_to_wider_types(
        self, spark: SparkSession, table: ShapeTable, tmp_path: Path
    ) -> None:
        table.change_types({"id": "bigint", "d": "decimal(12,2)"})
        before = in_spark(spark, tmp_path / "table")
        rewrite(spark, table.path, table.files(["id"]).all(), ["id"], 10)
        assert in_spark(spark, tmp_path / "table") == before
        assert table.state_to_build_on().offset == 100

        table.overwrite_from(spark.createDataFrame([(1, "x")], "id bigint, d string"), 300, ["id"])

        assert table.may_widen(), "it is the owner's to take it back"

    def test_tables_are_made_so_that_they_may_be_widened(self, spark: SparkSession, tmp_path: Path) -> None:
        """As docs/shapes.md says how."""
        name = f"spark.databricks.delta.properties.defaults.{TYPE_WIDENING.removeprefix('delta.')}"
        spark.conf.set(name, "true")
        made = ShapeTable(spark, str(tmp_path / "table"), AppId("1", "shape", 1))
        made.overwrite_from(spark.createDataFrame([(1,)], "id int"), 100, ["id"])
        assert made.may_widen()
        made.change_types({"id": "bigint"})
        assert in_spark(spark, tmp_path / "table") == [(1,)]

    def test_what_is_not_merely_wider_is_replaced(self, spark: SparkSession, table: ShapeTable) -> None:
        for ddl, version in (
            ("id int, d decimal(10,2), r float", 200),
            ("id bigint, d decimal(12,4), r float", 200),
            ("id bigint, d decimal(10,2), r double", 200),
            ("id bigint, d decimal(10,2)", 200),
            ("id bigint, d decimal(10,2), r float, more int", 200),
            ("id bigint, d decimal(10,2), r float", 100),
        ):
            assert merge_difference(table, spark.createDataFrame([], ddl), version, ["id"]) is None, ddl
        spark.sql(f"DELETE FROM delta.`{table.path}` WHERE id = 1")
        wider = spark.createDataFrame([], "id bigint, d decimal(10,2), r float")
        assert merge_difference(table, wider, 200, ["id"]) is None, "others have changed rows"


@pytest.mark.parametrize(
    ("old", "new", "can"),
    [
        ("smallint", "int", True),
        ("int", "bigint", True),
        ("float", "double", False),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(12,4)", False),
        ("decimal(10,2)", "decimal(10,2)", False),
        ("decimal(12,2)", "decimal(10,2)", False),
        ("bigint", "int", False),
        ("int", "double", False),
        ("int", "string", False),
    ],
)
def test_what_can_be_widened(old: str, new: str, can: bool) -> None:
    assert can_be_widened(new, old) is can
