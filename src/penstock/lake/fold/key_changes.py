"""Key changes that leave columns out: where each missing value stands.

`UPDATE t SET id = 10` doesn't carry an unchanged TOAST column, so the insert half of the change, here called
a link, lacks it. The value is in the old key's row: in an earlier change of the batch, or in the table, or,
where that row had itself come by a link, further back. This follows positions and names only, never values;
those are fetched by inheritance.py.

1. A link looks at the changes of its old key before the delete half, as far as the last insert or delete.
2. A column stands in the last of these that carries it. If none does, and there was no insert or delete, it
   is in the table, in the row of the link's old key. Behind an insert it is null, unless that is a link.
3. Behind a link it stands where it stands for that link. Chains are followed by doubling: in each round a
   link takes over what the one that it asks knows, or whom that one asks. So n links take log2(n) rounds.

`UPDATE t SET id = id + 1000000` makes as many links as the table has rows. So Spark does all of it, and
nothing of a row comes to the driver, where it would take seconds during which no other thread runs. Spark
compares the keys too, as it does in the fold and in the MERGE: a text of them would have to tell timestamps
apart by the microsecond, and 0.0 and -0.0 not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.decoding.rows import ABSENT, ACTION, OLD_KEY, OP_OFFSET, TX_OFFSET
from penstock.lake.spark.names import column_of

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
_ASK: Final = "_penstock_ask"
_ASKED: Final = "_penstock_asked"
_THEIR_SOURCE: Final = "_penstock_their_source"
_THEIR_ASK: Final = "_penstock_their_ask"


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
    found = _first_step(_at_the_old_keys(rows, key, lacked), lacked).localCheckpoint()
    while not found.where(F.col(_ASK).isNotNull()).isEmpty():
        found = _further_back(found).localCheckpoint()
    return found.where(F.col(_SOURCE).isNotNull()).select(*AT, COLUMN, f"{_SOURCE}.*")


def _at_the_old_keys(rows: DataFrame, key: Sequence[str], lacked: Sequence[str]) -> DataFrame:
    """For each link its old key's last insert or delete, and by column the last change that carries it."""
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
    # A look stands where its link does, and the delete half is the row before it. If the link's own key is
    # equal to the old one (0.0 and -0.0), the look comes first.
    ordered = Window.partitionBy(*keys).orderBy(*AT, F.desc(_LOOK))
    before = ordered.rowsBetween(Window.unboundedPreceding, -2)
    reset = F.when(F.col(ACTION) != "update", F.struct(*AT, _LINK))
    carried = [F.when(_carries(name), F.struct(*AT)) for name in lacked]
    seen = changes.unionByName(looks).select(
        *AT,
        _LOOK,
        ABSENT,
        F.last(reset, ignorenulls=True).over(before).alias(_RESET),
        F.array(*[F.last(at, ignorenulls=True).over(before) for at in carried]).alias(_CARRIED),
    )
    return seen.where(_LOOK)


def _first_step(seen: DataFrame, lacked: Sequence[str]) -> DataFrame:
    """For each column that a link lacks the source, or the link to ask; or neither: it is null."""
    columns = F.arrays_zip(F.array(*map(F.lit, lacked)).alias(COLUMN), F.col(_CARRIED))
    asked = seen.select(*AT, ABSENT, _RESET, F.inline(columns))
    reset, carried = F.col(_RESET), F.col(_CARRIED)
    reset_at = F.struct(
        reset.getField(TX_OFFSET).alias(TX_OFFSET), reset.getField(OP_OFFSET).alias(OP_OFFSET)
    )
    in_batch = carried.isNotNull() & (reset.isNull() | (carried >= reset_at))
    source = F.when(
        in_batch, _source(carried.getField(TX_OFFSET), carried.getField(OP_OFFSET), in_table=False)
    ).when(reset.isNull(), _source(F.col(TX_OFFSET), F.col(OP_OFFSET), in_table=True))
    ask = F.when(~in_batch & reset.getField(_LINK), reset_at)
    return asked.where(F.array_contains(ABSENT, F.col(COLUMN))).select(
        *AT, COLUMN, source.alias(_SOURCE), ask.alias(_ASK)
    )


def _further_back(found: DataFrame) -> DataFrame:
    """The same, with what the links know that were to be asked."""
    mine = found.withColumn(_ASKED, F.coalesce(_ASK, F.struct(*AT)))
    theirs = found.select(
        F.struct(*AT).alias(_ASKED),
        COLUMN,
        F.col(_SOURCE).alias(_THEIR_SOURCE),
        F.col(_ASK).alias(_THEIR_ASK),
    )
    # Who has no one to ask asks itself: nulls would all be joined by one task.
    return mine.join(theirs, [_ASKED, COLUMN]).select(
        *AT, COLUMN, F.coalesce(_SOURCE, _THEIR_SOURCE).alias(_SOURCE), F.col(_THEIR_ASK).alias(_ASK)
    )


def _carries(name: str) -> Column:
    """Whether a change carries a column. A look is no change: its action is null."""
    lacks = F.coalesce(F.array_contains(ABSENT, name), F.lit(False))
    return F.col(ACTION).isin("insert", "update") & ~lacks


def _source(tx: Column, op: Column, *, in_table: bool) -> Column:
    return F.struct(tx.alias(FROM_TX), op.alias(FROM_OP), F.lit(in_table).alias(IN_TABLE))
