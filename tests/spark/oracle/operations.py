"""What writers do: strategies for the statements of one idea, on one table.

Statements are plain SQL. A key that isn't there, or is taken, makes most of them do nothing; a few fail, and
take their transaction with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Final

from hypothesis import strategies as st

from tests.spark.oracle.kinds import KEY_VALUES, KINDS
from tests.spark.oracle.tables import Column, Table

Statements = tuple[str, ...]

LEAF_VALUES: Final = (0, 0, 0, 0, 2, 0, 0, 1, 1, 3, 1, 1, 1)
"""Of the column by which a table is partitioned; some have no leaf until somebody makes it."""

Key = tuple[str, ...]


@cache
def keys(table: Table) -> st.SearchStrategy[Key]:
    """Literals for the key's columns."""
    parts = [st.sampled_from(KEY_VALUES[column.kind]) for column in table.columns[: table.key_length]]
    if table.leaves:
        parts[-1] = st.sampled_from([str(value) for value in LEAF_VALUES])
    return st.tuples(*parts)


@cache
def operations(table: Table) -> st.SearchStrategy[Statements]:
    """One idea: an insert, an update, a chain of key changes, a truncate and what follows it…"""
    common = [inserts(table), inserts(table), inserts(table), updates(table), updates(table)]
    common += [key_chains(table), key_chains(table), _deletes(table)]
    if table.leaves:
        common += [key_chains(table), _new_leaves(table)]
    sweeping = st.sampled_from(_sweeping(table)).map(lambda sql: (sql,))
    # A table that is emptied all the time shows nothing. Hypothesis likes the ends, so this is in the middle.
    rare = st.one_of(_truncates(table), sweeping)
    return st.one_of(*common, rare, *common)


@cache
def inserts(table: Table) -> st.SearchStrategy[Statements]:
    """One to six rows; a row that is there stays, or is updated."""
    rest = [_values(column) for column in table.columns[table.key_length :]]
    rows = st.lists(
        st.tuples(keys(table), st.tuples(*rest)), min_size=1, max_size=6, unique_by=lambda row: row[0]
    )
    return st.builds(lambda rows, update: (_insert(table, rows, update=update),), rows, st.booleans())


@cache
def updates(table: Table) -> st.SearchStrategy[Statements]:
    """Some columns of one row; long values are left alone more often than not."""
    return st.builds(
        lambda key, sets: (f"UPDATE {table.name} SET {sets} WHERE {_is(table, key)}",),
        keys(table),
        _sets(table),
    )


@cache
def key_chains(table: Table) -> st.SearchStrategy[Statements]:
    """A row takes another key, and the next takes its place, …; also back again, with other columns set."""
    path = st.lists(keys(table), min_size=2, max_size=4)
    order = st.sampled_from(["forth", "back", "round"])

    def chain(path: list[Key], order: str, sets: str | None) -> Statements:
        steps = list(pairwise(path))
        if order == "back":
            steps.reverse()
        elif order == "round":
            steps.append((path[-1], path[0]))
        return tuple(_key_change(table, old, new, sets) for old, new in steps)

    return st.builds(chain, path, order, st.none() | _sets(table))


def _deletes(table: Table) -> st.SearchStrategy[Statements]:
    key = keys(table)
    again = inserts(table)
    deleted = key.map(lambda key: (f"DELETE FROM {table.name} WHERE {_is(table, key)}",))
    return deleted | st.builds(lambda first, then: first + then, deleted, again)


def _truncates(table: Table) -> st.SearchStrategy[Statements]:
    """Often in the middle of other things."""
    parts = st.lists(inserts(table) | updates(table), max_size=2).map(lambda parts: sum(parts, ()))
    return st.builds(
        lambda before, rows, after: (*before, f"TRUNCATE {table.name}", *rows, *after),
        parts,
        st.one_of(inserts(table), st.just(()), inserts(table)),
        parts,
    )


def _new_leaves(table: Table) -> st.SearchStrategy[Statements]:
    """A leaf and, in the same transaction, its first rows."""
    values = sorted(set(LEAF_VALUES) - set(table.leaves))
    made = st.sampled_from(values).map(lambda value: tuple(table.create_leaf(value)))
    return st.builds(lambda made, rows: made + rows, made, inserts(table))


def _sweeping(table: Table) -> list[str]:
    touch = f"UPDATE {table.name} SET {_same(table.columns[-1])}"
    found = [touch, f"DELETE FROM {table.name}", touch]
    for column in table.columns:
        if column.kind == "int" and not (table.leaves and column.name == table.key[-1]):
            found.append(f'UPDATE {table.name} SET "{column.name}" = "{column.name}" + 20')
        elif column.kind == "long":
            # Every row is written again, and none of its long values.
            found.append(f"UPDATE {table.name} SET {_same(column)}")
    return found


def _same(column: Column) -> str:
    return f'"{column.name}" = "{column.name}"'


def _insert(table: Table, rows: Sequence[tuple[Key, tuple[str, ...]]], *, update: bool) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    values = ", ".join(f"({', '.join((*key, *rest))})" for key, rest in rows)
    key = ", ".join(f'"{name}"' for name in table.key)
    others = [column.name for column in table.columns[table.key_length :]]
    sets = ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in others)
    action = f"({key}) DO UPDATE SET {sets}" if update else "DO NOTHING"
    return f"INSERT INTO {table.name} ({names}) VALUES {values} ON CONFLICT {action}"


def _key_change(table: Table, old: Key, new: Key, sets: str | None) -> str:
    changed = ", ".join(f'"{name}" = {value}' for name, value in zip(table.key, new, strict=True))
    taken = f"SELECT FROM {table.name} WHERE {_is(table, new)}"
    more = "" if sets is None else f", {sets}"
    return f"UPDATE {table.name} SET {changed}{more} WHERE {_is(table, old)} AND NOT EXISTS ({taken})"


def _sets(table: Table) -> st.SearchStrategy[str]:
    others = table.columns[table.key_length :]
    short = [column for column in others if column.kind != "long"] or others
    chosen = st.lists(st.sampled_from(short), min_size=1, max_size=2, unique=True) | st.lists(
        st.sampled_from(others), min_size=1, max_size=3, unique=True
    )
    return chosen.flatmap(
        lambda columns: st.tuples(*[_assignment(column) for column in columns]).map(", ".join)
    )


def _assignment(column: Column) -> st.SearchStrategy[str]:
    return _values(column).map(lambda value: f'"{column.name}" = {value}')


def _values(column: Column) -> st.SearchStrategy[str]:
    values = KINDS[column.kind].values
    return values if column.not_null else st.one_of(values, values, st.just("NULL"))


def _is(table: Table, key: Key) -> str:
    return " AND ".join(f'"{name}" = {value}' for name, value in zip(table.key, key, strict=True))
