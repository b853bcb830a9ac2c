"""The Spark parts of `penstock bench shapes`: our jobs, and the least that plain PySpark can do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from penstock.bench.spark_age import AgingTable
from penstock.bench.spark_source import SparkSource, spark_cpu_seconds
from penstock.bench.spark_table import APP
from penstock.bench.spark_wide import WideTable
from penstock.changelog.index import SegmentRange
from penstock.changelog.segment import read_segment
from penstock.decoding.rows import Column as TableColumn
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.jobs.changes import ShapeLayout, share_out
from penstock.lake.jobs.flush import Flushed, flush
from penstock.lake.jobs.snapshot_source import snapshot_rows
from penstock.lake.ports import ChangePart, ShapeJobs, VerifyJobs
from penstock.lake.spark.spark_session import open_session, shape_session, stop_session
from penstock.lake.storages.opening import Source, open_jobs, open_verify_jobs
from penstock.model.shape import ShapesFile
from penstock.postgres.snapshot.export import SnapshotPart
from penstock.postgres.timeline import ServerIdentity

_FRAME: Final = (
    "action string, columns array<struct<name:string,value:string>>,"
    " identity array<struct<name:string,value:string>>"
)

# What Delta keeps of a MERGE. Its source, which is our fold, is computed once and kept.
_MERGE_TIMES: Final = ("materializeSourceTimeMs", "scanTimeMs", "rewriteTimeMs")


class Applied(NamedTuple):
    """A backlog that was flushed."""

    seconds: float
    cpu_s: float
    """Of the driver, Java and all workers."""
    stages: dict[str, float]
    """Where the seconds went."""


class SparkBench:
    """One Spark with two cores, for everything that is measured side by side."""

    def __init__(self, directory: Path) -> None:
        self._spark = open_session("local[2]", "penstock bench")
        self._directory = directory
        self._tables = 0

    def close(self) -> None:
        """Stop Spark."""
        stop_session(self._spark)

    def flush(self, layout: ShapeLayout, ranges: Sequence[ChangePart], up_to: int) -> Applied:
        """Apply a backlog to a table that is empty."""
        table = self._new_table()
        table.create(_schema(layout.columns), layout.key)
        cpu_before_s, started = spark_cpu_seconds(self._spark), time.perf_counter()
        done = flush(self._spark, table, layout, ranges, up_to)
        seconds = time.perf_counter() - started
        cpu_s = spark_cpu_seconds(self._spark) - cpu_before_s
        return Applied(seconds, cpu_s, self._stages(table, done, seconds))

    def plain(self, layout: ShapeLayout, ranges: Sequence[SegmentRange]) -> float:
        """Seconds that plain PySpark takes: the same segments, from_json to typed columns, Parquet."""
        target = str(self._directory / f"plain-{self._tables}")
        self._tables += 1
        started = time.perf_counter()
        frame = _payloads(self._spark, ranges).select(F.from_json("payload", _FRAME).alias("frame"))
        frame.select(
            F.col("frame.action").alias("action"), *[_typed(column) for column in layout.columns]
        ).write.mode("append").parquet(target)
        return time.perf_counter() - started

    def snapshot(self, layout: ShapeLayout, parts: Sequence[SnapshotPart], name: str) -> float:
        """Seconds that a snapshot takes, into Delta."""
        table = self._new_table()
        started = time.perf_counter()
        rows = snapshot_rows(self._spark, layout.relation, layout.columns, parts, name)
        table.overwrite_from(rows, 1, layout.key)
        return time.perf_counter() - started

    def _stages(self, table: ShapeTable, done: Flushed, seconds: float) -> dict[str, float]:
        (last,) = DeltaTable.forPath(self._spark, table.path).history(1).collect()
        fold, scan, rewrite = (int(last.operationMetrics.get(name, 0)) / 1000 for name in _MERGE_TIMES)
        return {
            "read, decode and survey": done.decode_s,
            "fold": fold,
            "MERGE looks for the rows": scan,
            "MERGE writes files": rewrite,
            "plans, commit, reading back": seconds - done.decode_s - fold - scan - rewrite,
        }

    def aging_table(self, layout: ShapeLayout, rows: int) -> AgingTable:
        """A table of orders that can be made old."""
        return AgingTable(self._spark, self._new_directory("aging"), layout, rows)

    def wide_table(self) -> WideTable:
        """A table with many columns."""
        return WideTable(self._spark, self._new_directory("wide"))

    def source(self, address: StreamAddress) -> SparkSource:
        """A marked stream, read by `format("penstock")`."""
        return SparkSource(shape_session(self._spark), address)

    def shape_jobs(self, file: ShapesFile, identity: ServerIdentity) -> ShapeJobs:
        """What the service does with a file's tables, on this Spark."""
        return open_jobs(self._spark, file, _source(identity))

    def verify_jobs(self, file: ShapesFile, identity: ServerIdentity) -> VerifyJobs:
        """What `penstock verify` does with a file's tables, on this Spark."""
        return open_verify_jobs(self._spark, file, _source(identity))

    def _new_directory(self, kind: str) -> Path:
        self._tables += 1
        directory = self._directory / f"{kind}-{self._tables}"
        directory.mkdir()
        return directory

    def _new_table(self) -> ShapeTable:
        self._tables += 1
        path = str(self._directory / f"table-{self._tables}")
        return ShapeTable(shape_session(self._spark), path, APP)


def _schema(columns: Sequence[TableColumn]) -> StructType:
    return StructType([StructField(column.name, DataType.fromDDL(column.lake.spark)) for column in columns])


def _payloads(spark: SparkSession, ranges: Sequence[SegmentRange]) -> DataFrame:
    tasks = share_out(ranges)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch["id"].to_pylist():
                for part in tasks[number]:
                    for rows in read_segment(part):
                        texts = rows["payload"].cast(pa.string())
                        yield pa.RecordBatch.from_arrays([texts], names=["payload"])

    return spark.range(len(tasks), numPartitions=len(tasks)).mapInArrow(read, "payload string")


def _typed(column: TableColumn) -> Column:
    """A column's value, of the new row or of the old one's key, by its name."""
    cells = F.coalesce("frame.columns", "frame.identity")
    mine = F.filter(cells, lambda cell: cell.getField("name") == column.name)
    return F.get(mine, F.lit(0)).getField("value").cast(column.lake.spark).alias(column.name)


def _source(identity: ServerIdentity) -> Source:
    return Source(identity.system_id, identity.timeline, "wal2json")
