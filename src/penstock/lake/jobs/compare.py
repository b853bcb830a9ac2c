"""Compare a Postgres table with a lake table, row by row, in one pass.

Only rows come here that compare_buckets.py did not find equal, and those that are looked at again.

1. Rows of both sides are brought together by key. A key is `missing` (from the lake), `extra` (in the lake
   only), `different`, or equal. A key that the lake has twice is `different`, whatever its rows hold.
2. Values are compared exactly. Null equals null and NaN equals NaN. 0.0 and -0.0 are different: Postgres
   prints them differently. As parts of a key they are one, as in Postgres.
3. All is counted while only the rows that differ are kept: in memory, or on disk if they are many. The driver
   gets counts, up to RECHECK_LIMIT keys, and the texts of the few rows that are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, DoubleType, FloatType, StructType

from penstock.lake.comparison import Counts, Difference, Values, Verdict
from penstock.lake.spark.names import column_of

RECHECK_LIMIT: Final = 10_000
"""How many keys are handed out to be looked at again."""

_SIDE: Final = "_penstock_postgres"
_KEY: Final = "_penstock_key"
_ROW: Final = "_penstock_row"
_POSTGRES: Final = "postgres"
_LAKE: Final = "lake"
_COPIES: Final = "copies"
_COLUMNS: Final = "columns"
_VERDICT: Final = "verdict"


class SparkComparison:
    """See Comparison."""

    def __init__(self, counts: Counts, differing: DataFrame | None, key: Sequence[str]) -> None:
        """`differing` is persisted; None if there are no such rows."""
        self.counts: Final = counts
        self._differing = differing
        self._key = tuple(key)

    def beside(self, others: Counts) -> SparkComparison:
        """This one and what is known of other keys, all of which are equal. The rows are those of all."""
        counts = self.counts._replace(
            postgres=others.postgres, lake=others.lake, equal=self.counts.equal + others.equal
        )
        return SparkComparison(counts, self._differing, self._key)

    def keys(self) -> pa.Table:
        """See Comparison: RECHECK_LIMIT of them if there are more."""
        if self._differing is None:
            return pa.table({})
        names = [column_of(name, _KEY) for name in self._key]
        return self._differing.limit(RECHECK_LIMIT).select(*names).toArrow()

    def first(self, count: int, *, show_values: bool = False) -> list[Difference]:
        """See Comparison. Values leave Spark only if asked for."""
        if self._differing is None:
            return []
        schema = self._differing.schema
        shown = [_texts(_KEY, schema), F.col(_VERDICT), F.col(_COLUMNS), F.col(_COPIES)]
        if show_values:
            shown += [_texts(_POSTGRES, schema), _texts(_LAKE, schema)]
        rows = self._differing.orderBy(_KEY).limit(count).select(*shown).collect()
        return [_difference(row.asDict(recursive=True), show_values=show_values) for row in rows]

    def close(self) -> None:
        """See Comparison."""
        if self._differing is not None:
            self._differing.unpersist()


def compare(
    postgres_rows: DataFrame, lake_rows: DataFrame, key: Sequence[str], columns: Sequence[str]
) -> SparkComparison:
    """Compare these columns, the key's among them, of all rows. Both sides have the same types. Blocks."""
    sides = _side(postgres_rows, key, columns, True).unionByName(_side(lake_rows, key, columns, False))
    of_postgres, of_lake = F.col(_SIDE), ~F.col(_SIDE)
    pairs = sides.groupBy(*[column_of(name, _KEY).alias(str(place)) for place, name in enumerate(key)]).agg(
        F.count_if(of_postgres).alias("in_postgres"),
        F.count_if(of_lake).alias(_COPIES),
        F.first(F.when(of_postgres, F.col(_ROW)), ignorenulls=True).alias(_POSTGRES),
        F.first(F.when(of_lake, F.col(_ROW)), ignorenulls=True).alias(_LAKE),
    )
    schema = postgres_rows.schema
    judged = pairs.select(
        F.struct(*[F.col(str(place)).alias(name) for place, name in enumerate(key)]).alias(_KEY),
        *(F.col(name) for name in ("in_postgres", _COPIES, _POSTGRES, _LAKE)),
        _differing_columns(columns, schema).alias(_COLUMNS),
    ).withColumn(_VERDICT, _verdict())
    seen = Observation()
    differing = judged.observe(seen, *_counters()).where(F.col(_VERDICT).isNotNull()).persist()
    try:
        some = differing.count() > 0
        counts = Counts(**{name: value or 0 for name, value in seen.get.items()})
    except BaseException:
        differing.unpersist()
        raise
    if some:
        return SparkComparison(counts, differing, key)
    differing.unpersist()
    return SparkComparison(counts, None, key)


