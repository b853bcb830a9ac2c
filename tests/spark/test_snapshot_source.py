"""The snapshot in Spark: each part read by a task of its own, rows typed, errors that say what was wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.decoding.rows import Column, DecodeError
from penstock.errors import ConnectionFailed, PenstockError
from penstock.lake.errors import SparkError
from penstock.lake.jobs.snapshot_source import snapshot_rows
from penstock.lake.spark.spark_session import plain_error
from penstock.local.free_ports import free_port
from penstock.local.postgres import PrivatePostgres
from penstock.model.relation import Relation
from penstock.postgres.connection import connection_parameters
from penstock.postgres.snapshot.export import SnapshotPart, SnapshotStale, export_snapshot

T = Relation("public", "t")
DEADLINE_S = 30.0
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock snapshot'"
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
EVERY_KIND = r"""
CREATE TABLE t (
    "Id" bigint PRIMARY KEY, "a ""b`c" smallint, i int, n numeric(12,2), wide numeric, r real,
    d double precision, yes boolean, raw bytea, day date, at timestamptz, "local" timestamp(3),
    "text" text, doc jsonb, many int[], span interval, of regclass,
    doubled bigint GENERATED ALWAYS AS ("Id" * 2) STORED
);
INSERT INTO t VALUES (
    9007199254740993, -3, 7, 12345.60, 1e40, 1.5, 'NaN', true, '\x00ff', '2024-02-29',
    '2024-01-01 12:00:00.25+02', '2024-01-01 12:00:00.125', E'tab\t line\n back\\ \\N ü', '{"a": 1}',
    '{1,NULL}', '1 day 02:00', 't'
);
INSERT INTO t ("Id") VALUES (1);
"""
INT = [Column("id", "integer")]


class Source(NamedTuple):
    """A database that Spark's tasks find in their environment."""

    postgres: PrivatePostgres
    database: str
    spark: SparkSession

    @property
    def parameters(self) -> dict[str, Any]:
        given = connection_parameters(connect_timeout_s=5, silence_limit_s=10, role="test")
        server = {"host": "127.0.0.1", "port": self.postgres.port, "user": "postgres"}
        return given | server | {"dbname": self.database}

    def psql(self, sql: str) -> list[tuple[Any, ...]]:
        return self.postgres.psql(sql, self.database)

    def rows(self, columns: list[Column], parts: list[SnapshotPart], snapshot: str) -> DataFrame:
        return snapshot_rows(self.spark, "public.t", columns, parts, snapshot)

    def wait_until_sessions(self, there: bool) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while bool(self.psql(SESSIONS)) is not there:
            assert time.monotonic() < deadline, f"sessions there within {DEADLINE_S} s: {not there}"
            time.sleep(0.02)


