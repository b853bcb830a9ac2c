"""Apply: the net effect of a batch of changes, one row a key, for one MERGE.

In comes what rows.py makes, of one table, whole transactions, in any order:

    _penstock_tx_offset, _penstock_op_offset   the change's LogOffset
    _penstock_action                           insert, update, delete or truncate
    _penstock_absent                           the columns that the change doesn't carry; null if none
    _penstock_old_key                          the key's old values; on the insert half of a key change only
    the table's columns

Out come `NetChanges`: the key, the columns, `_penstock_action` (delete or upsert) and `_penstock_absent` (the
columns that keep the table's value; null if none).

1. What stands before the batch's last truncate is dropped, and the table is emptied in the same MERGE.
2. A key's last change decides whether its row is there.
3. Each column has the value of the last change that carries it, back to the key's last insert or delete.
   Behind an insert there is nothing to keep: what it lacks is null.
4. The insert half of a key change takes what it lacks from the old key's row (key_changes.py).
5. A column that the table doesn't have yet gets, in every row that is older than it, its `missing` value.
6. A row for which the shape's `where` isn't true is deleted. It is judged by the net row: a shape with a
   `where` gets no absent columns (REPLICA IDENTITY FULL, or a table without TOAST).

The common batch has no absent column: then the last change a key is all there is to find. `survey` tells, in
one pass, what a batch needs; the caller persists the changes, which are read twice or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, DecimalType, IntegerType, LongType, ShortType, StringType

from penstock.decoding.rows import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.decoding.rows import Column as TableColumn
from penstock.lake.fold.inheritance import complete_key_changes
from penstock.lake.fold.key_ranges import KeyRange, ranges_of
from penstock.lake.spark.names import column_of
from penstock.model.log_offset import LogOffset

DELETE: Final = "delete"
UPSERT: Final = "upsert"

# Delta keeps statistics of these, and their values pass through Python unharmed (an infinite date doesn't).
_RANGED: Final = (ByteType, ShortType, IntegerType, LongType, DecimalType, StringType)
_LAST: Final = "_penstock_last"
_WHOLE: Final = "_penstock_whole"
_RESET: Final = "_penstock_reset"


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


@dataclass(frozen=True)
class NetChanges:
    """The net effect of a batch, ready for one MERGE."""

    rows: DataFrame
    key: tuple[str, ...]
    columns: tuple[str, ...]
    """All of the table's columns, the key's among them."""
    truncated: bool = False
    absent: tuple[str, ...] = ()
    """The columns that a row may keep as the table has them."""
    key_ranges: tuple[KeyRange, ...] = ()
    """What all keys in `rows` lie in; one range or more a column."""
    added: tuple[str, ...] = ()
    """The columns that the table doesn't have yet."""
    only_inserts: bool = False
    """Whether nothing but inserts led to `rows`."""

    @property
    def ranges(self) -> dict[str, list[tuple[Any, Any]]]:
        """What the keys lie in, by column. None of a truncated table's: it is read whole anyway."""
        found: dict[str, list[tuple[Any, Any]]] = {}
        for each in () if self.truncated else self.key_ranges:
            found.setdefault(each.column, []).append((each.low, each.high))
        return found

    @property
    def condition(self) -> Column:
        """Equal keys, within the batch's ranges: Delta then opens only files that may hold one of them."""
        same = [column_of(name, "t") == column_of(name, "s") for name in self.key]
        within = [
            reduce(
                Column.__or__,
                [column_of(column, "t").between(F.lit(low), F.lit(high)) for low, high in parts],
            )
            for column, parts in self.ranges.items()
        ]
        return reduce(Column.__and__, [*same, *within])

    @property
    def inserts(self) -> dict[str, Column]:
        """What a new row gets, by column."""
        return {name: column_of(name, "s") for name in self.columns}

    @property
    def updates(self) -> dict[str, Column]:
        """What a row that the table has gets, by column."""
        return {name: self._updated(name) for name in self.columns if name not in self.key}

    def _updated(self, name: str) -> Column:
        new = column_of(name, "s")
        if name not in self.absent or name in self.added:
            return new
        return F.when(F.array_contains(f"s.{ABSENT}", name), column_of(name, "t")).otherwise(new)


