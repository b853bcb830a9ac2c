"""One row from its commit to its Delta table, through a marked stream; for `penstock bench kinesis`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from penstock.bench.shapes_backlog import ORDERS, create_orders, insert_orders
from penstock.bench.shapes_run import ShapesRun, write_shapes_file
from penstock.bench.stream_capture import SHARDS, StreamCapture
from penstock.bench.table import Row, say, seconds_of
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres

_SLOT: Final = "bench_latency"
_ROWS: Final = 100_000
_WARM: Final = 3
_MOST_S: Final = 4.0


def latency(postgres: PrivatePostgres, kinesis: LocalKinesis, directory: Path, *, commits: int) -> list[Row]:
    """One-row transactions on a table of 100,000 rows, one at a time, to one shape.

    Through the stream, and then to a service that has a slot of its own.
    """
    kinesis.create_stream(_SLOT, SHARDS)
    database = create_orders(postgres)
    insert_orders(postgres, database, _ROWS)
    source = ("--from", f"kinesis://{_SLOT}?slot={_SLOT}")
    with StreamCapture(postgres, database, kinesis, _SLOT) as capture:
        capture.wait_for_start()
        from_stream = _timed(postgres, database, directory / "stream", commits, source, kinesis.env())
    from_slot = _timed(postgres, database, directory / "slot", commits, (), {})
    p50 = statistics.median(each.seconds for each in from_stream)
    return [
        Row(
            "one row, commit to visible through the stream, p50",
            seconds_of([each.seconds for each in from_stream]),
            f"≤ {_MOST_S:.0f} s",
            p50 <= _MOST_S,
        ),
        Row("the same from a slot of its own", seconds_of([each.seconds for each in from_slot]), "", None),
        Row("CPU of Python and Java for it", seconds_of([each.cpu_s for each in from_stream]), "", None),
        Row("… from a slot of its own", seconds_of([each.cpu_s for each in from_slot]), "", None),
    ]


class _Seen(NamedTuple):
    """A row that came into its table."""

    seconds: float
    cpu_s: float


def _timed(
    postgres: PrivatePostgres,
    database: str,
    directory: Path,
    commits: int,
    arguments: Sequence[str],
    variables: Mapping[str, str],
) -> list[_Seen]:
    directory.mkdir(parents=True)
    file = directory / "shapes.toml"
    write_shapes_file(file, {"orders": str(ORDERS)})
    with (
        ShapesRun(
            postgres, database, file, counts_bytes=False, arguments=arguments, variables=variables
        ) as run,
        psycopg.connect(postgres.conninfo(database), autocommit=True) as session,
    ):
        run.wait_for_snapshots(1)
        say(f"{commits} one-row transactions, {directory.name}")
        return [_one_row(run, session, number) for number in range(commits + _WARM)][_WARM:]


def _one_row(run: ShapesRun, session: psycopg.Connection, number: int) -> _Seen:
    before, cpu_before_s = run.commits("orders"), run.cpu_seconds()
    session.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", (number * 7_919 % _ROWS + 1,))
    committed_at = time.perf_counter()
    run.wait_closely(lambda: run.commits("orders") > before, "a commit")
    return _Seen(time.perf_counter() - committed_at, run.cpu_seconds() - cpu_before_s)
