"""What is known of a table's data files without opening them: their sizes, and the bounds of their keys.

Followed from commit to commit, so that a flush knows, without a Spark job, which files its keys may be in.
Bounds are Delta's statistics: a lowest value may be too low and a highest too high, never the other way
round. A file without them may hold any key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from penstock.lake.ports import KeyRanges

_MOST_CUTS: Final = 63
Bounds = tuple[Any, Any]

_LEAST_ROW: Final = 16
"""Bytes of a row in a file of which nobody counted the rows."""


class DataFile(NamedTuple):
    """A data file."""

    path: str
    size: int
    rows: int | None
    bounds: Mapping[str, Bounds]
    """The lowest and the highest value, by key column."""

    @property
    def most_rows(self) -> int:
        """How many rows it has; at most, if nobody has counted them."""
        return self.size // _LEAST_ROW if self.rows is None else self.rows

    def may_hold(self, ranges: KeyRanges) -> bool:
        """Whether a key within these ranges may be in the file."""
        return all(
            any(low <= self.bounds[column][1] and self.bounds[column][0] <= high for low, high in parts)
            for column, parts in ranges.items()
            if column in self.bounds
        )


class DataFiles:
    """The data files of one version of a table."""

    def __init__(self, version: int, adds: Iterable[Mapping[str, Any]], key: Sequence[str]) -> None:
        self.version = version
        self.key = tuple(key)
        self._files = {add["path"]: data_file(add, self.key) for add in adds}

    def follow(self, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
        """Go on to the next version, by what its commit does."""
        for action in actions:
            if "remove" in action:
                self._files.pop(action["remove"]["path"], None)
        for action in actions:
            if "add" in action:
                self._files[action["add"]["path"]] = data_file(action["add"], self.key)
        self.version = version

    def all(self) -> list[DataFile]:
        """All of them."""
        return list(self._files.values())

    def touched(self, ranges: KeyRanges) -> list[DataFile]:
        """Those that may hold a key within these ranges."""
        return [file for file in self._files.values() if file.may_hold(ranges)]

    def cuts(self) -> dict[str, list[Any]]:
        """By key column, some of the values at which files begin, in order."""
        found = {}
        for name in self.key:
            lows = sorted({file.bounds[name][0] for file in self._files.values() if name in file.bounds})
            count = min(len(lows), _MOST_CUTS)
            found[name] = [lows[place * len(lows) // count] for place in range(count)]
        return found


def data_file(add: Mapping[str, Any], key: Sequence[str]) -> DataFile:
    """A file, from the log's action that adds it."""
    stats = json.loads(add.get("stats") or "{}", parse_float=Decimal)
    lows, highs = stats.get("minValues", {}), stats.get("maxValues", {})
    bounds = {
        name: (lows[name], highs[name])
        for name in key
        if lows.get(name) is not None and highs.get(name) is not None
    }
    return DataFile(add["path"], int(add["size"]), stats.get("numRecords"), bounds)
