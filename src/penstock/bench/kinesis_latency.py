"""One row from its commit to its Delta table, through a marked stream; for `penstock bench kinesis`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Final

import psycopg

from penstock.bench.shapes_backlog import ORDERS, create_orders, insert_orders
from penstock.bench.shapes_run import ShapesRun, write_shapes_file
from penstock.bench.stream_capture import SHARDS, StreamCapture
from penstock.bench.table import Row, say
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres

_SLOT: Final = "bench_latency"
_ROWS: Final = 100_000
_WARM: Final = 3
_MOST_S: Final = 4.0


def latency(postgres: PrivatePostgres, kinesis: LocalKinesis, directory: Path, *, commits: int) -> list[Row]:
    """One-row transactions on a table of 100,000 rows, one at a time, to one shape."""
    directory.mkdir()
    kinesis.create_stream(_SLOT, SHARDS)
    database = create_orders(postgres)
    insert_orders(postgres, database, _ROWS)
    file = directory / "shapes.toml"
    write_shapes_file(file, {"orders": str(ORDERS)})
    source = ("--from", f"kinesis://{_SLOT}?slot={_SLOT}")
    with StreamCapture(postgres, database, kinesis, _SLOT) as capture:
        capture.wait_for_start()
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
        Row(
            "one row, commit to visible through the stream, p50",
            f"{p50:.2f} s",
            f"≤ {_MOST_S:.0f} s",
            p50 <= _MOST_S,
        ),
        Row(f"the same, longest of {len(waits)}", f"{max(waits):.2f} s", "", None),
    ]


def _one_row(run: ShapesRun, session: psycopg.Connection, number: int) -> float:
    before = run.commits("orders")
    session.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", (number * 7_919 % _ROWS + 1,))
    committed_at = time.perf_counter()
    run.wait_closely(lambda: run.commits("orders") > before, "a commit")
    return time.perf_counter() - committed_at
