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
_WARM_UP: Final = 2
_MOST: Final = 1.3


def aging(spark: SparkBench, layout: ShapeLayout, *, rows: int, rounds: int) -> list[Row]:
    """Each kind of age against a fresh table, flush by flush in turn."""
    chosen = random.Random(1)  # noqa: S311 nothing secret hangs on it

    def many_commits(table: AgingTable) -> None:
        table.grow_old(_OLDER_COMMITS)
        say(f"its log holds {table.commits_in_log:,} commits")

    def random_updates(table: AgingTable) -> None:
        for number in range(_RANDOM_FLUSHES):
            if number % 10 == 0:
                say(f"{number} of {_RANDOM_FLUSHES} flushes")
            table.update(chosen.sample(range(1, rows + 1), _RANDOM_UPDATES))

    def large_transaction(table: AgingTable) -> None:
        seconds = table.update_all_and_insert(2 * rows)
        say(f"flushed in {seconds:.0f} s; upkeep")
        table.tend()

    ages: dict[str, Callable[[AgingTable], None]] = {
        f"with {_OLDER_COMMITS:,} older commits": many_commits,
        f"after {_RANDOM_FLUSHES} flushes of {_RANDOM_UPDATES} random updates": random_updates,
        f"after a transaction of {3 * rows:,} rows, with upkeep": large_transaction,
    }
    found: list[Row] = []
    for name, grow_old in ages.items():
        say(f"a table of {rows:,} rows {name}")
        old = spark.aging_table(layout, rows)
        grow_old(old)
        found += _beside(spark.aging_table(layout, rows), old, name, chosen, rounds)
    return found


def _beside(fresh: AgingTable, old: AgingTable, name: str, chosen: random.Random, rounds: int) -> list[Row]:
    say(f"{rounds} one-row flushes on it and on a fresh one")
    seconds: dict[AgingTable, list[float]] = {fresh: [], old: []}
    # The first few warm up Java, and bring each table's files into memory.
    for number in range(rounds + _WARM_UP):
        # Whatever one leaves behind for the next is not always to the same one's good.
        for table in (fresh, old) if number % 2 else (old, fresh):
            took_s = table.update_one(chosen)
            if number >= _WARM_UP:
                seconds[table].append(took_s)
    young, aged = statistics.median(seconds[fresh]), statistics.median(seconds[old])
    return [
        Row(f"one-row flush {name}", f"{aged:.2f} s (fresh: {young:.2f} s)", "", None),
        Row("ratio of the medians", f"{aged / young:.2f}", f"≤ {_MOST}", aged <= _MOST * young),
    ]
