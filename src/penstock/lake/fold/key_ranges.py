"""Where the keys of a batch lie: a few ranges, with whatever is between them left out.

Delta skips a file by a MERGE's condition if none of the ranges meets the file's own. One range from the
lowest to the highest key would make a flush of one old and one new key read everything between.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, NamedTuple

MOST: Final = 24
"""How many ranges a condition has: each costs planning, and a file's rows are compared with each."""
_BYTES: Final = 8


class KeyRange(NamedTuple):
    """A lowest and a highest value of a key column."""

    column: str
    low: Any
    high: Any


def ranges_of(column: str, values: Sequence[Any], most: int = MOST) -> list[KeyRange]:
    """At most so many ranges that hold these values (sorted, distinct), cut where they are farthest apart."""
    if not values:
        return []
    distances = _distances(values)
    widest = sorted(range(len(distances)), key=lambda place: distances[place], reverse=True)
    cuts = sorted(place + 1 for place in widest[: most - 1] if distances[place] > 1)
    ends = [0, *cuts, len(values)]
    return [KeyRange(column, values[first], values[last - 1]) for first, last in pairwise(ends)]


def _distances(values: Sequence[Any]) -> list[int | Decimal]:
    if isinstance(values[0], str):
        numbers = _as_numbers(values)
        # Texts that begin alike may still have others between them.
        return [2 + high - low for low, high in pairwise(numbers)]
    return [high - low for low, high in pairwise(values)]


def _as_numbers(texts: Sequence[str]) -> list[int]:
    """Texts as numbers that grow with them: of the first bytes in which they differ."""
    encoded = [text.encode() for text in texts]
    pairs = enumerate(zip(encoded[0], encoded[-1], strict=False))
    same = next((place for place, (low, high) in pairs if low != high), min(map(len, encoded)))
    return [int.from_bytes(each[same : same + _BYTES].ljust(_BYTES, b"\0"), "big") for each in encoded]
