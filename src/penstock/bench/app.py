"""`penstock bench capture`: measure, print the table, keep it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock import exit_codes
from penstock.bench import measures
from penstock.bench.load import loaded_wait
from penstock.bench.measures import Sample
from penstock.bench.plot import line_plot
from penstock.bench.table import Row, print_table, say, write_markdown
from penstock.local.postgres import PrivatePostgres


def bench_capture(
    *, changes: int, rounds: int, outage_minutes: float, markdown: Path | None, plot: Path | None
) -> int:
    """Run every measurement; OK if all targets were reached, FAILED otherwise."""
    rows: list[Row] = []
    with PrivatePostgres() as postgres:
        measured, rate = measures.throughput(postgres, say, changes=changes, rounds=rounds)
        rows += measured
        rows += measures.idle_latency(postgres, say, commits=300)
        rows += loaded_wait(say, rate=rate / 2, seconds=10)
        rows += measures.ack_tracker(say)
        rows += measures.at_rest(say, seconds=20)
        if outage_minutes:
            measured, samples = measures.outage(postgres, say, minutes=outage_minutes)
            rows += measured
            _keep_plot(plot, samples)
    print_table(rows)
    if markdown is not None:
        write_markdown(markdown, rows)
    return exit_codes.OK if all(row.reached is not False for row in rows) else exit_codes.FAILED


def _keep_plot(path: Path | None, samples: Sequence[Sample]) -> None:
    if path is not None:
        points = [(sample.minute, sample.rss_mb) for sample in samples]
        path.write_text(line_plot(points, x_label="minutes of outage", y_label="RSS, MB"))
