"""What a one-row flush costs on a table that is old, beside a fresh one; for `penstock bench shapes`."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Final

from penstock.bench.spark_age import AgingTable
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.table import Row, say
from penstock.lake.jobs.changes import ShapeLayout

_OLDER_COMMITS: Final = 20_000
_RANDOM_FLUSHES: Final = 50
_RANDOM_UPDATES: Final = 100
_MOST: Final = 1.3


def aging(spark: SparkBench, layout: ShapeLayout, *, rows: int, rounds: int) -> list[Row]:
    """Each kind of age against the fresh table, flush by flush in turn."""
    chosen = random.Random(1)  # noqa: S311 nothing secret hangs on it
    fresh = spark.aging_table(layout, rows)
    found: list[Row] = []

    def many_commits(table: AgingTable) -> None:
        table.grow_old(_OLDER_COMMITS)

    def random_updates(table: AgingTable) -> None:
        for _ in range(_RANDOM_FLUSHES):
            table.update(chosen.sample(range(1, rows + 1), _RANDOM_UPDATES))

    def large_transaction(table: AgingTable) -> None:
        table.insert(range(rows + 1, 4 * rows + 1))
        table.tend()

    ages: dict[str, Callable[[AgingTable], None]] = {
        f"with {_OLDER_COMMITS} older commits": many_commits,
        f"after {_RANDOM_FLUSHES} flushes of {_RANDOM_UPDATES} random updates": random_updates,
        f"after a transaction of {3 * rows} rows, with upkeep": large_transaction,
    }
    for name, grow_old in ages.items():
        say(f"a table of {rows} rows {name}")
        old = spark.aging_table(layout, rows)
        grow_old(old)
        found += _beside(fresh, old, name, chosen, rows, rounds)
    return found


def _beside(
    fresh: AgingTable, old: AgingTable, name: str, chosen: random.Random, rows: int, rounds: int
) -> list[Row]:
    young_s, old_s = [], []
    # The first few warm up Java, and bring each table's files into memory.
    for number in range(rounds + 2):
        ids = [chosen.randint(1, rows)]
        seconds = fresh.update(ids), old.update(ids)
        if number >= 2:
            young_s.append(seconds[0])
            old_s.append(seconds[1])
    young, aged = statistics.median(young_s), statistics.median(old_s)
    return [
        Row(f"one-row flush {name}", f"{aged:.2f} s (fresh: {young:.2f} s)", "", None),
        Row("ratio of the medians", f"{aged / young:.2f}", f"≤ {_MOST}", aged <= _MOST * young),
    ]
