"""`penstock bench capture`: measure, print the table, keep it."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.bench import measures
from penstock.bench.measures import Row, Sample
from penstock.bench.plot import line_plot
from penstock.local.postgres import PrivatePostgres


def bench_capture(
    *, changes: int, rounds: int, outage_minutes: float, markdown: Path | None, plot: Path | None
) -> int:
    """Run every measurement; returns 0 if all targets were reached, 1 otherwise."""
    console = Console(stderr=True)

    def say(what: str) -> None:
        console.print(f"[dim]{datetime.datetime.now():%H:%M:%S}[/] {what}")

    rows: list[Row] = []
    with PrivatePostgres() as postgres:
        measured, rate = measures.throughput(postgres, say, changes=changes, rounds=rounds)
        rows += measured
        rows += measures.idle_latency(postgres, say, commits=300)
        rows += measures.loaded_wait(postgres, say, rate=rate / 2, seconds=10)
        rows += measures.ack_tracker(say)
        rows += measures.at_rest(postgres, say, seconds=20)
        if outage_minutes:
            measured, samples = measures.outage(postgres, say, minutes=outage_minutes)
            rows += measured
            _keep_plot(plot, samples)
    _print(rows)
    if markdown is not None:
        _write_markdown(markdown, rows)
    return 0 if all(row.reached is not False for row in rows) else 1


def _print(rows: Sequence[Row]) -> None:
    table = Table("measured", "value", "target", "")
    for row in rows:
        table.add_row(row.what, row.value, row.target, _mark(row))
    Console().print(table)


def _write_markdown(path: Path, rows: Sequence[Row]) -> None:
    lines = [
        f"{datetime.date.today()}, {os.cpu_count()} cores, {platform.machine()},"
        f" Python {platform.python_version()}",
        "",
        "| measured | value | target | |",
        "|---|---|---|---|",
        *(f"| {row.what} | {row.value} | {row.target} | {_mark(row)} |" for row in rows),
    ]
    path.write_text("\n".join(lines) + "\n")


def _mark(row: Row) -> str:
    return {None: "", True: "reached", False: "missed"}[row.reached]


def _keep_plot(path: Path | None, samples: Sequence[Sample]) -> None:
    if path is not None:
        points = [(sample.minute, sample.rss_mb) for sample in samples]
        path.write_text(line_plot(points, x_label="minutes of outage", y_label="RSS, MB"))
