"""Updates of rows with many columns: all carried, beside one left out; for `penstock bench shapes`.

Postgres leaves a column out of an update where its value is long and has not changed (TOAST). The flush then
finds out what the last value of that column was, for each key.
"""

from __future__ import annotations

import statistics
from typing import Final

from penstock.bench.spark_jobs import SparkBench
from penstock.bench.spark_wide import COLUMNS, UPDATES
from penstock.bench.table import Row, say, seconds_of

_ABSENT: Final = "c2"
"""A text."""


def wide(spark: SparkBench, *, rounds: int) -> list[Row]:
    """Both kinds of update in turn, on one table; the first round warms up."""
    say(f"a table of {COLUMNS} columns")
    table = spark.wide_table()
    whole, partial = [], []
    for number in range(rounds + 1):
        say(f"{UPDATES:,} updates of {COLUMNS} columns, round {number} of {rounds}")
        seconds = table.update(2 * number), table.update(2 * number + 1, without=[_ABSENT])
        if number:
            whole.append(seconds[0])
            partial.append(seconds[1])
    ratio = statistics.median(partial) / statistics.median(whole)
    return [
        Row(f"flush of {UPDATES:,} updates of {COLUMNS} columns", seconds_of(whole), "", None),
        Row("the same with one column absent", seconds_of(partial), "", None),
        Row("ratio of the medians", f"{ratio:.2f}", "", None),
    ]
