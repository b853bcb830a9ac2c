"""What no change in the stream tells: loads without WAL, other names, partitions that come and go.

Each is one transaction's idea, and each ends with tables as the shapes want them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from hypothesis import strategies as st

from tests.spark.oracle.operations import LEAF_VALUES, Statements, inserts, updates
from tests.spark.oracle.tables import Table

AWAY: Final = "_90"
"""Behind a table's name: where it goes for a while."""
SHORT_LIVED: Final = "_91"
KINDS_OF_TRICKS: Final = {
    "a load without WAL": r"SET UNLOGGED|CREATE UNLOGGED",
    "another name": r"RENAME TO",
    "a partition attached": r"ATTACH PARTITION",
    "a partition detached": r"DETACH PARTITION",
    "a partition dropped": r"^DROP TABLE \w+_\d$",
    "a short-lived table": rf"^CREATE (TEMP )?TABLE \w+{SHORT_LIVED} AS",
}
"""By the words of their statements."""


@cache
def tricks(table: Table) -> st.SearchStrategy[Statements]:
    """One of them on a table."""
    if table.leaves:
        return st.one_of(_short_lived(table), _partitions(table), _partitions(table))
    return st.one_of(
        _short_lived(table), _unlogged(table), _unlogged(table), _renamed(table), _swapped(table)
    )


def is_trick(statement: str) -> bool:
    """Whether the table may differ until somebody has looked at the catalog."""
    words = ("LOGGED", "RENAME", "ATTACH", "DETACH", "DROP TABLE")
    return SHORT_LIVED not in statement and any(word in statement for word in words)


def tricks_in(statements: Iterable[str]) -> set[str]:
    """The kinds of tricks that these statements play, of KINDS_OF_TRICKS."""
    return {
        kind
        for statement in statements
        for kind, words in KINDS_OF_TRICKS.items()
        if re.search(words, statement)
    }


def _rows(table: Table) -> st.SearchStrategy[Statements]:
    return st.lists(inserts(table) | updates(table), min_size=1, max_size=3).map(lambda rows: sum(rows, ()))


def _unlogged(table: Table) -> st.SearchStrategy[Statements]:
    """A load that writes no WAL; often behind a TRUNCATE, which is in the stream."""
    name = table.name
    return st.builds(
        lambda emptied, rows, after: (
            *((f"TRUNCATE {name}",) if emptied else ()),
            f"ALTER TABLE {name} SET UNLOGGED",
            *rows,
            f"ALTER TABLE {name} SET LOGGED",
            *after,
        ),
        st.booleans(),
        _rows(table),
        _rows(table),
    )


def _renamed(table: Table) -> st.SearchStrategy[Statements]:
    """Rows are written under another name, or another table's under ours."""
    name, away = table.name, f"{table.name}{AWAY}"
    there = f"ALTER TABLE {name} RENAME TO {away}", f"ALTER TABLE {away} RENAME TO {name}"
    other = f"CREATE TABLE {name} (LIKE {away} INCLUDING ALL)"
    return st.one_of(
        _rows(table).map(
            lambda rows: (there[0], *(each.replace(f" {name} ", f" {away} ") for each in rows), there[1])
        ),
        _rows(table).map(lambda rows: (there[0], other, *rows, f"DROP TABLE {name}", there[1])),
    )


def _swapped(table: Table) -> st.SearchStrategy[Statements]:
    """Another table takes the name for good, with some of the rows."""
    name, away = table.name, f"{table.name}{AWAY}"
    if table.by_index:
        return _renamed(table)
    full = (f"ALTER TABLE {name} REPLICA IDENTITY FULL",) if table.full_identity else ()
    return _rows(table).map(
        lambda rows: (
            f"ALTER TABLE {name} RENAME TO {away}",
            f"CREATE TABLE {name} (LIKE {away} INCLUDING ALL)",
            *full,
            f"INSERT INTO {name} SELECT * FROM {away} LIMIT 3",
            f"DROP TABLE {away}",
            *rows,
        )
    )


def _short_lived(table: Table) -> st.SearchStrategy[Statements]:
    name = f"{table.name}{SHORT_LIVED}"
    kinds = st.sampled_from(["TABLE", "TEMP TABLE"])
    return kinds.map(
        lambda kind: (f"CREATE {kind} {name} AS SELECT * FROM {table.name}", f"DROP TABLE {name}")
    )


def _partitions(table: Table) -> st.SearchStrategy[Statements]:
    return st.sampled_from(sorted(set(LEAF_VALUES))).flatmap(lambda value: _partition(table, value))


def _partition(table: Table, value: int) -> st.SearchStrategy[Statements]:
    name, leaf = table.name, f"{table.name}_{value}"
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    part = f'"{table.key[-1]}"'
    filled = (
        f"INSERT INTO {leaf} SELECT {columns.replace(part, str(value))} FROM {name} ON CONFLICT DO NOTHING"
    )
    full = (f"ALTER TABLE {leaf} REPLICA IDENTITY FULL",) if table.full_identity else ()
    like = f"(LIKE {name} INCLUDING ALL)"
    attach = f"ALTER TABLE {name} ATTACH PARTITION {leaf} FOR VALUES IN ({value})"
    detach = f"ALTER TABLE {name} DETACH PARTITION {leaf}"
    made = (f"CREATE UNLOGGED TABLE {leaf} {like}", filled, f"ALTER TABLE {leaf} SET LOGGED", *full, attach)
    made_logged = (f"CREATE TABLE {leaf} {like}", filled, *full, attach)
    as_partition = tuple(table.create_leaf(value))
    known = (f"DROP TABLE {leaf}",), (detach, f"DROP TABLE {leaf}"), (detach, filled, attach)
    again = (f"DROP TABLE {leaf}", *as_partition), (f"DROP TABLE {leaf}", *made)
    new = made, made_logged, as_partition
    # What doesn't fit the moment fails, and takes its transaction along.
    chosen = st.sampled_from([*known, *again] if value in table.leaves else [*known, *new, *new])
    return st.builds(lambda trick, rows: trick + rows, chosen, inserts(table) | st.just(()))
