"""Fill in what key changes leave out, from the changes and table rows that key_changes.py names.

Rare: a primary key that changes in a row with a TOASTed value. Only then do these jobs run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.decoding.rows import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.lake.fold.key_changes import (
    AT,
    COLUMN,
    FROM,
    FROM_OP,
    FROM_TX,
    IN_TABLE,
    find_sources,
    is_link,
    lacked_columns,
)
from penstock.lake.spark.names import column_of

_OLD: Final = "_penstock_old"
_COLUMNS: Final = "_penstock_columns"


def complete_key_changes(
    rows: DataFrame, key: Sequence[str], names: Sequence[str], table: DataFrame | None
) -> DataFrame:
    """The same changes, but no key change lacks a column.

    `table` is the table before them; None if a truncate emptied it.
    """
    lacked = lacked_columns(rows)
    if not lacked:
        return rows
    links = rows.where(is_link())
    sources = _batch_sources(rows, lacked)
    if table is not None:
        sources = sources.unionByName(_table_sources(links, key, lacked, table))
    values = _values(find_sources(rows, key, lacked), sources, lacked)
    filled = {
        name: F.when(F.array_contains(ABSENT, name), column_of(name, "value").getField("value")).otherwise(
            column_of(name, "link")
        )
        for name in lacked
    }
    completed = (
        links.alias("link")
        .join(values.alias("value"), list(AT), "left")
        .select(
            *AT,
            ACTION,
            F.lit(None).cast("array<string>").alias(ABSENT),
            OLD_KEY,
            *[filled.get(name, column_of(name, "link")).alias(name) for name in names],
        )
    )
    return rows.where(~is_link()).unionByName(completed)


def _values(found: DataFrame, sources: DataFrame, lacked: Sequence[str]) -> DataFrame:
    """For each key change the values that it lacks, each in a struct, by column."""
    # Large values: a row is fetched once for all that is taken from it, which is mostly all that is lacked.
    fetched = (
        found.groupBy(*AT, *FROM)
        .agg(F.collect_list(COLUMN).alias(_COLUMNS))
        .join(sources, list(FROM), "left")
    )
    taken = [
        F.when(F.array_contains(_COLUMNS, name), F.struct(column_of(name).alias("value"))) for name in lacked
    ]
    return fetched.groupBy(*AT).agg(
        *[F.first(value, ignorenulls=True).alias(name) for name, value in zip(lacked, taken, strict=True)]
    )


def _batch_sources(rows: DataFrame, lacked: Sequence[str]) -> DataFrame:
    return rows.select(
        F.col(TX_OFFSET).alias(FROM_TX),
        F.col(OP_OFFSET).alias(FROM_OP),
        F.lit(False).alias(IN_TABLE),
        *map(column_of, lacked),
    )


def _table_sources(
    links: DataFrame, key: Sequence[str], lacked: Sequence[str], table: DataFrame
) -> DataFrame:
    """The table's rows of the old keys, under the positions of the key changes."""
    before = links.select(
        F.col(TX_OFFSET).alias(FROM_TX), F.col(OP_OFFSET).alias(FROM_OP), F.col(OLD_KEY).alias(_OLD)
    )
    same = [column_of(name, "row") == F.col(_OLD).getField(name) for name in key]
    stored = set(table.columns)
    return before.join(table.alias("row"), same).select(
        FROM_TX,
        FROM_OP,
        F.lit(True).alias(IN_TABLE),
        *[
            (
                column_of(name, "row") if name in stored else F.lit(None).cast(links.schema[name].dataType)
            ).alias(name)
            for name in lacked
        ],
    )
