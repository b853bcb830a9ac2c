"""Survey: what one pass over a batch of changes tells, so that fold and MERGE do no more than it needs.

Above all where its keys lie. A batch in this process gives the ranges of its own keys (key_ranges.py). Of a
larger one Spark finds the lowest and the highest key between each two of the values at which the table's
files begin: so one old key in a load of new ones opens one file, and not all that lie between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, DataType, DecimalType, IntegerType, LongType, ShortType, StringType

from penstock.decoding.rows import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.lake.fold.key_ranges import KeyRange, few, ranges_of
from penstock.lake.spark.names import column_of
from penstock.model.log_offset import LogOffset

# Delta keeps statistics of these, and their values pass through Python unharmed (an infinite date doesn't).
_RANGED: Final = (ByteType, ShortType, IntegerType, LongType, DecimalType, StringType)
_WITH_ROW: Final = ("insert", "update")
_BETWEEN: Final = "_penstock_between"
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
