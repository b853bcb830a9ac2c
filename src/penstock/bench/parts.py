"""The parts of `penstock bench shapes`, by name, and how much each measures."""

from __future__ import annotations

from typing import Final, NamedTuple

PARTS: Final = {
    "collector": "one-row transactions with 1,000 shapes beside 1",
    "backlog": "a backlog into a table beside plain PySpark",
    "snapshot": "a snapshot beside psql",
    "age": "one-row flushes on old tables beside a fresh one",
    "verify": "verify beside a snapshot, and of three small tables",
    "wide": "updates of 300 columns, with one column absent beside none",
    "service": "one row to 1 and to 10 shapes of the running service, and its rest",
    "many": "a row a second in each of many shapes, beside a parked one too",
}
"""In the order in which they are measured."""


class Sizes(NamedTuple):
    """How much is measured."""

    changes: int
    """In the backlog."""
    rows: int
    """Of the table."""
    rounds: int
    """In which each pair is measured."""
    commits: int
    """One-row transactions that are timed."""
    shapes: int
    """That get a row a second each; 0: none."""
    seconds: int
    """For which they do, and once more beside a parked one."""


LEAST: Final = Sizes(changes=3000, rows=1000, rounds=1, commits=1, shapes=2, seconds=3)
"""With less there is nothing to tell."""


def wrong_size(sizes: Sizes) -> str | None:
    """What is too small, in words; None if nothing is."""
    for name, value, least in zip(Sizes._fields, sizes, LEAST, strict=True):
        if value < least and (name, value) != ("shapes", 0):
            return f"--{name} is {value}. Fix: give it {least} or more"
    return None


def parse_parts(text: str) -> tuple[str, ...]:
    """The parts that are named, with commas between, in the order of PARTS. ValueError if one isn't."""
    named = {part.strip() for part in text.split(",")}
    unknown = sorted(named - PARTS.keys())
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in named)
