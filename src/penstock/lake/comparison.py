"""What a comparison of a lake table with Postgres is made of, and what comes of it. Needs no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.snapshot.export import SnapshotPart

if TYPE_CHECKING:
    import pyarrow as pa


class Verdict(StrEnum):
    """What is wrong with a key."""

    DIFFERENT = "different"
    MISSING = "missing"
    EXTRA = "extra"


class Counts(NamedTuple):
    """How many rows the sides have, and how many keys are what."""

    postgres: int = 0
    lake: int = 0
    equal: int = 0
    different: int = 0
    missing: int = 0
    extra: int = 0

    @property
    def differing(self) -> int:
        """Keys that are not equal."""
        return self.different + self.missing + self.extra


class Values(NamedTuple):
    """A column of both sides, as text; None is null."""

    postgres: str | None
    lake: str | None


class Difference(NamedTuple):
    """A key that is not equal, as text."""

    verdict: Verdict
    key: dict[str, str | None]
    columns: tuple[str, ...] = ()
    """Those that differ, if both sides have the row."""
    copies: int = 1
    """How often the lake has the key, if it does."""
    values: dict[str, Values] | None = None
    """Of the columns that differ, or of all if one side lacks the row; None unless asked for."""


class TableAt(NamedTuple):
    """A lake table at one moment."""

    version: int
    """Its own, as the storage counts."""
    offset: int
    """The commit LSN of the last transaction in it."""


class PostgresAt(NamedTuple):
    """A Postgres table under an exported snapshot."""

    facts: TableFacts
    parts: Sequence[SnapshotPart]
    snapshot: str


class Keys(NamedTuple):
    """Keys that had differed, by what has happened to their rows since before the snapshot."""

    quiet: pa.Table
    """Nothing: the snapshot has their rows."""
    moved: pa.Table
    """They were changed, and the last change has the whole row."""
    unclear: pa.Table
    """They were changed, and the last change lacks columns, or too much was changed to tell."""
    changes: pa.Table
    """All changes of the table, as rows.py describes them."""

    @property
    def clear(self) -> int:
        """How many can be judged."""
        return int(self.quiet.num_rows + self.moved.num_rows)


class Comparison(Protocol):
    """What came of a comparison. Holds memory until it is closed."""

    @property
    def counts(self) -> Counts:
        """How many keys are what."""

    def keys(self) -> pa.Table:
        """The keys that differ, typed as the lake has them; some of them if they are too many.

        Without columns if none differ.
        """

    def first(self, count: int, *, show_values: bool = False) -> list[Difference]:
        """The first keys that differ, in the order of the key, with values only if asked for."""

    def close(self) -> None:
        """Give the memory back."""
