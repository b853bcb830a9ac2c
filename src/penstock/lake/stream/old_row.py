"""OldRow: whether a change carries all of its row as it was before, which a `where` has to judge. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from penstock.decoding.decoder import Cells
from penstock.postgres.catalog.table_facts import TableFacts


class OldRow(NamedTuple):
    """What a table's changes carry of the old row while its REPLICA IDENTITY is FULL.

    The catalog says what the identity is now, and a change may be from a time when it was another one. Its
    old row would have nulls where the change has nothing, and a row that leaves the filter would stay with
    readers for ever. What the change itself shows:

    1. FULL has every column of its time, nulls and unchanged long values too: so it has all that the new row
       has.
    2. A column that was added since isn't in it, and then none that was added later.
    3. Any other identity has the columns of a unique index, and no more.

    In doubt it is incomplete: a table that had only its key's columns, and got others since, begins again.
    """

    columns: tuple[str, ...]
    """In the order in which they were added; without those that are dropped."""
    indexes: tuple[tuple[str, ...], ...]
    """The columns of each unique index."""

    @classmethod
    def of(cls, facts: TableFacts) -> Self:
        """As a table's catalog has it."""
        there = (column.name for column in facts.wanted(None) if column.name not in facts.gone)
        return cls(tuple(there), tuple(index.columns for index in facts.indexes))

    def lacking(self, cells: Cells) -> Sequence[str]:
        """The columns that a change's old row should have, and hasn't; none if it is whole."""
        old = {cell.name for cell in cells.identity}
        if changed := [cell.name for cell in cells.columns if cell.name not in old]:
            return changed
        absent = [name for name in self.columns if name not in old]
        is_suffix = absent == list(self.columns[len(self.columns) - len(absent) :])
        is_key = not old or any(old.issubset(index) for index in self.indexes)
        return absent if is_key or not is_suffix else ()
