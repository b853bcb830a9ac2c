"""What a batch of a running query costs that has nothing, or one row; for `penstock bench kinesis`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psycopg

from penstock.bench.shapes_backlog import ORDERS, create_orders
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.spark_source import Batch, RunningQuery
from penstock.bench.stream_capture import SHARDS, StreamCapture
from penstock.bench.table import Row, say, seconds_of
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres

_SLOT: Final = "bench_batches"
_WARM: Final = 3
_MOST_S: Final = 0.6
_ALL: Final = "triggerExecution"
_OTHERS: Final = "CREATE TABLE others (id int PRIMARY KEY)"
_NOTHING: Final = "INSERT INTO others VALUES ({})"
_ONE_ROW: Final = "INSERT INTO orders VALUES ({}, 1, 'open', 1.25, 'one row')"


def batches(
    postgres: PrivatePostgres, kinesis: LocalKinesis, spark: SparkBench, directory: Path, *, commits: int
) -> list[Row]:
    """One transaction at a time, and the batch that has it, as Spark reports it."""
    kinesis.create_stream(_SLOT, SHARDS)
    database = create_orders(postgres)
    postgres.psql(_OTHERS, database)
    address = StreamAddress(_SLOT, _SLOT, _SLOT, kinesis.region, kinesis.endpoint_url)
    with StreamCapture(postgres, database, kinesis, _SLOT) as capture:
        capture.wait_for_start()
        with (
            psycopg.connect(postgres.conninfo(database), autocommit=True) as session,
            spark.source(address).running(ORDERS, directory / "checkpoint") as query,
        ):
            query.next_batch(0)  # from here on the stream is followed
            say(f"{commits} transactions of one row, and {commits} of another table's")
            ones = _timed(session, query, _ONE_ROW, 1, commits)
            nones = _timed(session, query, _NOTHING, 0, commits)
    return [*_rows("one-row", ones), *_rows("empty", nones)]


def _timed(
    session: psycopg.Connection, query: RunningQuery, statement: str, rows: int, commits: int
) -> list[Batch]:
    found = []
    for number in range(commits + _WARM):
        session.execute(statement.format(number).encode())
        found.append(query.next_batch(rows))
    return found[_WARM:]


def _rows(kind: str, found: Sequence[Batch]) -> list[Row]:
    seconds = [each.stages_ms[_ALL] / 1000 for each in found]
    stages = {
        name: statistics.median(each.stages_ms.get(name, 0) for each in found) / 1000
        for name in found[0].stages_ms
        if name != _ALL
    }
    told = ", ".join(f"{name} {value:.2f}" for name, value in stages.items())
    p50 = statistics.median(seconds)
    return [
        Row(f"{kind} batch, p50", seconds_of(seconds), f"≤ {_MOST_S} s", p50 <= _MOST_S),
        Row("… medians of its stages, s", told, "", None),
    ]
