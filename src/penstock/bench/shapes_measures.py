"""What `penstock bench shapes` measures."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from pathlib import Path
from typing import Final

import psycopg

from penstock.bench.shapes_backlog import COLUMNS, KEY, ORDERS, write_backlog
from penstock.bench.shapes_run import ShapesRun, write_shapes_file
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.table import Row, say
from penstock.lake.jobs.changes import ShapeLayout
from penstock.local.postgres import PrivatePostgres
from penstock.local.postgres_programs import PostgresPrograms
from penstock.postgres.connection import connection_parameters
from penstock.postgres.snapshot.export import export_snapshot

_IDLE_S: Final = 20.0
LAYOUT: Final = ShapeLayout(
    str(ORDERS), COLUMNS, KEY, tuple(column.name for column in COLUMNS), plugin="wal2json"
)


def backlog(
    postgres: PrivatePostgres, spark: SparkBench, directory: Path, *, changes: int, rounds: int
) -> list[Row]:
    """A backlog into an empty table, against plain PySpark on the same segments; the first round warms up."""
    say(f"writing a backlog of {changes} changes")
    waiting = write_backlog(postgres, directory, changes, keys=changes // 3)
    ours, plain, stages = [], [], []
    for number in range(rounds + 1):
        say(f"backlog, round {number} of {rounds}")
        seconds = spark.plain(LAYOUT, waiting.ranges)
        applied = spark.flush(LAYOUT, waiting.ranges, waiting.up_to)
        if number:
            plain.append(waiting.changes / seconds)
            ours.append(waiting.changes / applied.seconds)
            stages.append(applied.stages)
    return [
        Row(f"{waiting.changes} changes into a shape, rows/s", _spread(ours), "", None),
        Row("plain PySpark: the same segments, from_json, Parquet, rows/s", _spread(plain), "", None),
        _ratio("ratio of the medians", ours, plain, 0.5),
        *(
            Row(
                f"of a flush: {stage}", f"{statistics.median(each[stage] for each in stages):.2f} s", "", None
            )
            for stage in stages[0]
        ),
    ]


def snapshot(
    postgres: PrivatePostgres, spark: SparkBench, database: str, *, rows: int, rounds: int
) -> list[Row]:
    """A snapshot into Delta with two tasks, against psql; the first round warms up."""
    ours, psql = [], []
    for number in range(rounds + 1):
        say(f"snapshot of {rows} rows, round {number} of {rounds}")
        psql_s = _copy_with_psql(postgres, database)
        ours_s = asyncio.run(_snapshot(spark))
        if number:
            psql.append(rows / psql_s)
            ours.append(rows / ours_s)
    return [
        Row(f"snapshot of {rows} rows into Delta, rows/s", _spread(ours), "", None),
        Row("psql \\copy to /dev/null, rows/s", _spread(psql), "", None),
        _ratio("ratio of the medians", ours, psql, 0.2),
    ]


async def _snapshot(spark: SparkBench) -> float:
    parameters = connection_parameters(connect_timeout_s=10, silence_limit_s=30, role="bench")
    async with export_snapshot(parameters, plugin="wal2json") as exported:
        parts = await exported.parts([ORDERS])
        return await asyncio.to_thread(spark.snapshot, LAYOUT, parts, exported.name)


def _copy_with_psql(postgres: PrivatePostgres, database: str) -> float:
    psql = str(PostgresPrograms.find().bindir / "psql")
    command = [psql, postgres.conninfo(database), "--quiet", "--command", "\\copy orders TO /dev/null"]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - started


def latency(
    postgres: PrivatePostgres,
    database: str,
    directory: Path,
    *,
    rows: int,
    shapes: int,
    commits: int,
    limit_s: float,
) -> list[Row]:
    """Commit to visible in Delta, one-row transactions, as the running service does it; then at rest."""
    directory.mkdir()
    file = directory / f"shapes{shapes}.toml"
    names = [f"orders_{number}" for number in range(shapes)]
    write_shapes_file(file, dict.fromkeys(names, str(ORDERS)))
    with (
        ShapesRun(postgres, database, file) as run,
        psycopg.connect(postgres.conninfo(database), autocommit=True) as session,
    ):
        say(f"snapshots of {shapes} shapes")
        run.wait_for_snapshots(shapes)
        table_bytes = run.table_bytes(names[0])
        say(f"{commits} one-row transactions into {shapes} shapes")
        waits, read = [], []
        for number in range(commits + 3):
            seconds, bytes_read = _one_row(run, session, names, (number * 378_551 + shapes) % rows + 1)
            # The first few warm up Java.
            if number >= 3:
                waits += seconds
                read.append(bytes_read / shapes)
        found = [
            _limit(
                f"one row, commit to visible, {_shapes(shapes)}, p50",
                statistics.median(waits),
                f"≤ {limit_s:.0f} s",
                limit_s,
            ),
            Row(f"the same, longest of {len(waits)}", f"{max(waits):.2f} s", "", None),
            _read_row(statistics.median(read) / table_bytes, shapes),
        ]
        return [*found, _idle(run, shapes)]


def _one_row(
    run: ShapesRun, session: psycopg.Connection, names: list[str], row: int
) -> tuple[list[float], int]:
    """How long a change takes to each of the tables, and what was read meanwhile."""
    before = {name: run.commits(name) for name in names}
    read_before = run.bytes_read()
    session.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", (row,))
    committed_at = time.perf_counter()
    waits: dict[str, float] = {}

    def all_are_there() -> bool:
        for name in names:
            if name not in waits and run.commits(name) > before[name]:
                waits[name] = time.perf_counter() - committed_at
        return len(waits) == len(names)

    run.wait_closely(all_are_there, "a commit in each table")
    return list(waits.values()), run.bytes_read() - read_before


def _idle(run: ShapesRun, shapes: int) -> Row:
    say(f"{_shapes(shapes)} at rest for {_IDLE_S:.0f} s")
    # What the last flush left behind (compilation, cleaning) is not rest.
    time.sleep(5.0)
    before = run.cpu_seconds()
    time.sleep(_IDLE_S)
    share = (run.cpu_seconds() - before) / _IDLE_S
    return Row(
        f"at rest, {_shapes(shapes)}, CPU of Python and Java", f"{share:.1%} of a core", "< 5 %", share < 0.05
    )


def _read_row(share: float, shapes: int) -> Row:
    what = f"bytes that Spark's tasks read for one row, {_shapes(shapes)}, of a table's"
    return Row(what, f"{share:.1%}", "≤ 10 %", share <= 0.1)


def _ratio(what: str, ours: list[float], others: list[float], target: float) -> Row:
    ratio = statistics.median(ours) / statistics.median(others)
    return Row(what, f"{ratio:.2f}", f"≥ {target}", ratio >= target)


def _limit(what: str, seconds: float, target: str, limit_s: float) -> Row:
    return Row(what, f"{seconds:.2f} s", target, seconds <= limit_s)


def _spread(values: list[float]) -> str:
    """The median, and between what."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def _shapes(count: int) -> str:
    return "1 shape" if count == 1 else f"{count} shapes"
