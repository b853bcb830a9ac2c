"""How long records wait while changes come at a steady rate, and whose time it is.

`python -m penstock.bench.load --runs 5` measures this alone, as often as asked.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Final, NamedTuple

import psycopg

from penstock.bench.backlog import INSERT_ROWS, create_orders
from penstock.bench.capture_run import CaptureRun
from penstock.bench.cores import one_core_apart
from penstock.bench.measures import throughput
from penstock.bench.responder import Responder
from penstock.bench.table import Row, print_table, say
from penstock.local.postgres import PrivatePostgres

_ROWS_EACH: Final = 200
_BACKLOG: Final = 100_000
_BOUND: Final = "0.01"
"""The bucket of the default KINESIS_BATCH_MAX_DELAY_MS."""


class Load(NamedTuple):
    """What one run at a steady rate gave."""

    rate: float
    metrics: Mapping[str, float]
    core_wait_share: float
    """Share of the time in which capture's main thread was ready to run and had no core."""
    idle_share: float
    """Share of the machine's CPU time that nobody used."""
    commit_to_sink_ms: list[float]
    """From the commit to the responder, the first record of each request."""

    def over(self, histogram: str, bound: str = _BOUND) -> tuple[int, int]:
        """How many of a histogram's observations exceed a bucket's bound, and of how many."""
        count = self.metrics[f"penstock_{histogram}_seconds_count"]
        within = self.metrics[f'penstock_{histogram}_seconds_bucket{{le="{bound}"}}']
        return int(count - within), int(count)

    def longest_ms(self, histogram: str) -> float:
        """The longest wait of a histogram that keeps it."""
        return self.metrics[f"penstock_{histogram}_longest_seconds"] * 1e3

    def p99_ms(self, histogram: str) -> float:
        """The lowest bucket that holds 99 of 100 observations: p99 is not above its bound."""
        prefix = f'penstock_{histogram}_seconds_bucket{{le="'
        buckets = {
            float(name.removeprefix(prefix).removesuffix('"}')): count
            for name, count in self.metrics.items()
            if name.startswith(prefix)
        }
        enough = 0.99 * max(buckets.values())
        return min(bound for bound, count in buckets.items() if count >= enough) * 1e3


def loaded_wait(say: Callable[[str], None], *, rate: float, seconds: float) -> list[Row]:
    """Run at this rate and tell what is whose; twice, since who waits for a core waits everywhere.

    Postgres, the writer and the responder are on other machines, usually. First capture has a core of its
    own, which is the batcher's measure; then all share all cores.
    """
    say(f"{rate:,.0f} changes/s for {seconds:.0f} s, capture on a core of its own")
    with one_core_apart() as core:
        apart = _run(rate=rate, seconds=seconds, core=core)
    say(f"{rate:,.0f} changes/s for {seconds:.0f} s, all on all cores")
    shared = _run(rate=rate, seconds=seconds, core=None)
    return [
        *_rows("load, capture on a core of its own", apart, rate, judged=core is not None),
        *_rows("load, all share all cores", shared, rate, judged=False),
    ]


def _rows(title: str, load: Load, rate: float, *, judged: bool) -> list[Row]:
    over, records = load.over("batcher_wait")
    over_socket, requests = load.over("batch_wait")
    p50, p99 = median(load.commit_to_sink_ms), quantiles(load.commit_to_sink_ms, n=100)[98]
    return [
        Row(f"{title}, changes/s", f"{load.rate:,.0f}", f"{rate:,.0f}", load.rate >= 0.9 * rate),
        Row(
            "… records that were in the batcher for > 10 ms",
            f"{over:,} of {records:,}",
            "0" if judged else "",
            over == 0 if judged else None,
        ),
        Row("… longest in the batcher, ms", f"{load.longest_ms('batcher_wait'):.1f}", "", None),
        Row(
            "… event loop late, p99 and longest, ms",
            f"≤ {load.p99_ms('loop_late'):g} and {load.longest_ms('loop_late'):.1f}",
            "",
            None,
        ),
        Row("… main thread ready but without a core", f"{load.core_wait_share:.1%}", "", None),
        Row("… the machine's idle CPU time", f"{load.idle_share:.0%}", "", None),
        Row(
            "… requests whose oldest record took > 10 ms from the socket",
            f"{over_socket / requests:.2%}",
            "",
            None,
        ),
        Row("… commit to the responder, p50 and p99, ms", f"{p50:.1f} and {p99:.1f}", "", None),
    ]


def _run(*, rate: float, seconds: float, core: int | None) -> Load:
    with ExitStack() as stack:
        postgres = stack.enter_context(PrivatePostgres())
        database = create_orders(postgres)
        responder = stack.enter_context(Responder(keep="first"))
        capture = stack.enter_context(CaptureRun(postgres, database, responder.url))
        connection = stack.enter_context(psycopg.connect(postgres.conninfo(database), autocommit=True))
        if core is not None:
            capture.move_to(core)
        waited, (idle, total) = capture.core_wait_seconds(), _machine_time()
        started = time.monotonic()
        written = _write(connection, rate=rate, seconds=seconds)
        elapsed = time.monotonic() - started
        idle_after, total_after = _machine_time()
        core_wait_share = (capture.core_wait_seconds() - waited) / elapsed
        capture.wait_for_records(responder, written)
        return Load(
            rate=written / elapsed,
            metrics=capture.metrics(),
            core_wait_share=core_wait_share,
            idle_share=(idle_after - idle) / (total_after - total),
            commit_to_sink_ms=list(_commit_to_sink_ms(responder)),
        )


def _write(connection: psycopg.Connection, *, rate: float, seconds: float) -> int:
    started = time.monotonic()
    written = 0
    while (elapsed := time.monotonic() - started) < seconds:
        if written > rate * elapsed:
            time.sleep(0.001)
            continue
        connection.execute(INSERT_ROWS, (written + 1, written + _ROWS_EACH))
        written += _ROWS_EACH
    return written


def _commit_to_sink_ms(responder: Responder) -> Iterator[float]:
    for at, data in responder.report()["kept"]:
        committed = json.loads(base64.b64decode(data))["timestamp"]
        yield (at - datetime.datetime.fromisoformat(committed).timestamp()) * 1e3


def _machine_time() -> tuple[int, int]:
    """Ticks of all cores: idle, and in all."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
    return ticks[3] + ticks[4], sum(ticks)


def main() -> None:
    """Measure as often as asked, and print each run."""
    parser = argparse.ArgumentParser(description="how long records wait at a steady rate")
    parser.add_argument(
        "--rate",
        type=float,
        help="changes a second; unset, half of the maximum, which is measured before each run",
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a run")
    parser.add_argument("--runs", type=int, default=1, help="how often")
    arguments = parser.parse_args()
    with PrivatePostgres() as postgres:
        for _ in range(arguments.runs):
            rows: list[Row] = []
            rate = arguments.rate
            if rate is None:
                rows, maximum = throughput(postgres, say, changes=_BACKLOG, rounds=1)
                rate = maximum / 2
            rows += loaded_wait(say, rate=rate, seconds=arguments.seconds)
            print_table(rows)


if __name__ == "__main__":
    main()
