"""What `penstock bench capture` measures, one function each."""

from __future__ import annotations

import base64
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median, quantiles
from typing import Final, NamedTuple

import psycopg

from penstock.bench.backlog import (
    INSERT_ROWS,
    create_orders,
    read_with_pg_recvlogical,
    write_backlog,
)
from penstock.bench.capture_run import CaptureRun
from penstock.bench.responder import Responder
from penstock.bench.table import Row
from penstock.capture.ack import AckTracker
from penstock.errors import PenstockError
from penstock.local.postgres import PrivatePostgres

_INSERT: Final = "INSERT INTO orders VALUES (%s, 1, 'open', 1.25, 'latency')"

Say = Callable[[str], None]


class BenchFailed(PenstockError):
    """A measurement could not be made."""


class Drained(NamedTuple):
    """How a capture got through a backlog."""

    rate: float
    cpu_us: float
    """An event."""
    peak_mb: float


def throughput(postgres: PrivatePostgres, say: Say, *, changes: int, rounds: int) -> tuple[list[Row], float]:
    """A backlog, read by pg_recvlogical and by capture in turns; the best round counts for both."""
    rates: list[float] = []
    drained: list[Drained] = []
    for number in range(rounds):
        say(f"backlog of {changes:,} changes, round {number + 1} of {rounds}")
        database = create_orders(postgres)
        write_backlog(postgres, database, changes)
        baseline_s = read_with_pg_recvlogical(postgres, database)
        rates.append(changes / baseline_s)
        drained.append(drain(postgres, database, changes))
        say(f"pg_recvlogical {rates[-1]:,.0f}/s, capture {drained[-1].rate:,.0f}/s")
    baseline, captured = max(rates), max(each.rate for each in drained)
    ratio = median(ours.rate / theirs for theirs, ours in zip(rates, drained, strict=True))
    cpu_us = [each.cpu_us for each in drained]
    rows = [
        Row("pg_recvlogical to /dev/null, events/s", f"{baseline:,.0f}", "", None),
        Row("capture to a local responder, 500 records a request, events/s", f"{captured:,.0f}", "", None),
        Row("ratio, median of the rounds", f"{ratio:.2f}", "≥ 0.70", ratio >= 0.7),
        Row("CPU an event, µs", f"{min(cpu_us):.1f} … {max(cpu_us):.1f}", "≤ 20", max(cpu_us) <= 20),
        Row("peak RSS, MB", f"{max(each.peak_mb for each in drained):.0f}", "", None),
    ]
    return rows, captured


def drain(
    postgres: PrivatePostgres, database: str, changes: int, *, core: int | None = None, **settings: str
) -> Drained:
    """Let a capture with these settings read a backlog, on this core only if there is one."""
    settings = {"KINESIS_BATCH_MAX_RECORDS": "500", **settings}
    with Responder() as responder, CaptureRun(postgres, database, responder.url, **settings) as capture:
        if core is not None:
            capture.move_to(core)
        cpu_before = capture.cpu_seconds()
        capture.wait_for_records(responder, changes)
        seconds = responder.report()["last_at"] - capture.streaming_at
        cpu_us = (capture.cpu_seconds() - cpu_before) / changes * 1e6
        return Drained(changes / seconds, cpu_us, capture.peak_rss_mb())


def idle_latency(postgres: PrivatePostgres, say: Say, *, commits: int) -> list[Row]:
    """One-row commits on an idle line: from before the INSERT is sent until the responder has the record."""
    say(f"{commits} commits, one at a time")
    database = create_orders(postgres)
    sent: dict[int, float] = {}
    with (
        Responder(keep="all") as responder,
        CaptureRun(postgres, database, responder.url) as capture,
        psycopg.connect(postgres.conninfo(database), autocommit=True) as connection,
    ):
        for order in range(1, commits + 1):
            sent[order] = time.time()
            connection.execute(_INSERT, (order,))
            time.sleep(0.02)
        capture.wait_for_records(responder, commits)
        latencies_ms = [(at - sent[order]) * 1e3 for at, order in _arrivals(responder)]
    p50, p99 = median(latencies_ms), quantiles(latencies_ms, n=100)[98]
    return [
        Row("commit to accepted, idle, p50 ms", f"{p50:.1f}", "≤ 5", p50 <= 5),
        Row("commit to accepted, idle, p99 ms", f"{p99:.1f}", "≤ 15", p99 <= 15),
    ]


def _arrivals(responder: Responder) -> Iterator[tuple[float, int]]:
    for at, body in responder.report()["kept"]:
        for record in json.loads(body)["Records"]:
            change = json.loads(base64.b64decode(record["Data"]))
            yield at, change["columns"][0]["value"]