@pytest.fixture
def source(
    postgres: PrivatePostgres, database: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Source:
    for name, value in postgres.env(database).items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return Source(postgres, database, spark)


async def test_values_of_every_kind_come_typed(source: Source) -> None:
    source.psql(EVERY_KIND)
    columns = [Column(*row) for row in source.psql(COLUMNS)]
    async with export_snapshot(source.parameters, plugin="wal2json") as snapshot:
        parts = await snapshot.parts([T])
        frame = source.rows(columns, parts, snapshot.name)
        found = await asyncio.to_thread(frame.orderBy(F.col("Id").desc()).collect)
    assert frame.schema.simpleString() == (
        'struct<Id:bigint,a "b`c:smallint,i:int,n:decimal(12,2),wide:string,r:float,d:double,yes:boolean,'
        "raw:binary,day:date,at:timestamp,local:timestamp_ntz,text:string,doc:string,many:string,span:string,"
        "of:string,doubled:bigint>"
    )
    first, second = ([*row] for row in found)
    assert str(first.pop(6)) == "nan"
    assert first.pop(9).astimezone(UTC) == datetime(2024, 1, 1, 10, 0, 0, 250_000, tzinfo=UTC)
    assert first == [
        9007199254740993, -3, 7, Decimal("12345.60"), "1" + "0" * 40, 1.5, True, b"\x00\xff",
        date(2024, 2, 29), datetime(2024, 1, 1, 12, 0, 0, 125_000), "tab\t line\n back\\ \\N ü", '{"a": 1}',
        "{1,NULL}", "1 day 02:00:00", "public.t", 18014398509481986,
    ]  # fmt: skip
    assert second == [1, *[None] * 16, 2]


async def test_dozens_of_parts_are_a_partition_each_and_hold_each_row_once(source: Source) -> None:
    source.psql("CREATE TABLE t AS SELECT g AS id, repeat('x', 500) FROM generate_series(1, 2000) g")
    async with export_snapshot(source.parameters, plugin="wal2json") as snapshot:
        parts = await snapshot.parts([T], part_bytes=3 * 8192)
        source.psql("UPDATE t SET id = -id")
        frame = source.rows(INT, parts, snapshot.name)
        spread = frame.groupBy(F.spark_partition_id()).agg(F.collect_list("id"))
        lists = [ids for _, ids in await asyncio.to_thread(spread.collect)]
    assert len(parts) > 40
    assert len(lists) == len(parts)
    assert sorted(number for ids in lists for number in ids) == list(range(1, 2001))
    source.wait_until_sessions(there=False)


async def test_no_parts_are_no_rows(source: Source) -> None:
    assert source.rows(INT, [], "unused").collect() == []


async def test_a_cancelled_job_ends_its_sessions(source: Source) -> None:
    source.psql("CREATE TABLE t AS SELECT g AS id, repeat(md5(g::text), 40) FROM generate_series(1, 40000) g")
    columns = [*INT, Column("repeat", "text")]

    def stuck(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        threading.Event().wait()

    async with export_snapshot(source.parameters, plugin="wal2json") as snapshot:
        parts = await snapshot.parts([T])
        frame = source.rows(columns, parts, snapshot.name)
        job = asyncio.create_task(asyncio.to_thread(failure, frame.mapInArrow(stuck, frame.schema), "stuck"))
        await asyncio.to_thread(source.wait_until_sessions, there=True)
        source.spark.sparkContext.cancelJobGroup("stuck")
        error = await job
        await asyncio.to_thread(source.wait_until_sessions, there=False)
    assert isinstance(error, SparkError)


def failure(frame: DataFrame, group: str = "failing") -> PenstockError:
    """What a job over the frame fails of."""
    frame.sparkSession.sparkContext.setJobGroup(group, group)
    try:
        frame.write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JError) as error:
        return plain_error("lake/t", str(error))
    raise AssertionError("the job did not fail")


async def test_errors_of_postgres_come_back_as_they_were_raised(source: Source) -> None:
    source.psql("CREATE TABLE t AS SELECT 1 AS id")
    async with export_snapshot(source.parameters, plugin="wal2json") as snapshot:
        source.psql("TRUNCATE t")
        frame = source.rows(INT, [SnapshotPart(T, 0, None)], snapshot.name)
        error = await asyncio.to_thread(failure, frame)
    assert isinstance(error, SnapshotStale)
    assert str(error) == (
        "public.t was made, truncated, rewritten or renamed after the snapshot. Take a new snapshot"
    )


def test_a_server_that_is_not_there_is_said(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(source.spark.sparkContext.environment, "PGPORT", str(free_port()))
    error = failure(source.rows(INT, [SnapshotPart(T, 0, None)], "unused"))
    assert isinstance(error, ConnectionFailed)
    assert "can't connect to Postgres" in str(error)
    assert "Connection refused" in str(error)


async def test_values_are_not_shown(source: Source) -> None:
    source.psql("CREATE TABLE t AS SELECT 'secret' AS id")
    async with export_snapshot(source.parameters, plugin="wal2json") as snapshot:
        parts = await snapshot.parts([T])
        misread = source.rows([Column("id", "bigint")], parts, snapshot.name)
        error = await asyncio.to_thread(failure, misread)
        miscast = source.rows([Column("id", "text")], parts, snapshot.name).select(F.col("id").cast("int"))
        other = await asyncio.to_thread(failure, miscast)
    assert isinstance(error, DecodeError)
    assert str(error) == (
        "public.t in its snapshot: column id (bigint): a value does not fit the lake's bigint"
    )
    assert isinstance(other, SparkError)
    assert "CAST_INVALID_INPUT" in str(other)
    assert "secret" not in str(other)
