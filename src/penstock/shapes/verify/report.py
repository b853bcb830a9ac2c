"""What `penstock verify` found, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock import exit_codes
from penstock.lake.comparison import Counts, Difference, Values

_WIDE: Final = 160
_COUNTS: Final = ("equal", "different", "missing", "extra")
_LAKE: Final = "lake"


@dataclass(frozen=True)
class ShapeResult:
    """A shape, or a table of a stream, that was compared, or the reason why it was not."""

    shape: str
    counts: Counts = field(default_factory=Counts)
    first: tuple[Difference, ...] = ()
    """The first keys that differ."""
    changing: int = 0
    """Keys that differed and were changed in Postgres at every look, and so can't be judged."""
    unchecked: int = 0
    """Keys that differed at the first look and were too many to be looked at again."""
    untold: int = 0
    """Rows of Postgres that a stream doesn't tell, and need not: they may be older than it."""
    told: int | None = None
    """How many changes a stream tells of it; None: it is in no stream."""
    told_behind: str | None = None
    """The place behind a gap in the stream from which on its changes were compared."""
    counted: bool = False
    """Its rows have no key, and were only counted."""
    behind_bytes: int | None = None
    """How much WAL lies between the table and the snapshot, at most, if nobody keeps the table up."""
    left_out: tuple[str, ...] = ()
    """Columns that the lake has kept and Postgres has dropped."""
    problem: str | None = None
    """Why it could not be compared."""

    @property
    def exit_code(self) -> int:
        """What this shape alone would end with."""
        if self.counts.differing:
            return exit_codes.FAILED
        open_ends = self.problem is not None or self.unchecked or self.changing
        return exit_codes.BAD_INPUT if open_ends else exit_codes.OK

    @property
    def result(self) -> str:
        """In a word or two."""
        if self.problem is None and self.exit_code == exit_codes.BAD_INPUT:
            return "not all compared"
        if self.told == 0 and self.untold and self.exit_code == exit_codes.OK:
            return "nothing told"
        words = {exit_codes.OK: "equal", exit_codes.FAILED: "different", exit_codes.BAD_INPUT: "not compared"}
        return words[self.exit_code]

    def notes(self) -> Iterator[str]:
        """What somebody should know beside the counts."""
        if self.problem is not None:
            yield self.problem
        if self.behind_bytes is not None:
            yield f"the service is stopped; the table is up to {self.behind_bytes:,} bytes of WAL behind"
        if self.changing:
            yield f"{self.changing:,} keys changed at every look and were not judged: verify again"
        if self.unchecked:
            yield f"{self.unchecked:,} more keys differed at first and were too many to look at again"
        if self.counted:
            yield "it has no key: its rows were counted, and not compared"
        if self.untold:
            yield (
                f"{self.untold:,} rows of Postgres are not in the stream: they are older than its beginning,"
                " or lost"
            )
        if self.told_behind is not None:
            yield (
                f"its stream has a GAP before {self.told_behind}: what it told earlier lacks changes, and was"
                " not compared"
            )
        if self.left_out:
            yield f"not compared, because Postgres has dropped them: {', '.join(self.left_out)}"


def exit_code(results: Iterable[ShapeResult]) -> int:
    """A difference outweighs what could not be compared."""
    codes = {result.exit_code for result in results}
    return next((code for code in (exit_codes.FAILED, exit_codes.BAD_INPUT) if code in codes), exit_codes.OK)


class Words(NamedTuple):
    """What the two sides of a comparison are called."""

    thing: str
    """What is compared."""
    other: str
    """What it is compared with, beside Postgres."""


SHAPES: Final = Words("shape", "lake")
STREAM: Final = Words("table", "stream")
STREAM_SHAPES: Final = Words("shape", "stream")


def as_json(results: Sequence[ShapeResult], words: Words = SHAPES) -> str:
    """A JSON list with an object a shape."""
    return json.dumps([_plain(result, words) for result in results], indent=2, ensure_ascii=False)


def print_text(results: Sequence[ShapeResult], words: Words = SHAPES) -> None:
    """A table, and the first keys that differ."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    table = Table(title="penstock verify", title_justify="left")
    table.add_column(words.thing)
    table.add_column("result")
    for name in ("rows in Postgres", f"rows in the {words.other}", *_COUNTS):
        table.add_column(name, justify="right")
    for result in results:
        numbers = [f"{number:,}" for number in result.counts] if result.problem is None else [""] * 6
        style = "red" if result.exit_code else "green"
        table.add_row(result.shape, Text(result.result, style), *numbers)
    console.print(table)
    for result in results:
        for note in result.notes():
            console.print(Text(f"{result.shape}: {note}"))
        for difference in result.first:
            for line in _lines(difference, words):
                console.print(Text(f"{result.shape}: {line}"), soft_wrap=True)
        hidden = result.counts.differing - len(result.first)
        if result.first and hidden:
            console.print(Text(f"{result.shape}: and {hidden:,} more"))


def _lines(difference: Difference, words: Words) -> Iterator[str]:
    key = ", ".join(f"{name}={_shown(value)}" for name, value in difference.key.items())
    line = f"{difference.verdict} {key}"
    if difference.columns:
        line += f": {', '.join(difference.columns)}"
    if difference.copies > 1:
        line += f" ({difference.copies} rows in the {words.other})"
    yield line
    for name, values in (difference.values or {}).items():
        yield f"    {name}: {_shown(values.postgres)} in Postgres, {_shown(values.lake)} in the {words.other}"


def _shown(value: str | None) -> str:
    return "null" if value is None else json.dumps(value, ensure_ascii=False)


def _plain(result: ShapeResult, words: Words) -> dict[str, Any]:
    return {
        words.thing: result.shape,
        "result": result.result,
        "problem": result.problem,
        "counts": None if result.problem is not None else _named(result.counts, words),
        "changing": result.changing,
        "unchecked": result.unchecked,
        "untold": result.untold,
        "told": result.told,
        "told_behind": result.told_behind,
        "counted": result.counted,
        "behind_bytes": result.behind_bytes,
        "left_out": result.left_out,
        "first": [_plain_difference(each, words) for each in result.first],
    }


def _plain_difference(difference: Difference, words: Words) -> dict[str, Any]:
    values = difference.values
    return difference._asdict() | {
        "values": None if values is None else {name: _named(each, words) for name, each in values.items()}
    }


def _named(found: Counts | Values, words: Words) -> dict[str, Any]:
    return {words.other if name == _LAKE else name: value for name, value in found._asdict().items()}
