"""Which rows a partition can hold, as far as Postgres and the lake surely agree about it.

A partition's rows satisfy its bound and those of all partitions above it. Bounds are read as the catalog
prints them (`pg_get_expr(relpartbound)`), by the table's partition key, and only where a comparison is the
same one on both sides:

1. RANGE over whole numbers, decimals, dates and timestamps: the lake has these as such, in the same order.
2. LIST over these, and over text, varchar and uuid: equal texts are equal bytes, unless the collation says
   otherwise. The order of texts is Postgres' own, so no RANGE over them.
3. The columns themselves, and the types' own operators (`Member.split` has no others). Not HASH: nobody else
   has those functions. Not DEFAULT: what that can hold depends on the others of the moment.
4. Years of four digits, and no infinities, so that texts of moments are in the order of the moments.

A unique index of a partitioned table has all columns by which it is split. So these are part of a shape's
key: each of its tables has them, and they are never null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Final, NamedTuple

from penstock.decoding.type_map import lake_type
from penstock.postgres.catalog.table_tree import Member, Tree

DEFAULT: Final = "DEFAULT"

_LITERAL: Final = r"'(?:[^'\\]|'')*'|[\w.]+"
_LITERALS: Final = rf"(?:{_LITERAL})(?:, (?:{_LITERAL}))*"
_RANGE: Final = re.compile(rf"FOR VALUES FROM \(({_LITERALS})\) TO \(({_LITERALS})\)")
_LIST: Final = re.compile(rf"FOR VALUES IN \(({_LITERALS})\)")
_EACH: Final = re.compile(_LITERAL)
_NULL: Final = "NULL"

_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_MOMENT: Final = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?"
_ORDERED: Final = tuple(
    (re.compile(kind), re.compile(text))
    for kind, text in (
        (r"smallint|integer|bigint", r"-?\d+"),
        (r"numeric\(\d+,-?\d+\)", _NUMBER.pattern),
        (r"date", r"\d{4}-\d\d-\d\d"),
        (r"timestamp(?:\(\d\))? without time zone", _MOMENT),
        (r"timestamp(?:\(\d\))? with time zone", rf"{_MOMENT}\+00"),
    )
)
_EQUAL: Final = re.compile(r"text|character varying(?:\(\d+\))?|uuid")


class End(NamedTuple):
    """A value in one end of a range."""

    rank: int
    """-1: MINVALUE, below all values; 1: MAXVALUE, above them."""
    text: str = ""
    """As Postgres prints it, of a rank of 0."""


class RangeBound(NamedTuple):
    """Rows whose columns, one after the other, are at or above `low` and below `high`."""

    columns: tuple[str, ...]
    low: tuple[End, ...]
    high: tuple[End, ...]
    types: tuple[str, ...]


class ListBound(NamedTuple):
    """Rows whose column has one of these values, as Postgres prints them."""

    column: str
    values: tuple[str, ...]


Bound = RangeBound | ListBound
Bounds = tuple[Bound, ...]
"""Of a partition, from the table down to it: its rows satisfy all of them."""


def bounds_of(tree: Tree, member: Member) -> Bounds | None:
    """What the rows of one of the tree's partitions satisfy; None if that can't be said for sure."""
    types = {name: kind for name, _, kind in (column.partition(" ") for column in tree.columns)}
    path = _path(tree, member)
    if path[0] != tree.table:
        return None
    bounds = []
    for parent, child in pairwise(path):
        bound = _read(parent.split, child.bound, types)
        if bound is None:
            return None
        bounds.append(bound)
    return tuple(bounds)


def columns_of(bounds: Bounds) -> set[str]:
    """The columns that they are about."""
    return {
        name for each in bounds for name in (each.columns if isinstance(each, RangeBound) else [each.column])
    }


def is_default(tree: Tree, member: Member) -> bool:
    """Whether it, or something above it, takes what no other partition does."""
    return any(each.bound == DEFAULT for each in _path(tree, member))


def are_disjoint(one: Bounds | None, other: Bounds | None) -> bool:
    """Whether no row satisfies both; False also if that isn't known."""
    return any(_exclude(*levels) for levels in zip(one or (), other or (), strict=False))


def _exclude(one: Bound, other: Bound) -> bool:
    if isinstance(one, ListBound) and isinstance(other, ListBound):
        return one.column == other.column and not _distinct(one) & _distinct(other)
    if isinstance(one, RangeBound) and isinstance(other, RangeBound) and one.columns == other.columns:
        (low, high), (other_low, other_high) = _sortable(one), _sortable(other)
        return low >= other_high or high <= other_low
    return False


def _distinct(bound: ListBound) -> set[str | Decimal]:
    """Numbers by their value. Words that look like numbers may then seem equal, which is the safe mistake."""
    return {Decimal(value) if _NUMBER.fullmatch(value) else value for value in bound.values}


_Place = tuple[int, Decimal | str]


def _sortable(bound: RangeBound) -> tuple[tuple[_Place, ...], tuple[_Place, ...]]:
    def place(end: End, kind: str) -> _Place:
        is_text = kind.startswith(("date", "timestamp"))
        return end.rank, end.text if is_text else Decimal(end.text or 0)

    low, high = (tuple(map(place, ends, bound.types)) for ends in (bound.low, bound.high))
    return low, high


def _path(tree: Tree, member: Member) -> list[Member]:
    """The member and all above it, the table first; only what is known of it."""
    members = {each.oid: each for each in (tree.table, *tree.partitions)}
    path = [member]
    while path[0].oid != tree.table.oid and path[0].parent in members:
        path.insert(0, members[path[0].parent])
    return path


def _read(split: Sequence[str], bound: str, types: Mapping[str, str]) -> Bound | None:
    if not split:
        return None
    strategy, *columns = split
    if strategy == "l" and (found := _LIST.fullmatch(bound)):
        values = tuple(_unquoted(text) for text in _texts(found[1]) if text != _NULL)
        kind = types.get(columns[0], "")
        if all(_is_ordered(kind, text) or _EQUAL.fullmatch(kind) for text in values):
            return ListBound(columns[0], values)
    if strategy == "r" and (found := _RANGE.fullmatch(bound)):
        kinds = tuple(types.get(column, "") for column in columns)
        low, high = (_ends(_texts(ends), kinds) for ends in found.groups())
        if low is not None and high is not None:
            return RangeBound(tuple(columns), low, high, kinds)
    return None


def _ends(texts: Sequence[str], kinds: Sequence[str]) -> tuple[End, ...] | None:
    ends = []
    for text, kind in zip(texts, kinds, strict=True):
        if text in ("MINVALUE", "MAXVALUE"):
            ends.append(End(-1 if text == "MINVALUE" else 1))
        elif _is_ordered(kind, _unquoted(text)):
            ends.append(End(0, _unquoted(text)))
        else:
            return None
    return tuple(ends)


def _is_ordered(kind: str, text: str) -> bool:
    if kind.startswith("numeric") and not lake_type(kind).spark.startswith("decimal"):
        return False
    return any(types.fullmatch(kind) and values.fullmatch(text) for types, values in _ORDERED)


def _texts(literals: str) -> list[str]:
    return _EACH.findall(literals)


def _unquoted(literal: str) -> str:
    return literal[1:-1].replace("''", "'") if literal.startswith("'") else literal
