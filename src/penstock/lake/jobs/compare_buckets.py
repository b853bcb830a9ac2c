"""Which rows of two tables need not be compared one by one: those in buckets whose sums are equal.

1. A key belongs to one of BUCKETS buckets, by a hash of it. Integers are cut to ranges of 2**_RANGE_BITS
   first: rows that were inserted together mostly share a bucket, and lie together in Postgres.
2. A bucket's sums are its rows, and the sum of each of two 64-bit hashes of every row. They don't depend on
   the order of rows, and each side is read once, with nothing kept but the sums. Hashes are summed as halves
   of 32 bits, which no number of rows makes overflow. (XOR would not see two rows become two equal others.)
3. Rows are equal as compare.py says, so what Spark's hash takes for equal and Postgres doesn't is hashed
   beside it: a null, which the hash leaves out, and the sign of 0.0. Both sides have the same types: the
   scale of decimals is theirs. All other values go in with every bit.
4. Buckets that differ have equal sums only if both hashes meet by accident. Nobody is kept from forging that.
5. A bucket also knows in which slices of the Postgres table its rows are, so that a second pass over
   buckets that differ reads these slices only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, IntegralType, StructType

from penstock.lake.spark.names import column_of

BUCKETS: Final = 1 << 14

_RANGE_BITS: Final = 8
_SLICES: Final = 63
"""As many as a bigint has bits, but for its sign."""
_HALF: Final = (1 << 32) - 1
_BUCKET: Final = "_penstock_bucket"
_SIDE: Final = "_penstock_postgres"
_SLICE: Final = "_penstock_slice"
_POSTGRES: Final = "postgres"
_LAKE: Final = "lake"
_SLICES_SEEN: Final = "slices"
_HALVES: Final = ("first_low", "first_high", "second_low", "second_high")

T = TypeVar("T")


@dataclass(frozen=True)
class BucketSums:
    """What the sums of all buckets tell."""

    postgres: int
    """Rows."""
    lake: int
    equal: int
    """Rows of Postgres in buckets that are equal, which the lake has too."""
    differing: tuple[int, ...]
    """The buckets that are not equal."""
    slices: int
    """Those of Postgres that have rows of such buckets: a bit each."""
    key: tuple[str, ...]

    def parts(self, parts: Sequence[T]) -> list[T]:
        """Those of the table's parts that may have rows of buckets that differ."""
        return [part for place, part in enumerate(parts) if self.slices >> _slice(place, len(parts)) & 1]

    def rows(self, rows: DataFrame) -> DataFrame:
        """The rows of either side that are in buckets that differ."""
        table = pa.table({_BUCKET: pa.array(self.differing, pa.int32())})
        buckets = rows.sparkSession.createDataFrame(table, f"{_BUCKET} int")
        numbered = rows.withColumn(_BUCKET, _bucket(self.key, rows.schema))
        return numbered.join(F.broadcast(buckets), _BUCKET, "left_semi").drop(_BUCKET)


def bucket_sums(
    postgres_rows: DataFrame, lake_rows: DataFrame, key: Sequence[str], columns: Sequence[str], parts: int
) -> BucketSums:
    """Sum up these columns, the key's among them, of all rows. Both sides have the same types. Blocks.

    `postgres_rows` has a partition for each of the table's parts, in their order.
    """
    # As `_slice` has it.
    place = F.expr(f"int(spark_partition_id() * {_SLICES}L div {max(parts, _SLICES)})")
    slices = F.call_function("shiftleft", F.lit(1).cast("bigint"), place)
    sides = _side(postgres_rows, key, columns, F.lit(True), slices).unionAll(
        _side(lake_rows, key, columns, F.lit(False), F.lit(0).cast("bigint"))
    )
    of_postgres = F.col(_SIDE)
    sums = sides.groupBy(_BUCKET).agg(
        F.count_if(of_postgres).alias(_POSTGRES),
        F.count_if(~of_postgres).alias(_LAKE),
        F.bit_or(_SLICE).alias(_SLICES_SEEN),
        *[F.sum(F.when(of_postgres, F.col(half)).otherwise(-F.col(half))).alias(half) for half in _HALVES],
    )
    return _judged(sums.toArrow(), tuple(key))


def _judged(sums: pa.Table, key: tuple[str, ...]) -> BucketSums:
    same = pc.equal(sums[_POSTGRES], sums[_LAKE])
    for half in _HALVES:
        same = pc.and_(same, pc.equal(sums[half], 0))
    differing = sums.filter(pc.invert(same))
    slices = 0
    for seen in differing[_SLICES_SEEN].to_pylist():
        slices |= seen
    return BucketSums(
        postgres=_total(sums, _POSTGRES),
        lake=_total(sums, _LAKE),
        equal=_total(sums.filter(same), _POSTGRES),
        differing=tuple(differing[_BUCKET].to_pylist()),
        slices=slices,
        key=key,
    )


def _total(sums: pa.Table, column: str) -> int:
    return int(pc.sum(sums[column], min_count=0).as_py())


def _side(
    rows: DataFrame, key: Sequence[str], columns: Sequence[str], of_postgres: Column, slices: Column
) -> DataFrame:
    schema = rows.schema
    values = [value for name in columns for value in _hashed(name, schema[name].dataType)]
    # Chained in another order from another start, so that what meets in one hash doesn't in the other.
    first, second = F.xxhash64(*values), F.xxhash64(F.lit(1), *reversed(values))
    halves = [
        half for each in (first, second) for half in (each.bitwiseAND(_HALF), F.shiftrightunsigned(each, 32))
    ]
    return rows.select(
        _bucket(key, schema).alias(_BUCKET),
        of_postgres.alias(_SIDE),
        slices.alias(_SLICE),
        *[half.alias(name) for half, name in zip(halves, _HALVES, strict=True)],
    )


def _hashed(name: str, kind: DataType) -> list[Column]:
    value = column_of(name)
    hashed = [value, value.isNull()]
    if isinstance(kind, FloatType | DoubleType):
        hashed.append((value == 0) & value.cast("string").startswith("-"))
    return hashed


def _bucket(key: Sequence[str], schema: StructType) -> Column:
    cut = [
        F.shiftright(column_of(name).cast("bigint"), _RANGE_BITS)
        if isinstance(schema[name].dataType, IntegralType)
        else column_of(name)
        for name in key
    ]
    return F.pmod(F.xxhash64(*cut), F.lit(BUCKETS)).cast("int")


def _slice(place: int, parts: int) -> int:
    """The slice that a part is in: neighbours share one if there are more parts than slices."""
    return place * _SLICES // max(parts, _SLICES)
