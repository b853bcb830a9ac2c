"""Key changes that leave columns out: where each missing value stands.

`UPDATE t SET id = 10` doesn't carry an unchanged TOAST column, so the insert half of the change, a link, lacks
it. The value is in the old key's row: in an earlier change of the batch, or in the table, or, where that row
had itself come by a link, further back. This follows positions and names only, never values; those are fetched
by inheritance.py.

1. A link looks at its old key's changes before the delete half: back to the last insert or delete, the reset.
2. A column stands in the last of these that carries it. If none does, and there is no reset, it is in the
   table, in the row of the link's old key; behind a reset it is null, unless that is a link.
3. Behind a link it stands where it stands for that link. Chains are followed by doubling: each round, a link
   takes over what the one that it looks at knows, or that one's own next. So n links take log2(n) rounds.

`UPDATE t SET id = id + 1000000` makes as many links as the table has rows: all of it is done by Spark, and
nothing of a row comes to the driver. Keys are compared by Spark as well, as the fold and the MERGE do it: a
text of them would have to tell all microseconds apart, and 0.0 from -0.0 not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.spark.decode import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.spark.names import column_of

COLUMN: Final = "_penstock_column"
FROM_TX: Final = "_penstock_from_tx"
FROM_OP: Final = "_penstock_from_op"
IN_TABLE: Final = "_penstock_in_table"
AT: Final = (TX_OFFSET, OP_OFFSET)
FROM: Final = (FROM_TX, FROM_OP, IN_TABLE)

_LOOK: Final = "_penstock_look"
_LINK: Final = "_penstock_link"
_RESET: Final = "_penstock_reset"
_CARRIED: Final = "_penstock_carried"
_SOURCE: Final = "_penstock_source"
_NEXT: Final = "_penstock_next"
_THEIR_SOURCE: Final = "_penstock_their_source"
_THEIR_NEXT: Final = "_penstock_their_next"


def is_link() -> Column:
    """Whether a change is the insert half of a key change, and lacks columns."""
    return F.col(OLD_KEY).isNotNull() & F.col(ABSENT).isNotNull()


def lacked_columns(rows: DataFrame) -> list[str]:
    """The columns that links lack. Runs a Spark job."""
    lacked = rows.where(is_link()).select(F.explode(ABSENT).alias(COLUMN)).distinct()
    return sorted(row[COLUMN] for row in lacked.collect())


def find_sources(rows: DataFrame, key: Sequence[str], lacked: Sequence[str]) -> DataFrame:
    """A row for each column that a link lacks: the link (AT), COLUMN, and the source (FROM).

    The source is the change at (FROM_TX, FROM_OP); with IN_TABLE it is the table's row of that change's old
    key. A column without a row is null. `rows` are whole transactions without truncates, `lacked` are their
    `lacked_columns`. Runs Spark jobs: two, and two more each time that the longest chain doubles.
    """
    # A checkpoint cuts the plan, which would double with each round, and goes when nobody refers to it.
    found = _at_the_old_key(rows, key, lacked).localCheckpoint()
    while not found.where(F.col(_NEXT).isNotNull()).isEmpty():
        found = _further_back(found).localCheckpoint()
    return found.where(F.col(_SOURCE).isNotNull()).select(*AT, COLUMN, f"{_SOURCE}.*")


def _at_the_old_key(rows: DataFrame, key: Sequence[str], lacked: Sequence[str]) -> DataFrame:
    """What a link's old key tells of each column: its source, or the next link to ask; or neither."""
    keys = [column_of(name) for name in key]
    changes = rows.select(*AT, F.lit(False).alias(_LOOK), ACTION, ABSENT, is_link().alias(_LINK), *keys)
    looks = rows.where(is_link()).select(
        *AT,
        F.lit(True).alias(_LOOK),
        F.lit(None).cast("string").alias(ACTION),
        ABSENT,
        F.lit(True).alias(_LINK),
        *[F.col(OLD_KEY).getField(name).alias(name) for name in key],
    )
    # A look stands where its link stands, and the delete half is the row before it. The link itself may have
    # an equal key (0.0 and -0.0): then the look comes first.
    ordered = Window.partitionBy(*keys).orderBy(*AT, F.desc(_LOOK))
    before = ordered.rowsBetween(Window.unboundedPreceding, -2)
    reset = F.when(F.col(ACTION) != "update", F.struct(*AT, _LINK))
    state = changes.unionByName(looks).select(
        *AT,
        _LOOK,
        ABSENT,
        F.last(reset, ignorenulls=True).over(before).alias(_RESET),
        *[
            F.last(F.when(_carries(name), F.struct(*AT)), ignorenulls=True)
            .over(before)
            .alias(_carried(place))
            for place, name in enumerate(lacked)
        ],
    )
    columns = [
        F.struct(F.lit(name).alias(COLUMN), F.col(_carried(place)).alias(_CARRIED))
        for place, name in enumerate(lacked)
    ]
    asked = state.where(_LOOK).select(*AT, ABSENT, _RESET, F.inline(F.array(*columns)))
    known, reset_at = F.col(_CARRIED), F.struct(*[F.col(_RESET).getField(name).alias(name) for name in AT])
    source = F.when(
        known.isNotNull() & (F.col(_RESET).isNull() | (known >= reset_at)),
        _source(known.getField(TX_OFFSET), known.getField(OP_OFFSET), in_table=False),
    ).when(F.col(_RESET).isNull(), _source(F.col(TX_OFFSET), F.col(OP_OFFSET), in_table=True))
    return (
        asked.where(F.array_contains(ABSENT, F.col(COLUMN)))
        .withColumn(_SOURCE, source)
        .select(
            *AT,
            COLUMN,
            _SOURCE,
            F.when(F.col(_SOURCE).isNull() & F.col(_RESET).getField(_LINK), reset_at).alias(_NEXT),
        )
    )


def _further_back(found: DataFrame) -> DataFrame:
    """The same, with what the links know that were to be asked next."""
    theirs = found.select(
        F.struct(*AT).alias(_NEXT),
        COLUMN,
        F.col(_SOURCE).alias(_THEIR_SOURCE),
        F.col(_NEXT).alias(_THEIR_NEXT),
    )
    return found.join(theirs, [_NEXT, COLUMN], "left").select(
        *AT, COLUMN, F.coalesce(_SOURCE, _THEIR_SOURCE).alias(_SOURCE), F.col(_THEIR_NEXT).alias(_NEXT)
    )


def _carries(name: str) -> Column:
    """Whether a change carries a column. A look is no change: its action is null."""
    lacks = F.coalesce(F.array_contains(ABSENT, name), F.lit(False))
    return F.col(ACTION).isin("insert", "update") & ~lacks


def _carried(place: int) -> str:
    return f"{_CARRIED}_{place}"


def _source(tx: Column, op: Column, *, in_table: bool) -> Column:
    return F.struct(tx.alias(FROM_TX), op.alias(FROM_OP), F.lit(in_table).alias(IN_TABLE))