def only(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """The rows with one of these keys, which are few."""
    return rows.alias("rows").join(F.broadcast(keys.alias("keys")), _same_key(keys), "left_semi")


def without(keys: DataFrame, others: DataFrame) -> DataFrame:
    """The keys that are not among the others."""
    return keys.alias("rows").join(others.alias("keys"), _same_key(keys), "left_anti")


def _same_key(keys: DataFrame) -> Column:
    condition = F.lit(True)
    for name in keys.columns:
        condition = condition & column_of(name, "rows").eqNullSafe(column_of(name, "keys"))
    return condition


def _side(rows: DataFrame, key: Sequence[str], columns: Sequence[str], of_postgres: bool) -> DataFrame:
    return rows.select(
        F.struct(*[column_of(name) for name in key]).alias(_KEY),
        F.lit(of_postgres).alias(_SIDE),
        F.struct(*[column_of(name) for name in columns]).alias(_ROW),
    )


def _differing_columns(columns: Sequence[str], schema: StructType) -> Column:
    """The names of the columns that differ, in order."""
    names = [F.when(~_same(name, schema[name].dataType), F.lit(name)) for name in columns]
    return F.filter(F.array(*names), lambda name: name.isNotNull())


def _same(name: str, kind: DataType) -> Column:
    postgres, lake = column_of(name, _POSTGRES), column_of(name, _LAKE)
    equal = postgres.eqNullSafe(lake)
    if not isinstance(kind, FloatType | DoubleType):
        return equal
    # For Spark 0.0 and -0.0 are equal; their texts are not.
    return F.when(postgres == 0, postgres.cast("string").eqNullSafe(lake.cast("string"))).otherwise(equal)


def _verdict() -> Column:
    is_different = (F.size(_COLUMNS) > 0) | (F.col(_COPIES) != F.col("in_postgres"))
    return (
        F.when(F.col("in_postgres") == 0, F.lit(Verdict.EXTRA.value))
        .when(F.col(_COPIES) == 0, F.lit(Verdict.MISSING.value))
        .when(is_different, F.lit(Verdict.DIFFERENT.value))
    )


def _counters() -> list[Column]:
    verdicts = [F.count_if(F.col(_VERDICT) == each.value).alias(each.value) for each in Verdict]
    return [
        F.sum("in_postgres").alias("postgres"),
        F.sum(_COPIES).alias("lake"),
        F.count_if(F.col(_VERDICT).isNull()).alias("equal"),
        *verdicts,
    ]


def _texts(struct: str, schema: StructType) -> Column:
    """A struct with all of its fields as text. Python could not hold some of the values themselves."""
    kind = schema[struct].dataType
    assert isinstance(kind, StructType)
    fields = [_text(column_of(field.name, struct), field.dataType).alias(field.name) for field in kind]
    return F.when(F.col(struct).isNotNull(), F.struct(*fields)).alias(struct)


def _text(column: Column, kind: DataType) -> Column:
    return (
        F.concat(F.lit("\\x"), F.lower(F.hex(column)))
        if isinstance(kind, BinaryType)
        else column.cast("string")
    )


def _difference(row: dict[str, Any], *, show_values: bool) -> Difference:
    postgres, lake = row.get(_POSTGRES), row.get(_LAKE)
    both = row[_VERDICT] == Verdict.DIFFERENT
    columns = tuple(row[_COLUMNS]) if both else ()
    values = None
    if show_values:
        names = columns if both else tuple(postgres or lake or ())
        values = {name: Values((postgres or {}).get(name), (lake or {}).get(name)) for name in names}
    return Difference(Verdict(row[_VERDICT]), row[_KEY], columns, max(1, row[_COPIES]), values)
