"""Survey: what one pass over a batch of changes tells, so that fold and MERGE do no more than it needs.

Above all where its keys lie: in a few ranges, with whatever is between them left out. Delta skips a file by a
MERGE's condition if none of the ranges meets the file's own; one range from the lowest to the highest key
would make a flush of one old and one new key read everything between.

A batch in this process gives the ranges of its own keys. Of a larger one Spark finds the lowest and the
highest key between each two of the values at which the table's files begin.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, DataType, DecimalType, IntegerType, LongType, ShortType, StringType

from penstock.decoding.rows import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.lake.spark.names import column_of
from penstock.model.log_offset import LogOffset

# Delta keeps statistics of these, and their values pass through Python unharmed (an infinite date doesn't).
_RANGED: Final = (ByteType, ShortType, IntegerType, LongType, DecimalType, StringType)
_WITH_ROW: Final = ("insert", "update")
_BETWEEN: Final = "_penstock_between"
MOST: Final = 24
"""How many ranges a condition has: each costs planning, and a file's rows are compared with each."""
_BYTES: Final = 8
_NO_CUTS: Final[Mapping[str, Sequence[Any]]] = MappingProxyType({})


@dataclass(frozen=True)
class Survey:
    """What one pass over a batch tells."""

    count: int
    truncated_at: LogOffset | None
    """The last truncate."""
    absent: tuple[str, ...]
    """The columns that a change lacks."""
    linked: bool
    """Whether a key change lacks columns."""
    key_ranges: tuple[KeyRange, ...]
    """What the keys lie in; one range or more a column."""
    only_inserts: bool = False
    """Whether there is nothing but inserts, of rows that had no other key before."""
    together: tuple[tuple[str, ...], ...] = ()
    """Of the absent columns those that some change carries, in groups: it carries all of a group or none."""


def survey(changes: DataFrame, key: Sequence[str], cuts: Mapping[str, Sequence[Any]] = _NO_CUTS) -> Survey:
    """Look at a batch. Runs one Spark job.

    `cuts` are values of key columns, in order: keys are looked at between each two of the column that has
    most, so that one that lies far from all others makes a range of its own.
    """
    ranged = [name for name in key if isinstance(changes.schema[name].dataType, _RANGED)]
    absent = F.col(ABSENT).isNotNull()
    cut = max(ranged, key=lambda name: len(cuts.get(name, ())), default="")
    between = [_place_among(cuts[cut], column_of(cut), changes.schema[cut].dataType)] if cuts.get(cut) else []
    groups = changes.groupBy(*[place.alias(_BETWEEN) for place in between])
    grouped = groups.agg(
        F.count(F.lit(1)),
        F.max(F.when(F.col(ACTION) == "truncate", F.struct(TX_OFFSET, OP_OFFSET))),
        F.collect_set(ABSENT),
        F.coalesce(F.bool_or(~absent & F.col(ACTION).isin(*_WITH_ROW)), F.lit(False)),
        F.coalesce(F.bool_or(absent & F.col(OLD_KEY).isNotNull()), F.lit(False)),
        F.coalesce(F.bool_and((F.col(ACTION) == "insert") & F.col(OLD_KEY).isNull()), F.lit(False)),
        *[bound(column_of(name)) for name in ranged for bound in (F.min, F.max)],
    ).drop(_BETWEEN)
    found = grouped.collect()
    columns = list(zip(*found, strict=True)) or [()] * len(grouped.columns)
    counts, truncates, lists, carried, linked, only_inserts, *bounds = columns
    absences = {frozenset(each) for group in lists for each in group}
    if any(carried):
        absences.add(frozenset())
    return Survey(
        sum(counts),
        max((LogOffset(*each) for each in truncates if each is not None), default=None),
        tuple(sorted(frozenset().union(*absences))),
        any(linked),
        tuple(
            each
            for name, lows, highs in zip(ranged, bounds[::2], bounds[1::2], strict=True)
            for each in few(
                [KeyRange(name, *pair) for pair in zip(lows, highs, strict=True) if None not in pair]
            )
        ),
        bool(found) and all(only_inserts),
        together_in(absences),
    )


def survey_here(changes: pa.Table, key: Sequence[str]) -> Survey:
    """The same of changes that are in this process: no Spark job."""
    absent = pc.is_valid(changes[ABSENT])
    truncates = changes.filter(pc.equal(changes[ACTION], "truncate")).select([TX_OFFSET, OP_OFFSET])
    last = max((LogOffset(*row.values()) for row in truncates.to_pylist()), default=None)
    ranged = [name for name in key if _is_ranged(changes.schema.field(name).type)]
    ranges = [ranges_of(name, sorted(pc.unique(changes[name].drop_null()).to_pylist())) for name in ranged]
    inserts = pc.and_(pc.equal(changes[ACTION], "insert"), pc.is_null(changes[OLD_KEY]))
    with_row = changes[ABSENT].filter(pc.is_in(changes[ACTION], pa.array(_WITH_ROW)))
    absences = {frozenset(each or ()) for each in with_row.to_pylist()}
    return Survey(
        changes.num_rows,
        last,
        tuple(sorted(frozenset().union(*absences))),
        pc.any(pc.and_(absent, pc.is_valid(changes[OLD_KEY])), min_count=0).as_py(),
        tuple(each for column in ranges for each in column),
        pc.all(inserts, min_count=1).as_py() or False,
        together_in(absences),
    )


def together_in(absences: Collection[frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """The columns that are in some of these sets but not in all, those in one group that are in the same."""
    groups: dict[tuple[bool, ...], list[str]] = {}
    for name in sorted(frozenset().union(*absences)):
        groups.setdefault(tuple(name in each for each in absences), []).append(name)
    return tuple(sorted(tuple(names) for places, names in groups.items() if not all(places)))


def _is_ranged(arrow: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(arrow) or kinds.is_decimal(arrow) or kinds.is_string(arrow))


def _place_among(cuts: Sequence[Any], value: Column, kind: DataType, first: int = 0) -> Column:
    """How many of these a value is not below, by halves."""
    if not cuts:
        return F.lit(first)
    middle = len(cuts) // 2
    # By its text: a literal of Python's own has another type than the column, or doesn't fit into any.
    return F.when(
        value < F.lit(str(cuts[middle])).cast(kind), _place_among(cuts[:middle], value, kind, first)
    ).otherwise(_place_among(cuts[middle + 1 :], value, kind, first + middle + 1))


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
