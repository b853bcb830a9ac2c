"""Tables whose owners don't let Delta keep files of the former types get new files, for wider ones."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.decoding.rows import Column
from penstock.lake.delta import retype as retype_module
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.delta_log import delta_log_of
from penstock.lake.delta.rearrange import replacing
from penstock.lake.delta.retype import retype
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.errors import ForeignCommit, TableConflict
from penstock.lake.spark.spark_session import shape_session
from tests.spark.test_widening import operations

WIDER = (Column("d", "numeric(12,2)"), Column("id", "numeric(8,0)"), Column("a.b", "numeric(5,5)"))
ROWS = (
    "VALUES (1BD, 1.25BD, -0.0D, 'x', timestamp_ntz'0001-01-01 00:00:00', X'00ff', 0.00001BD),"
    " (2BD, NULL, double('NaN'), NULL, NULL, NULL, NULL),"
    " (123456BD, 99999999.99BD, 0.1D, '', timestamp_ntz'294246-12-31 23:59:59.999999', X'', -0.99999BD)"
)


def broken(*_: Any) -> list[Any]:
    raise KeyboardInterrupt


def texts(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Rows by what their values print: -0.0 isn't 0.0, NaN is NaN, and no year is too late for Python."""
    printed = [
        F.hex(f"`{name}`") if kind == "binary" else F.col(f"`{name}`").cast("string")
        for name, kind in rows.dtypes
    ]
    return [tuple(row) for row in rows.orderBy("id").select(*printed).collect()]


def keys_by_file(table: ShapeTable) -> list[tuple[Any, ...]]:
    """How many rows each file has, and from which key to which."""
    return sorted((*file.bounds["id"], file.rows) for file in table.files(["id"]).all())


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> ShapeTable:
    """At offset 100, of three files."""
    table = ShapeTable(spark, str(tmp_path / "table"), AppId("1", "shape", 1))
    rows = spark.sql(ROWS).toDF("id", "d", "r", "v", "t", "b", "a.b")
    for name, kind in (("id", "decimal(6,0)"), ("d", "decimal(10,2)")):
        rows = rows.withColumn(name, F.col(name).cast(kind))
    table.overwrite_from(rows.repartitionByRange(3, "id").sortWithinPartitions("id"), 100, ["id"])
    assert not table.may_widen()
    return table


def test_it_is_one_commit_that_changes_nothing_else(
    spark: SparkSession, table: ShapeTable, tmp_path: Path
) -> None:
    where = f"delta.`{table.path}`"
    spark.sql(
        f"ALTER TABLE {where} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'team' = 'sales')"
    )
    spark.sql(f"ALTER TABLE {where} ADD CONSTRAINT few CHECK (d IS NULL OR d < 100000000)")
    spark.sql(f"ALTER TABLE {where} CHANGE COLUMN d d decimal(10,2) COMMENT 'an amount'")
    spark.sql(f"COMMENT ON TABLE {where} IS 'ours'")
    state = table.state_to_build_on()
    before, files = texts(table.rows()), keys_by_file(table)
    assert len(files) == 3
    properties = spark.sql(f"SHOW TBLPROPERTIES {where}").collect()
    assert table.can_have_more_digits()

    assert table.widen(WIDER)

    after = table.state_to_build_on()
    assert after == state._replace(version=state.version + 1)
    assert operations(tmp_path / "table")[-1] == "CHANGE COLUMNS"
    assert texts(table.rows()) == before
    types = dict(table.rows().dtypes)
    assert (types["id"], types["d"], types["a.b"]) == ("decimal(8,0)", "decimal(12,2)", "decimal(5,5)")
    assert spark.sql(f"SHOW TBLPROPERTIES {where}").collect() == properties
    assert spark.sql(f"DESCRIBE DETAIL {where}").collect()[0]["description"] == "ours"
    assert table.rows().schema["d"].metadata == {"comment": "an amount"}
    assert keys_by_file(table) == files, "keys lie as they did"
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    assert feed.option("startingVersion", after.version).load(table.path).count() == 0
    with pytest.raises(PySparkException, match="DELTA_CHANGE_DATA_FEED_INCOMPATIBLE"):
        feed.option("startingVersion", state.version).load(table.path).count()

    another = ShapeTable(spark, table.path, AppId("1", "shape", 1))
    assert not another.widen(WIDER), "who comes after a crash finds it done"
    assert another.state_to_build_on() == after, "nobody else's rows"
    with pytest.raises(Py4JError, match="constraint few"):
        spark.sql(f"INSERT INTO {where} (id, d) VALUES (7, 100000000)")


