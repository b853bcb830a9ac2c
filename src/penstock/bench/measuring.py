"""Parts of a bench, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from penstock import exit_codes
from penstock.bench.table import Row, print_table, say, verdict, write_markdown
from penstock.errors import PenstockError

Measure = Callable[[], list[Row]]


def run_parts(measured: Mapping[str, Measure], parts: Collection[str], found: list[Row]) -> None:
    """Measure those of these parts that are wanted, and add their rows.

    A part that fails is a target that was missed, and the others are measured all the same.
    """
    for part, measure in measured.items():
        if part in parts:
            say(f"{part} begins")
            try:
                rows = measure()
            except PenstockError as error:
                say(f"{part} failed: {error}")
                rows = [Row(part, f"failed: {str(error).splitlines()[0]}", "", False)]
            for row in rows:
                say(f"{row.what}: {row.value}")
            found += rows


def report(measure: Callable[[list[Row]], None], markdown: Path | None) -> int:
    """Measure, print the table, keep it; OK if all targets were reached, FAILED otherwise.

    What was found is told however the measuring ends.
    """
    found: list[Row] = []
    try:
        measure(found)
    finally:
        print_table(found)
        print(verdict(found))
        if markdown is not None:
            write_markdown(markdown, found)
    return exit_codes.OK if all(row.reached is not False for row in found) else exit_codes.FAILED