def survey(changes: DataFrame, key: Sequence[str]) -> Survey:
    """Look at a batch. Runs one Spark job."""
    ranged = [name for name in key if isinstance(changes.schema[name].dataType, _RANGED)]
    absent = F.col(ABSENT).isNotNull()
    found = changes.agg(
        F.count(F.lit(1)),
        F.max(F.when(F.col(ACTION) == "truncate", _offset())),
        F.array_sort(F.array_distinct(F.flatten(F.collect_set(ABSENT)))),
        F.coalesce(F.bool_or(absent & F.col(OLD_KEY).isNotNull()), F.lit(False)),
        F.coalesce(F.bool_and((F.col(ACTION) == "insert") & F.col(OLD_KEY).isNull()), F.lit(False)),
        *[bound(column_of(name)) for name in ranged for bound in (F.min, F.max)],
    ).collect()[0]
    count, truncate, absences, linked, only_inserts, *bounds = found
    pairs = zip(ranged, bounds[::2], bounds[1::2], strict=True)
    return Survey(
        count,
        None if truncate is None else LogOffset(*truncate),
        tuple(absences),
        linked,
        tuple(KeyRange(name, low, high) for name, low, high in pairs if low is not None),
        only_inserts,
    )


def survey_here(changes: pa.Table, key: Sequence[str]) -> Survey:
    """The same of changes that are in this process: no Spark job."""
    absent = pc.is_valid(changes[ABSENT])
    truncates = changes.filter(pc.equal(changes[ACTION], "truncate")).select([TX_OFFSET, OP_OFFSET])
    last = max((LogOffset(*row.values()) for row in truncates.to_pylist()), default=None)
    ranged = [name for name in key if _is_ranged(changes.schema.field(name).type)]
    ranges = [ranges_of(name, sorted(pc.unique(changes[name].drop_null()).to_pylist())) for name in ranged]
    inserts = pc.and_(pc.equal(changes[ACTION], "insert"), pc.is_null(changes[OLD_KEY]))
    return Survey(
        changes.num_rows,
        last,
        tuple(sorted(pc.unique(pc.list_flatten(changes[ABSENT])).to_pylist())),
        pc.any(pc.and_(absent, pc.is_valid(changes[OLD_KEY])), min_count=0).as_py(),
        tuple(each for column in ranges for each in column),
        pc.all(inserts, min_count=1).as_py() or False,
    )


def fold(
    changes: DataFrame,
    surveyed: Survey,
    key: Sequence[str],
    columns: Sequence[str],
    table: DataFrame | None = None,
    where: str | None = None,
    added: Sequence[TableColumn] = (),
) -> NetChanges:
    """The net effect of a batch on the table's `columns`, which hold the key.

    `table` is the table before the batch; it is read only where a key change needs it, or where `added`, the
    columns that it doesn't have yet, bring values for its rows. Runs no Spark job, but for a batch with such
    key changes.
    """
    truncated = surveyed.truncated_at is not None
    before = None
    if table is not None and not truncated:
        before = table.withColumns({column.name: missing_value(column) for column in added})
    rows = changes.where(F.col(ACTION) != "truncate")
    if surveyed.truncated_at is not None:
        rows = rows.where(_offset() > _literal(surveyed.truncated_at))
    names = [name for name in changes.columns if name not in (TX_OFFSET, OP_OFFSET, ACTION, ABSENT, OLD_KEY)]
    if surveyed.linked:
        rows = complete_key_changes(rows, key, names, before)
    if surveyed.absent:
        net = _with_missing(_by_column(rows, key, names, surveyed.absent), added)
    else:
        net = _by_row(rows, key, names)
    if where is not None:
        stays = (F.col(ACTION) == UPSERT) & F.coalesce(F.expr(where), F.lit(False))
        net = net.withColumn(ACTION, F.when(stays, F.lit(UPSERT)).otherwise(F.lit(DELETE)))
    folded = NetChanges(
        net.select(ACTION, ABSENT, *map(column_of, columns)),
        tuple(key),
        tuple(columns),
        truncated=truncated,
        absent=surveyed.absent,
        key_ranges=surveyed.key_ranges,
        added=tuple(column.name for column in added),
        only_inserts=surveyed.only_inserts,
    )
    if before is None or all(column.missing is None for column in added):
        return folded
    return _with_untouched(folded, before)


def _is_ranged(arrow: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(arrow) or kinds.is_decimal(arrow) or kinds.is_string(arrow))


