"""StreamLook: one table, or one shape, compared with what a stream tells of it. Blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import PenstockError
from penstock.lake.comparison import Counts, PostgresAt
from penstock.lake.errors import CannotCompare
from penstock.lake.stream.compare_told import compare_told, count_rows
from penstock.lake.stream.told import TableTold, Told
from penstock.postgres.catalog.table_facts import FULL, LeafFacts, TableFacts
from penstock.shapes.verify.cuts import ShapeCheck

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StreamLook(NamedTuple):
    """Looks at what was told up to the cut of a snapshot."""

    spark: SparkSession
    told: Told
    tables: Mapping[str, TableTold]
    """In a few numbers, by name."""
    complete: bool
    show_values: bool

    def run(self, check: ShapeCheck, postgres: PostgresAt | None) -> None:
        """Bring a check to its end; a failure is its own. None: its table is in no snapshot."""
        if postgres is None:
            return
        check.told = sum(self._table(leaf).changes for leaf in check.facts.leaves)
        try:
            self._check_told(check.facts)
            if check.facts.key:
                for leaf in check.facts.leaves:
                    self._compare(check, leaf, _part_of(postgres, leaf))
            else:
                self._count(check, postgres)
        except PenstockError as error:
            check.problem = str(error)

    def _check_told(self, facts: TableFacts) -> None:
        quarantined = sum(self._table(leaf).quarantined for leaf in facts.leaves)
        if quarantined:
            raise CannotCompare(f"{quarantined:,} of its changes are in quarantine, and not in the stream")
        if facts.key and not all(leaf.carries(facts.key) for leaf in facts.leaves):
            raise CannotCompare(
                f"its updates and deletes don't carry the key ({', '.join(facts.key)}). Fix: ALTER TABLE"
                f" {facts.relation} REPLICA IDENTITY DEFAULT"
            )

    def _table(self, leaf: LeafFacts) -> TableTold:
        return self.tables.get(str(leaf.relation), TableTold())

    def _compare(self, check: ShapeCheck, leaf: LeafFacts, postgres: PostgresAt) -> None:
        """A partition by itself: the stream has its name, and a truncate of it is no other's."""
        changes = self.told.of(leaf.relation)
        found = compare_told(self.spark, changes, check.shape, postgres, complete=self.complete)
        counts = found.comparison.counts
        own = check.counts
        check.counts = own._replace(postgres=own.postgres + counts.postgres, lake=own.lake + counts.lake)
        check.untold += found.untold
        check.add(found.comparison, show_values=self.show_values)

    def _count(self, check: ShapeCheck, postgres: PostgresAt) -> None:
        """A table without a key: its rows can't be told apart, only counted."""
        (leaf,) = check.facts.leaves
        if leaf.replica_identity != FULL:
            raise CannotCompare(
                "it has no key, and its deletes are not in the stream. Fix: give it a primary key, or ALTER"
                f" TABLE {leaf.relation} REPLICA IDENTITY FULL to have its rows counted"
            )
        table = self._table(leaf)
        rows = count_rows(self.spark, check.shape, postgres)
        # Rows of before the stream may have been deleted in it.
        told = max(0, self.told.inserted(leaf.relation, table))
        is_whole = self.complete or table.truncated_at is not None
        lacking = max(0, rows - told)
        check.counts = Counts(
            rows,
            told,
            equal=min(rows, told),
            missing=lacking if is_whole else 0,
            extra=max(0, told - rows),
        )
        check.untold = 0 if is_whole else lacking
        check.counted = True


def _part_of(postgres: PostgresAt, leaf: LeafFacts) -> PostgresAt:
    return postgres._replace(parts=[part for part in postgres.parts if part.relation == leaf.relation])
