"""Rows within a partition's bounds, in a shape's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from penstock.decoding.rows import Column as TableColumn
from penstock.lake.fold.apply import missing_value
from penstock.lake.jobs.changes import ShapeLayout
from penstock.lake.ports import LakeTable
from penstock.lake.spark.names import column_of
from penstock.lake.spark.session_settings import with_settings
from penstock.postgres.catalog.partition_bounds import Bound, Bounds, End, ListBound


def delete_within(
    spark: SparkSession, table: LakeTable, layout: ShapeLayout, bounds: Bounds, offset: int
) -> int:
    """Delete the rows within the bounds from the table, which is at `offset`; how many. Blocks."""
    with with_settings(spark, {"spark.sql.files.maxRecordsPerFile": str(table.file_rows(layout.key))}):
        return table.delete(within(bounds, layout.columns), offset)


def within(bounds: Bounds, columns: Sequence[TableColumn]) -> Column:
    """Whether a row of the lake satisfies the bounds.

    Their values become what the decoder makes of a row's own: both sides were read in the same way.
    """
    by_name = {column.name: column for column in columns}
    return reduce(Column.__and__, [_within(bound, by_name) for bound in bounds])


def _within(bound: Bound, columns: Mapping[str, TableColumn]) -> Column:
    if isinstance(bound, ListBound):
        column = columns[bound.column]
        return column_of(bound.column).isin([_value(column, text) for text in bound.values])
    ordered = [columns[name] for name in bound.columns]
    return _at_or_above(ordered, bound.low) & ~_at_or_above(ordered, bound.high)


def _at_or_above(columns: Sequence[TableColumn], ends: Sequence[End]) -> Column:
    """One column after the other: a later one counts where all before it are equal. Keys are never null."""
    (column, *others), (end, *rest) = columns, ends
    if end.rank != 0:
        return F.lit(end.rank < 0)
    has, value = column_of(column.name), _value(column, end.text)
    return (has > value) | ((has == value) & _at_or_above(others, rest)) if rest else has >= value


def _value(column: TableColumn, text: str) -> Column:
    return missing_value(column._replace(missing=text))
