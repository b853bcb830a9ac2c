"""A backlog in a marked stream, and its way into a Delta table; for `penstock bench kinesis`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from penstock.bench.counting_loop import Counted
from penstock.bench.shapes_backlog import ORDERS, Backlog, write_backlog
from penstock.bench.shapes_measures import LAYOUT
from penstock.bench.spark_jobs import Applied, SparkBench
from penstock.bench.spark_source import Read
from penstock.bench.stream_capture import SHARDS, StreamCapture
from penstock.bench.table import Row, say
from penstock.kinesis.read.chain import Chain
from penstock.kinesis.read.manifest_log import Place
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.lake.ports import ChangePart
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.stream_position import StreamPosition
from penstock.shapes.feed.stream_backlog import StreamBacklog
from penstock.shapes.feed.stream_part import RecentBlocks, parts_of
from penstock.shapes.pace.held import whole

SLOT: Final = "bench_stream"
"""And the stream's name."""
_LEAST: Final = 0.6


class FilledStream(NamedTuple):
    """A stream that has the changes of a log."""

    address: StreamAddress
    log: Backlog


def fill_stream(
    postgres: PrivatePostgres, kinesis: LocalKinesis, directory: Path, changes: int
) -> FilledStream:
    """Changes of one table, in a log, and as capture has written them into a stream."""
    say(f"writing a backlog of {changes:,} changes")
    kinesis.create_stream(SLOT, SHARDS)
    databases: list[str] = []

    def prepare(database: str) -> None:
        databases.append(database)
        postgres.psql(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'wal2json')", database)

    log = write_backlog(postgres, directory, changes, changes // 3, prepare)
    say("capture carries it to the stream")
    with StreamCapture(postgres, databases[0], kinesis, SLOT) as capture:
        capture.wait_for(log.up_to + 1)
    return FilledStream(StreamAddress(SLOT, SLOT, SLOT, kinesis.region, kinesis.endpoint_url), log)


def backlog(filled: FilledStream, spark: SparkBench, *, rounds: int) -> list[Row]:
    """The stream into an empty table, and the log into another one, by turns."""
    log = filled.log
    parts, up_to = _parts(filled.address)
    from_log, from_stream = list[Applied](), list[Applied]()
    for number in range(rounds + 1):
        say(f"backlog, round {number} of {rounds}")
        of_log = spark.flush(LAYOUT, log.ranges, log.up_to)
        of_stream = spark.flush(LAYOUT, parts, up_to)
        if number:
            from_log.append(of_log)
            from_stream.append(of_stream)
    log_rates, stream_rates = (
        [log.changes / each.seconds for each in source] for source in (from_log, from_stream)
    )
    ratio = statistics.median(stream_rates) / statistics.median(log_rates)
    return [
        Row(
            f"{log.changes} changes from {SHARDS} shards into a shape, rows/s",
            rates_of(stream_rates),
            "",
            None,
        ),
        Row("the same from the local log, rows/s", rates_of(log_rates), "", None),
        Row("ratio of the medians", f"{ratio:.2f}", f"≥ {_LEAST}", ratio >= _LEAST),
        Row("CPU a row, Java and Python, µs", micros_of(from_stream, log.changes), "", None),
        Row("… from the local log", micros_of(from_log, log.changes), "", None),
    ]


def _parts(address: StreamAddress) -> tuple[Sequence[ChangePart], int]:
    """All that a stream has of the orders, as a shape that is behind reads it."""
    stream = MarkedStream(address)
    begins = stream.begin(None)
    chain: Chain[Place | None] = Chain(slot=address.slot, system=None, applied=begins, place=None)
    held = StreamBacklog(
        StreamPosition.parse(begins), partial(parts_of, address, RecentBlocks()), lambda _link: 1
    )
    held.know(stream.shards())
    while found := stream.more():
        for each in found:
            for link, _ in chain.take(each.manifest, each.place):
                held.append(link, each.at)
    held.flush(0.0)
    up_to = held.last_persisted_txn_offset
    start = whole(StreamPosition.parse(begins).commit_lsn - 1)
    return held.read_plan({ORDERS}, start, up_to), up_to.tx_offset


def rates_of(values: Sequence[float]) -> str:
    """The median of some rates, and between what they are."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def micros_of(found: Sequence[Applied | Read | Counted], changes: int) -> str:
    """The median of what each change took of a processor, and between what it is."""
    micros = [each.cpu_s / changes * 1e6 for each in found]
    return f"{statistics.median(micros):.1f} ({min(micros):.1f} to {max(micros):.1f})"
