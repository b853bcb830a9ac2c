"""`penstock bench kinesis`: shapes from a marked stream, beside the same from a log."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from penstock.bench.shapes_backlog import ORDERS, create_orders, insert_orders, write_backlog
from penstock.bench.shapes_measures import LAYOUT
from penstock.bench.shapes_run import ShapesRun, write_shapes_file
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.table import Row, print_table, say, verdict, write_markdown
from penstock.kinesis.read.chain import Chain
from penstock.kinesis.read.manifest_log import Place
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.lake.ports import ChangePart
from penstock.local.kinesis import LocalKinesis
from penstock.local.penstock_process import PenstockProcess
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn
from penstock.model.stream_position import StreamPosition
from penstock.shapes.feed.stream_backlog import StreamBacklog
from penstock.shapes.feed.stream_part import RecentBlocks, parts_of
from penstock.shapes.pace.held import whole

_SHARDS: Final = 4
_SLOT: Final = "bench_stream"
_PATIENCE_S: Final = 1800.0
_WARM: Final = 3
_CONFIRMED: Final = "SELECT slot_name::text, confirmed_flush_lsn::text FROM pg_replication_slots"
_ROWS: Final = 100_000


def bench_kinesis(*, changes: int, rounds: int, commits: int, markdown: Path | None) -> int:
    """Measure; returns 0 if all targets were reached, 1 otherwise."""
    found: list[Row] = []
    try:
        with (
            PrivatePostgres() as postgres,
            LocalKinesis() as kinesis,
            tempfile.TemporaryDirectory(prefix="penstock-bench-") as name,
        ):
            os.environ.update(kinesis.env())
            found += _backlog(postgres, kinesis, Path(name), changes=changes, rounds=rounds)
            found += _latency(postgres, kinesis, Path(name) / "latency", commits=commits)
    finally:
        print_table(found)
        print(verdict(found))
        if markdown is not None:
            write_markdown(markdown, found)
    return 0 if all(row.reached is not False for row in found) else 1


class _Capture(PenstockProcess):
    """Writes a database's changes into a marked stream."""

    def __init__(self, postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, slot: str) -> None:
        self._postgres = postgres
        self._slot = slot
        variables = {
            "KINESIS_STREAM": slot,
            "REPLICATION_SLOT": slot,
            "KINESIS_MARKED_STREAM": "true",
            "SLOT_NOTE": "false",
        }
        super().__init__(["capture"], {**postgres.env(database), **kinesis.env(), **variables})

    def wait_for(self, lsn: int) -> None:
        """Wait until everything up to here is in the stream."""

        def is_there() -> bool:
            slots = dict(self._postgres.psql(_CONFIRMED))
            return slots.get(self._slot) is not None and parse_lsn(slots[self._slot]) >= lsn

        self.wait_until(is_there, "everything in the stream", _PATIENCE_S, poll_s=0.2)


def _backlog(
    postgres: PrivatePostgres, kinesis: LocalKinesis, directory: Path, *, changes: int, rounds: int
) -> list[Row]:
    say(f"writing a backlog of {changes} changes")
    kinesis.create_stream(_SLOT, _SHARDS)
    databases: list[str] = []

    def prepare(database: str) -> None:
        databases.append(database)
        postgres.psql(f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'wal2json')", database)

    waiting = write_backlog(postgres, directory, changes, changes // 3, prepare)
    say("capture carries it to the stream")
    with _Capture(postgres, databases[0], kinesis, _SLOT) as capture:
        capture.wait_for(waiting.up_to + 1)
    parts, up_to = _parts(StreamAddress(_SLOT, _SLOT, _SLOT, kinesis.region, kinesis.endpoint_url))
    from_log, from_stream = [], []
    with closing(SparkBench(directory)) as spark:
        for number in range(rounds + 1):
            say(f"backlog, round {number} of {rounds}")
            log_s = spark.flush(LAYOUT, waiting.ranges, waiting.up_to).seconds
            stream_s = spark.flush(LAYOUT, parts, up_to).seconds
            if number:
                from_log.append(waiting.changes / log_s)
                from_stream.append(waiting.changes / stream_s)
    ratio = statistics.median(from_stream) / statistics.median(from_log)
    return [
        Row(
            f"{waiting.changes} changes from {_SHARDS} shards into a shape, rows/s",
            _spread(from_stream),
            "",
            None,
        ),
        Row("the same from the local log, rows/s", _spread(from_log), "", None),
        Row("ratio of the medians", f"{ratio:.2f}", "≥ 0.6", ratio >= 0.6),
    ]


def _parts(address: StreamAddress) -> tuple[Sequence[ChangePart], int]:
    """All that a stream has of the orders, as a shape that is behind reads it."""
    stream = MarkedStream(address)
    begins = stream.begin(None)
    chain: Chain[Place | None] = Chain(slot=address.slot, system=None, applied=begins, place=None)
    backlog = StreamBacklog(
        StreamPosition.parse(begins), partial(parts_of, address, RecentBlocks()), lambda _link: 1
    )
    backlog.know(stream.shards())
    while found := stream.more():
        for each in found:
            for link, _ in chain.take(each.manifest, each.place):
                backlog.append(link, each.at)
    backlog.flush(0.0)
    up_to = backlog.last_persisted_txn_offset
    start = whole(StreamPosition.parse(begins).commit_lsn - 1)
    return backlog.read_plan({ORDERS}, start, up_to), up_to.tx_offset


def _latency(postgres: PrivatePostgres, kinesis: LocalKinesis, directory: Path, *, commits: int) -> list[Row]:
    directory.mkdir()
    slot = "bench_latency"
    kinesis.create_stream(slot, _SHARDS)
    database = create_orders(postgres)
    insert_orders(postgres, database, _ROWS)
    file = directory / "shapes.toml"
    write_shapes_file(file, {"orders": str(ORDERS)})
    source = ("--from", f"kinesis://{slot}?slot={slot}")
    with _Capture(postgres, database, kinesis, slot) as capture:
        capture.wait_until(lambda: capture.events("streaming"), "a capture", _PATIENCE_S)
        with (
            ShapesRun(
                postgres, database, file, counts_bytes=False, arguments=source, variables=kinesis.env()
            ) as run,
            psycopg.connect(postgres.conninfo(database), autocommit=True) as session,
        ):
            run.wait_for_snapshots(1)
            say(f"{commits} one-row transactions through the stream")
            waits = [_one_row(run, session, number) for number in range(commits + _WARM)][_WARM:]
    p50 = statistics.median(waits)
    return [
        Row("one row, commit to visible through the stream, p50", f"{p50:.2f} s", "≤ 4 s", p50 <= 4.0),
        Row(f"the same, longest of {len(waits)}", f"{max(waits):.2f} s", "", None),
    ]


def _one_row(run: ShapesRun, session: psycopg.Connection, number: int) -> float:
    before = run.commits("orders")
    session.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", (number * 7_919 % _ROWS + 1,))
    committed_at = time.perf_counter()
    run.wait_closely(lambda: run.commits("orders") > before, "a commit")
    return time.perf_counter() - committed_at


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