def _with_missing(net: DataFrame, added: Sequence[TableColumn]) -> DataFrame:
    """The same rows; what they lack of new columns, which no table row can have, is there."""
    absent = F.coalesce(F.col(ABSENT), F.array().cast("array<string>"))
    return net.withColumns(
        {
            column.name: F.when(F.array_contains(absent, column.name), missing_value(column)).otherwise(
                column_of(column.name)
            )
            for column in added
        }
    )


def _with_untouched(net: NetChanges, table: DataFrame) -> NetChanges:
    """The same, and for each row that the batch doesn't touch a change that brings the new columns only."""
    kept = [name for name in net.columns if name not in net.key and name not in net.added]
    untouched = table.join(net.rows, list(net.key), "left_anti").select(
        F.lit(UPSERT).alias(ACTION),
        F.array(*map(F.lit, kept)).cast("array<string>").alias(ABSENT),
        *map(column_of, net.columns),
    )
    rows = net.rows.unionByName(untouched)
    return replace(net, rows=rows, absent=tuple(kept), key_ranges=(), only_inserts=False)


def missing_value(column: TableColumn) -> Column:
    """A column's `missing` as a literal; by its number where Python has no such date."""
    lake = column.lake
    value = column.parse(pa.array([column.missing], pa.string()))[0]
    if not value.is_valid or not pa.types.is_temporal(lake.arrow):
        return F.lit(value.as_py()).cast(lake.spark)
    number = F.lit(value.value)
    if pa.types.is_date(lake.arrow):
        return F.date_from_unix_date(number.cast("int"))
    return F.timestamp_micros(number).cast(lake.spark)


def _by_row(rows: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    """The last change of each key, where every change carries every column."""
    values = [name for name in names if name not in key]
    last = F.struct(ACTION, *map(column_of, values))
    folded = rows.groupBy(*map(column_of, key)).agg(F.max_by(last, _offset()).alias(_LAST))
    return folded.select(
        _net_action(F.col(f"{_LAST}.{ACTION}")).alias(ACTION),
        F.lit(None).cast("array<string>").alias(ABSENT),
        *map(column_of, key),
        *[column_of(name, _LAST).alias(name) for name in values],
    )


def _by_column(rows: DataFrame, key: Sequence[str], names: Sequence[str], absent: Sequence[str]) -> DataFrame:
    """The same where the columns `absent` may lack: of each the last value since the last insert or delete.

    Each of these is an aggregate of its own, and costs Spark a multiple of one that every change carries.
    """
    keys = [column_of(name) for name in key]
    values = [name for name in names if name not in key]
    lacked = [name for name in values if name in absent]
    carried = [name for name in values if name not in absent]
    resets = F.when(F.col(ACTION) != "update", _offset())
    rows = rows.withColumn(_RESET, F.max(resets).over(Window.partitionBy(*keys)))
    since = rows.where(F.col(_RESET).isNull() | (_offset() >= F.col(_RESET)))
    last = F.struct(ACTION, *map(column_of, carried))
    folded = since.groupBy(*keys).agg(
        F.max_by(last, _offset()).alias(_LAST),
        F.bool_or(F.col(ACTION) != "update").alias(_WHOLE),
        *[_last_carried(name).alias(name) for name in lacked],
    )
    action = _net_action(F.col(f"{_LAST}.{ACTION}"))
    kept = F.array_compact(
        F.array(*[F.when(column_of(name).isNull(), F.lit(name)) for name in lacked]).cast("array<string>")
    )
    partial = (action == UPSERT) & ~F.col(_WHOLE) & (F.size(kept) > 0)
    return folded.select(
        action.alias(ACTION),
        F.when(partial, kept).alias(ABSENT),
        *keys,
        *[
            (column_of(name).getField("value") if name in absent else column_of(name, _LAST)).alias(name)
            for name in values
        ],
    )


def _last_carried(name: str) -> Column:
    """The last value in a struct of its own, so that a null that was carried differs from none."""
    carried = (F.col(ACTION) != "delete") & ~F.coalesce(F.array_contains(ABSENT, name), F.lit(False))
    return F.max_by(F.struct(column_of(name).alias("value")), F.when(carried, _offset()))


def _net_action(last: Column) -> Column:
    return F.when(last == "delete", F.lit(DELETE)).otherwise(F.lit(UPSERT))


def _offset() -> Column:
    return F.struct(TX_OFFSET, OP_OFFSET)


def _literal(offset: LogOffset) -> Column:
    return F.struct(
        F.lit(offset.tx_offset).cast("long").alias(TX_OFFSET),
        F.lit(offset.op_offset).cast("long").alias(OP_OFFSET),
    )