def test_other_readers_have_the_values(table: ShapeTable) -> None:
    assert table.widen(WIDER)
    found = DeltaTable(table.path).to_pyarrow_table(columns=["id", "d"])
    assert found.schema.field("d").type == pa.decimal128(12, 2)
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": Decimal(1), "d": Decimal("1.25")},
        {"id": Decimal(2), "d": None},
        {"id": Decimal(123456), "d": Decimal("99999999.99")},
    ]


def test_an_empty_table_gets_types_only(spark: SparkSession, table: ShapeTable) -> None:
    table.overwrite_from(table.rows().where("false"), 200, ["id"])
    assert table.widen(WIDER)
    assert dict(table.rows().dtypes)["d"] == "decimal(12,2)"
    assert table.state_to_build_on().offset == 200


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {} (id, d) VALUES (7, 7)",
        "DELETE FROM {} WHERE id = 1",
        "OPTIMIZE {}",
        "ALTER TABLE {} SET TBLPROPERTIES ('team' = 'sales')",
    ],
)
def test_who_commits_meanwhile_loses_nothing(
    spark: SparkSession, table: ShapeTable, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shape_session(spark)

    def replacing_late(*arguments: Any) -> list[Any]:
        other.sql(statement.format(f"delta.`{table.path}`"))
        # It is the thread's session that Delta asks for.
        delta_log_of(spark, table.path)
        return replacing(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(retype_module, "replacing", replacing_late)
        before = table.read_state()
        with pytest.raises(TableConflict):
            table.widen(WIDER)

    assert table.read_state() == before._replace(version=before.version + 1), "theirs alone"
    assert dict(table.rows().dtypes)["d"] == "decimal(10,2)"
    if statement.startswith(("INSERT", "DELETE")):
        with pytest.raises(ForeignCommit):
            table.widen(WIDER)
    else:
        assert table.widen(WIDER)


def test_a_crash_before_the_commit_leaves_the_table(
    table: ShapeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rows = table.read_state(), texts(table.rows())
    with monkeypatch.context() as patched:
        patched.setattr(retype_module, "replacing", broken)
        with pytest.raises(KeyboardInterrupt):
            table.widen(WIDER)
    assert table.read_state() == before
    assert texts(table.rows()) == rows
    assert table.widen(WIDER)
    assert texts(table.rows()) == rows


def test_a_table_that_moved_since_it_was_looked_at_stays(spark: SparkSession, table: ShapeTable) -> None:
    version = table.read_state().version
    spark.sql(f"OPTIMIZE delta.`{table.path}`")
    with pytest.raises(TableConflict):
        retype(spark, table.path, {"d": "decimal(12,2)"}, version)


@pytest.mark.parametrize(
    "properties",
    [
        "'delta.columnMapping.mode' = 'name'",
        "'delta.enableDeletionVectors' = 'true'",
        "'delta.enableRowTracking' = 'true'",
    ],
)
def test_a_table_with_more_to_it_stays(spark: SparkSession, table: ShapeTable, properties: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({properties})")
    before = table.read_state()
    assert not table.can_have_more_digits()
    assert not table.widen(WIDER)
    with pytest.raises(TableConflict):
        retype(spark, table.path, {"d": "decimal(12,2)"}, before.version)
    assert table.read_state() == before
