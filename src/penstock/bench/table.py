"""The table of results: printed, and kept as Markdown."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Row(NamedTuple):
    """One line of the result table."""

    what: str
    value: str
    target: str
    reached: bool | None
    """None where there is no target."""


def say(what: str) -> None:
    """Tell whoever watches what is being measured."""
    Console(stderr=True).print(f"[dim]{datetime.datetime.now():%H:%M:%S}[/] {what}")


def print_table(rows: Sequence[Row]) -> None:
    """Print the table to standard output."""
    table = Table("measured", "value", "target", "")
    for row in rows:
        table.add_row(row.what, row.value, row.target, _mark(row))
    Console().print(table)


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
