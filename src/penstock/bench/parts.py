"""The parts of `penstock bench shapes` and `penstock bench kinesis`, by name, and how much each measures."""

from __future__ import annotations

from collections.abc import Iterable
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

KINESIS_PARTS: Final = {
    "marked": "capture to a marked stream beside capture to a plain one",
    "source": 'format("penstock") to no-op beside a bare loop that counts records',
    "backlog": "a backlog from a marked stream into a table beside the same from a log",
    "batches": "an empty and a one-row batch of a running query",
    "latency": "one row from its commit to its table, through the stream",
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


class KinesisSizes(NamedTuple):
    """How much is measured."""

    changes: int
    """In the backlog."""
    rounds: int
    """In which each pair is measured."""
    commits: int
    """One-row transactions that are timed."""


LEAST: Final = Sizes(changes=3000, rows=1000, rounds=1, commits=1, shapes=2, seconds=3)
"""With less there is nothing to tell."""
KINESIS_LEAST: Final = KinesisSizes(changes=3000, rounds=1, commits=1)


def wrong_size(sizes: Sizes | KinesisSizes) -> str | None:
    """What is too small, in words; None if nothing is."""
    least_of_all = LEAST if isinstance(sizes, Sizes) else KINESIS_LEAST
    for name, value, least in zip(sizes._fields, sizes, least_of_all, strict=True):
        if value < least and (name, value) != ("shapes", 0):
            return f"--{name} is {value}. Fix: give it {least} or more"
    return None


def parse_parts(text: str, parts: Iterable[str] = PARTS) -> tuple[str, ...]:
    """Those of the parts that are named, with commas between, in their own order. ValueError if one isn't."""
    known = tuple(parts)
    named = {part.strip() for part in text.split(",")}
    unknown = sorted(named - set(known))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return tuple(part for part in known if part in named)
