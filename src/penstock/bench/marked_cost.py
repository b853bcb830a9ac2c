"""What a marked stream costs: capture to one, in turns with capture to a plain one."""

from __future__ import annotations

from statistics import median
from typing import Final

from penstock.bench.backlog import create_orders, read_again, write_backlog
from penstock.bench.cores import one_core_apart
from penstock.bench.measures import Drained, drain
from penstock.bench.table import Row, say
from penstock.local.postgres import PrivatePostgres

_MOST: Final = 1.15


def marked_cost(postgres: PrivatePostgres, *, changes: int, pairs: int) -> list[Row]:
    """The same backlog in pairs, capture on a core of its own.

    A machine's speed changes within minutes: only what was measured side by side is compared, and who goes
    first changes from pair to pair.
    """
    database = create_orders(postgres)
    write_backlog(postgres, database, changes)
    found: dict[str, list[Drained]] = {"false": [], "true": []}
    with one_core_apart() as core:
        for number in range(pairs):
            for is_marked in ("false", "true") if number % 2 else ("true", "false"):
                with read_again(postgres, database) as slot:
                    settings = {"KINESIS_MARKED_STREAM": is_marked, "REPLICATION_SLOT": slot}
                    found[is_marked].append(drain(postgres, database, changes, core=core, **settings))
            plain, marked = found["false"][-1], found["true"][-1]
            say(f"pair {number + 1} of {pairs}: plain {plain.cpu_us:.2f} µs, marked {marked.cpu_us:.2f} µs")
    plain_us, marked_us = [[each.cpu_us for each in found[which]] for which in ("false", "true")]
    ratios = [one / other for one, other in zip(marked_us, plain_us, strict=True)]
    rates = [one.rate / other.rate for one, other in zip(found["true"], found["false"], strict=True)]
    return [
        Row("plain stream, CPU an event, µs, median and least", _figures(plain_us), "", None),
        Row("marked stream, CPU an event, µs, median and least", _figures(marked_us), "", None),
        Row(
            f"CPU, marked against plain, median of {pairs} pairs",
            f"{median(ratios):.2f}",
            f"≤ {_MOST}",
            median(ratios) <= _MOST,
        ),
        Row("… of the medians, and of the least", _ratio(marked_us, plain_us), "", None),
        Row("events/s, marked against plain, median", f"{median(rates):.2f}", "", None),
    ]


def _figures(values: list[float]) -> str:
    return f"{median(values):.2f} and {min(values):.2f}"


def _ratio(ones: list[float], others: list[float]) -> str:
    return f"{median(ones) / median(others):.2f} and {min(ones) / min(others):.2f}"
