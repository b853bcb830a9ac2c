"""Wider types: which of the lake's types hold all values of another, and what can be followed in place.

By the names that Spark SQL has for them (`LakeType.spark`).
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Final

TYPE_WIDENING: Final = "delta.enableTypeWidening"
"""The table property that lets Delta keep files with a column's former type. Readers have to know it, and
`deltalake` 1.6 doesn't: so whoever owns the table sets it, and not we."""

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_INTEGERS: Final = frozenset(combinations(("smallint", "int", "bigint"), 2))
_FLOATS: Final = ("float", "double")


def is_wider(new: str, old: str) -> bool:
    """Whether the new type holds every value of the old one, as the same kind of number."""
    digits, before = _digits(new), _digits(old)
    if digits is None or before is None:
        return (old, new) in _INTEGERS or (old, new) == _FLOATS
    (precision, scale), (old_precision, old_scale) = digits, before
    return new != old and scale >= old_scale and precision - scale >= old_precision - old_scale


def has_more_digits(new: str, old: str) -> bool:
    """Whether it is a decimal with more digits before the point, and as many behind it.

    Postgres keeps the table's file then, and prints every value as before.
    """
    return is_wider(new, old) and _scale(new) is not None and _scale(new) == _scale(old)


def can_be_widened(new: str, old: str) -> bool:
    """Whether a column of a Delta table can be given the new type, with its values as they are.

    Delta would take doubles for floats too, but keeps the files' statistics: 0.1 stands there as the highest
    value of a file with 0.10000000149011612, which a query for that is then not shown.
    """
    return has_more_digits(new, old) or (old, new) in _INTEGERS


def _digits(name: str) -> tuple[int, int] | None:
    found = _DECIMAL.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def _scale(name: str) -> int | None:
    digits = _digits(name)
    return None if digits is None else digits[1]