def ack_tracker(say: Say, *, entries: int = 1_000_000) -> list[Row]:
    """Register and mark, in order and in random order, with all entries pending."""
    say(f"AckTracker with {entries:,} entries")
    in_order_rate = max(_ack_in_order(entries) for _ in range(3))
    random_rate, bytes_each = max(_ack_at_random(entries) for _ in range(3))
    return [
        Row("AckTracker, in order, M pairs/s", f"{in_order_rate / 1e6:.2f}", "≥ 2", in_order_rate >= 2e6),
        Row("AckTracker, random order, M pairs/s", f"{random_rate / 1e6:.2f}", "≥ 1", random_rate >= 1e6),
        Row("AckTracker, bytes an entry", f"{bytes_each:.0f}", "< 100", bytes_each < 100),
    ]


def _ack_in_order(entries: int) -> float:
    tracker = AckTracker()
    started = time.perf_counter()
    for lsn in range(entries):
        tracker.mark_published_by_id(tracker.register(lsn))
    return entries / (time.perf_counter() - started)


def _ack_at_random(entries: int) -> tuple[float, float]:
    """Pairs a second, and bytes an entry while all are pending."""
    tracker = AckTracker()
    started = time.perf_counter()
    ids = [tracker.register(lsn) for lsn in range(entries)]
    registered_s = time.perf_counter() - started
    bytes_each = sum(sys.getsizeof(getattr(tracker, name)) for name in AckTracker.__slots__) / entries
    random.Random(1).shuffle(ids)  # noqa: S311 - the same order every time
    started = time.perf_counter()
    for ack_id in ids:
        tracker.mark_published_by_id(ack_id)
    rate = entries / (registered_s + time.perf_counter() - started)
    if tracker.pending_count or tracker.frontier_lsn != entries - 1:
        raise BenchFailed("the AckTracker did not drain")
    return rate, bytes_each


def at_rest(say: Say, *, seconds: float) -> list[Row]:
    """A process that has nothing to do, at a server that has nothing to do: no vacuum after the backlogs."""
    say(f"capture at rest for {seconds:.0f} s")
    with (
        PrivatePostgres() as postgres,
        Responder() as responder,
        CaptureRun(postgres, create_orders(postgres), responder.url) as capture,
    ):
        time.sleep(3)
        before = capture.cpu_seconds()
        time.sleep(seconds)
        cpu = (capture.cpu_seconds() - before) / seconds
        return [
            Row(
                "start to streaming, s",
                f"{capture.seconds_to_streaming:.2f}",
                "< 2",
                capture.seconds_to_streaming < 2,
            ),
            Row("RSS at rest, MB", f"{capture.rss_mb():.0f}", "< 120", capture.rss_mb() < 120),
            Row("CPU at rest", f"{cpu:.2%}", "< 1 %", cpu < 0.01),
        ]


class Sample(NamedTuple):
    """Memory at a moment of the outage."""

    minute: float
    rss_mb: float


def outage(postgres: PrivatePostgres, say: Say, *, minutes: float) -> tuple[list[Row], list[Sample]]:
    """No sink for a while, a 5 MB budget, writers that go on: memory must not grow."""
    say(f"{minutes:g} minutes of sink outage")
    database = create_orders(postgres)
    samples: list[Sample] = []
    # The disconnect is put off beyond the outage, so that all of it is spent with a full queue.
    settings = {"INFLIGHT_MAX_BYTES": "5000000", "SINK_OUTAGE_DISCONNECT_S": str(minutes * 60 + 60)}
    with (
        Responder() as responder,
        CaptureRun(postgres, database, responder.url, **settings) as capture,
        psycopg.connect(postgres.conninfo(database), autocommit=True) as connection,
    ):
        connection.execute(INSERT_ROWS, (1, 20_000))
        capture.wait_for_records(responder, 20_000)
        responder.stop()
        started = time.monotonic()
        written = 20_000
        while (elapsed := time.monotonic() - started) < minutes * 60:
            connection.execute(INSERT_ROWS, (written + 1, written + 500))
            written += 500
            samples.append(Sample(elapsed / 60, capture.rss_mb()))
            time.sleep(0.5)
    # The queue fills in the first seconds; from then on nothing may grow.
    settled = [sample.rss_mb for sample in samples if sample.minute > min(0.5, minutes / 4)]
    growth = max(settled) - settled[0]
    steps = max(abs(after - before) for before, after in pairwise(settled))
    return [
        Row(f"RSS growth in {minutes:g} min of outage, MB", f"{growth:.1f}", "< 5", growth < 5),
        Row("largest step between samples, MB", f"{steps:.1f}", "", None),
    ], samples
