"""A place that several shapes read: Spark reads it once, and each takes its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from penstock.lake.jobs import changes as changes_module
from penstock.lake.jobs import shared
from penstock.lake.jobs.changes import changes_frame
from penstock.lake.spark.spark_session import shape_session
from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.model.relation import Relation
from tests.spark.test_changes import insert, layout

ORDERS = Relation("public", "orders")
OTHERS = Relation("public", "others")
END = LogOffset(99, OP_INFINITY)
SCHEMA = pa.schema(
    [
        pa.field("relation", pa.string()),
        pa.field("tx_offset", pa.int64()),
        pa.field("op_offset", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)


@dataclass(frozen=True)
class Part:
    """One task of a place: an order and something else, in each of two transactions. Says when it is read."""

    task: int
    directory: str
    wanted: frozenset[Relation]
    place: str
    after: LogOffset = BEFORE_ALL
    up_to: LogOffset = END
    size_bytes: int = 10
    wanted_bytes: int = 10

    @property
    def place_schema(self) -> pa.Schema:
        return SCHEMA

    def behind(self, offset: LogOffset) -> Self:
        return replace(self, after=max(self.after, offset))

    def read(self) -> Iterator[pa.RecordBatch]:
        return map(self.select, self.read_place())

    def read_place(self) -> Iterator[pa.RecordBatch]:
        with Path(self.directory, f"task-{self.task}").open("a") as reads:
            reads.write("x")
        for lsn in (10, 20):
            rows = [
                (str(relation), lsn, 2 * self.task, insert(id=100 * self.task + lsn))
                for relation in (ORDERS, OTHERS)
            ]
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = pa.array(sorted(map(str, self.wanted)))
        is_ours = pc.and_(
            pc.is_in(batch["relation"], names), pc.greater(batch["tx_offset"], self.after.tx_offset)
        )
        return batch.filter(is_ours).select(["tx_offset", "op_offset", "payload"])


def ids(spark: SparkSession, parts: list[Part]) -> list[int]:
    with changes_frame(spark, layout("id"), parts) as changes:
        return sorted(row.id for row in changes.select("id").collect())


def test_a_place_is_read_once_and_each_takes_its_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "LOCAL_BYTES", 0)
    monkeypatch.setattr(changes_module, "PLACES", places := shared.SharedPlaces())
    orders = [Part(task, str(tmp_path), frozenset([ORDERS]), "here") for task in (0, 1)]
    both = [replace(part, wanted=frozenset([ORDERS, OTHERS])) for part in orders]
    later = [part.behind(LogOffset(10, OP_INFINITY)) for part in orders]

    def read_each() -> None:
        assert ids(shape_session(spark), orders) == [10, 20, 110, 120]
        assert ids(shape_session(spark), both) == [10, 10, 20, 20, 110, 110, 120, 120]
        assert ids(shape_session(spark), later) == [20, 120]

    read_each()
    reads = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert reads == {"task-0": "x", "task-1": "x"}

    # Beside one that nobody else reads.
    alone = [replace(part, place="", directory=str(tmp_path)) for part in orders]
    assert ids(spark, [*orders, alone[0]]) == [10, 10, 20, 20, 110, 120]
    assert (tmp_path / "task-0").read_text() == "xx"

    monkeypatch.setattr(shared, "_IDLE_S", 0.0)
    elsewhere = [replace(part, place="elsewhere") for part in orders]
    assert ids(spark, elsewhere) == [10, 20, 110, 120]
    assert list(places._places) == ["elsewhere"], "the other one is dropped"
    views = [table.name for table in spark.catalog.listTables("global_temp")]
    assert len([name for name in views if name.startswith("penstock_")]) == 1
