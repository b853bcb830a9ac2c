"""Fill in what key changes leave out, from the changes and table rows that key_changes.py names.

Rare: a primary key that changes in a row with a TOASTed value. Only then do these jobs run; what comes to the
driver of each change of the keys in question is its position and its key, never its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.log_offset import LogOffset
from penstock.spark.decode import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.spark.key_changes import Event, find_sources
from penstock.spark.names import column_of

_KEY: Final = "_penstock_key"
_OLD: Final = "_penstock_old"
_COLUMN: Final = "_penstock_column"
_IN_TABLE: Final = "_penstock_in_table"
_FROM_TX: Final = "_penstock_from_tx"
_FROM_OP: Final = "_penstock_from_op"
_FROM: Final = (_FROM_TX, _FROM_OP, _IN_TABLE)
_AT: Final = (TX_OFFSET, OP_OFFSET)
_BORROW_SCHEMA: Final = (
    f"{TX_OFFSET} long, {OP_OFFSET} long, {_COLUMN} string, "
    f"{_FROM_TX} long, {_FROM_OP} long, {_IN_TABLE} boolean"
)


def complete_key_changes(
    rows: DataFrame, key: Sequence[str], names: Sequence[str], table: DataFrame | None
) -> DataFrame:
    """The same changes, but no key change lacks a column.

    `table` is the table before them; None if a truncate emptied it.
    """
    lacking = F.col(OLD_KEY).isNotNull() & F.col(ABSENT).isNotNull()
    links = rows.where(lacking)
    borrowed = _borrowed(rows, links, key, names)
    sources = _batch_sources(rows, names)
    if table is not None:
        sources = sources.unionByName(_table_sources(links, key, names, table))
    values = (
        borrowed.join(sources, list(_FROM), "left")
        .groupBy(*_AT)
        .agg(
            *[
                F.first(
                    F.when(F.col(_COLUMN) == name, F.struct(column_of(name).alias("value"))), ignorenulls=True
                ).alias(name)
                for name in names
            ]
        )
    )
    link, value = links.alias("link"), values.alias("value")
    completed = link.join(value, list(_AT), "left").select(
        *_AT,
        ACTION,
        F.lit(None).cast("array<string>").alias(ABSENT),
        OLD_KEY,
        *[
            F.when(F.array_contains(ABSENT, name), column_of(name, "value").getField("value"))
            .otherwise(column_of(name, "link"))
            .alias(name)
            for name in names
        ],
    )
    return rows.where(~lacking).unionByName(completed)


def _borrowed(rows: DataFrame, links: DataFrame, key: Sequence[str], names: Sequence[str]) -> DataFrame:
    """A row for each column of each key change that is to be filled in, with its source."""
    old_key = F.struct(*[F.col(OLD_KEY).getField(name).alias(name) for name in key])
    old = F.when(F.col(OLD_KEY).isNotNull(), F.to_json(old_key))
    texts = rows.withColumn(_KEY, F.to_json(F.struct(*map(column_of, key)))).withColumn(_OLD, old)
    old_keys = links.select(old.alias(_KEY)).distinct()
    wanted = texts.join(F.broadcast(old_keys), _KEY, "left_semi").unionByName(
        texts.where(F.col(OLD_KEY).isNotNull() & F.col(ABSENT).isNotNull())
    )
    events = sorted(
        {
            Event(LogOffset(tx, op), action, this, before, frozenset(absent or ()))
            for tx, op, action, this, before, absent in wanted.select(
                *_AT, ACTION, _KEY, _OLD, ABSENT
            ).collect()
        }
    )
    found = find_sources(events, names)
    borrows = [
        (*at, name, *source.at, source.in_table)
        for at, each in found.items()
        for name, source in each.items()
    ]
    return rows.sparkSession.createDataFrame(borrows, _BORROW_SCHEMA)


def _batch_sources(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    return rows.select(
        F.col(TX_OFFSET).alias(_FROM_TX),
        F.col(OP_OFFSET).alias(_FROM_OP),
        F.lit(False).alias(_IN_TABLE),
        *map(column_of, names),
    )


def _table_sources(links: DataFrame, key: Sequence[str], names: Sequence[str], table: DataFrame) -> DataFrame:
    """The table's rows of the old keys, under the positions of the key changes."""
    before = links.select(
        F.col(TX_OFFSET).alias(_FROM_TX), F.col(OP_OFFSET).alias(_FROM_OP), F.col(OLD_KEY).alias(_OLD)
    )
    same = [column_of(name, "row") == F.col(_OLD).getField(name) for name in key]
    stored = set(table.columns)
    return before.join(table.alias("row"), same).select(
        _FROM_TX,
        _FROM_OP,
        F.lit(True).alias(_IN_TABLE),
        *[
            (
                column_of(name, "row") if name in stored else F.lit(None).cast(links.schema[name].dataType)
            ).alias(name)
            for name in names
        ],
    )
