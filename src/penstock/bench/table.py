"""The table of results: printed, and kept as Markdown."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_WIDE: Final = 160


class Row(NamedTuple):
    """One line of the result table."""

    what: str
    value: str
    target: str
    reached: bool | None
    """None where there is no target."""


def say(what: str) -> None:
    """Tell whoever watches what is being measured."""
    Console(stderr=True).print(f"[dim]{datetime.datetime.now():%H:%M:%S}[/] {escape(what)}")


def seconds_of(values: Sequence[float]) -> str:
    """The median of some seconds, and between what they are."""
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def verdict(rows: Sequence[Row]) -> str:
    """How many targets were reached, and which were not."""
    missed = [row.what for row in rows if row.reached is False]
    count = sum(row.reached is not None for row in rows)
    reached = f"{count - len(missed)} of {count} targets were reached"
    return f"{reached}. Missed: {'; '.join(missed)}" if missed else reached


def print_table(rows: Sequence[Row]) -> None:
    """Print the table to standard output."""
    table = Table("measured", "value", "target", "")
    for row in rows:
        table.add_row(*map(escape, (row.what, row.value, row.target, _mark(row))))
    console = Console()
    # Without a terminal rich would take it for a narrow one.
    (console if console.is_terminal else Console(width=_WIDE)).print(table)


def write_markdown(path: Path, rows: Sequence[Row]) -> None:
    """Keep the table, with the day and the machine."""
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
