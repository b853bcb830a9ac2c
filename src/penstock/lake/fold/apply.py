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

The common batch has no absent column: then the last change a key is all there is to find. So it is of columns
that no change carries, as after DROP COLUMN. survey.py tells, in one pass, what a batch needs; the caller
persists the changes, which are read twice or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.decoding.rows import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.decoding.rows import Column as TableColumn
from penstock.lake.fold.inheritance import complete_key_changes
from penstock.lake.fold.survey import KeyRange, Survey
from penstock.lake.spark.names import column_of
from penstock.model.log_offset import LogOffset

DELETE: Final = "delete"
UPSERT: Final = "upsert"

_LAST: Final = "_penstock_last"
_RESET: Final = "_penstock_reset"
_AT: Final = "_penstock_at"


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
        # Key changes have been given columns that no other change carries.
        groups = [(name,) for name in surveyed.absent] if surveyed.linked else surveyed.together
        net = _with_missing(_by_column(rows, key, names, surveyed.absent, groups), added)
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


def _by_column(
    rows: DataFrame,
    key: Sequence[str],
    names: Sequence[str],
    absent: Sequence[str],
    groups: Sequence[Sequence[str]],
) -> DataFrame:
    """The same where changes may lack the columns `absent`: of each the last value since the last insert or
    delete.

    Each group of columns that come or lack together is an aggregate of its own, and costs Spark a multiple
    of the rest. Columns of no group are in no change at all, as after DROP COLUMN: they cost nothing.
    """
    values = [name for name in names if name not in key]
    last = F.struct(ACTION, *[column_of(name) for name in values if name not in absent])
    folded = rows.groupBy(*map(column_of, key)).agg(
        F.max_by(last, _offset()).alias(_LAST),
        F.max(F.when(F.col(ACTION) != "update", _offset())).alias(_RESET),
        *[_last_carried(names).alias(_group(place)) for place, names in enumerate(groups)],
    )
    found = {name: column_of(name, _LAST) for name in values if name not in absent}
    for place, group in enumerate(groups):
        is_since = F.col(_RESET).isNull() | (F.col(f"{_group(place)}.{_AT}") >= F.col(_RESET))
        found |= {name: F.when(is_since, column_of(name, _group(place))) for name in group}
    action = _net_action(F.col(f"{_LAST}.{ACTION}"))
    kept = F.concat(
        _names([name for name in absent if name not in found]),
        *[
            F.when(F.col(_group(place)).isNull(), _names(group)).otherwise(_names(()))
            for place, group in enumerate(groups)
        ],
    )
    partial = (action == UPSERT) & F.col(_RESET).isNull() & (F.size(kept) > 0)
    return folded.select(
        action.alias(ACTION),
        F.when(partial, kept).alias(ABSENT),
        *map(column_of, key),
        *[found.get(name, F.lit(None).cast(rows.schema[name].dataType)).alias(name) for name in values],
    )


def _last_carried(group: Sequence[str]) -> Column:
    """Their last values with their place, in a struct, so that nulls that were carried differ from none."""
    lacks = F.coalesce(F.array_contains(ABSENT, group[0]), F.lit(False))
    carried = F.col(ACTION).isin("insert", "update") & ~lacks
    return F.max_by(F.struct(_offset().alias(_AT), *map(column_of, group)), F.when(carried, _offset()))


def _group(place: int) -> str:
    return f"_penstock_group_{place}"


def _names(names: Sequence[str]) -> Column:
    return F.array(*map(F.lit, names)).cast("array<string>")


def _net_action(last: Column) -> Column:
    return F.when(last == "delete", F.lit(DELETE)).otherwise(F.lit(UPSERT))


def _offset() -> Column:
    return F.struct(TX_OFFSET, OP_OFFSET)


def _literal(offset: LogOffset) -> Column:
    return F.struct(
        F.lit(offset.tx_offset).cast("long").alias(TX_OFFSET),
        F.lit(offset.op_offset).cast("long").alias(OP_OFFSET),
    )
