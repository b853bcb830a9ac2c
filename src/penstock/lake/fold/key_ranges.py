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
    return few([KeyRange(column, value, value) for value in values], most)


def few(ranges: Sequence[KeyRange], most: int = MOST) -> list[KeyRange]:
    """At most so many that hold all of these, which are a column's; cut where they are farthest apart."""
    apart = _apart(ranges)
    if not apart:
        return []
    distances = _distances(apart)
    widest = sorted(range(len(distances)), key=lambda place: distances[place], reverse=True)
    cuts = sorted(place + 1 for place in widest[: most - 1] if distances[place] > 1)
    ends = [0, *cuts, len(apart)]
    return [apart[first]._replace(high=apart[last - 1].high) for first, last in pairwise(ends)]


def _apart(ranges: Sequence[KeyRange]) -> list[KeyRange]:
    """The same in order, those that overlap as one."""
    apart: list[KeyRange] = []
    for each in sorted(ranges):
        if apart and each.low <= apart[-1].high:
            apart[-1] = apart[-1]._replace(high=max(apart[-1].high, each.high))
        else:
            apart.append(each)
    return apart


def _distances(apart: Sequence[KeyRange]) -> list[int | Decimal]:
    ends = [end for each in apart for end in (each.low, each.high)]
    # Texts that begin alike may still have others between them.
    least = 2 if isinstance(ends[0], str) else 0
    numbers = _as_numbers(ends) if least else ends
    return [least + low - high for high, low in zip(numbers[1:-1:2], numbers[2::2], strict=True)]


def _as_numbers(texts: Sequence[str]) -> list[int]:
    """Texts as numbers that grow with them: of the first bytes in which they differ."""
    encoded = [text.encode() for text in texts]
    pairs = enumerate(zip(encoded[0], encoded[-1], strict=False))
    same = next((place for place, (low, high) in pairs if low != high), min(map(len, encoded)))
    return [int.from_bytes(each[same : same + _BYTES].ljust(_BYTES, b"\0"), "big") for each in encoded]
