"""Drift: a table was altered under a running shape; what is to be done about it.

1. A table that now breaks a rule (definition/table_rules.py) stops its shape: no key, no replica identity, a
   name that Delta can't hold. So does one that lacks a column which `where` names: nothing else judges rows.
2. What leaves old rows in the lake with values that they no longer have needs a new snapshot: another table,
   another key, a column that was renamed, or dropped and added again, an enum's label that was renamed, an
   attribute that a composite type got or lost, with which old rows are printed. So does a column that came
   and went between two looks: the log may have its values, under a name that another column has now.
3. A column whose type is another in the lake stops its shape, unless a snapshot comes anyway. One whose new
   type holds all values of the old one (int to bigint) needs a snapshot. A numeric that merely got more
   digits before the point is widened in place, if its table still has its file: no value is another.
4. An added column is added, and old rows get the value that they have in Postgres.
5. A dropped column is kept: old rows keep their values and new ones get null. It is still read: the log may
   hold changes of before.

A shape that lists its columns cares for no others. A rewrite is not seen here but by `Collector.check`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from penstock.decoding.decoder import Decoder
from penstock.decoding.widening import has_more_digits, is_wider
from penstock.model.shape import Shape
from penstock.postgres.catalog.table_facts import ColumnFacts, TableFacts
from penstock.shapes.definition.table_rules import Problem, table_problems

# A literal of Spark SQL.
_TEXT: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


class Drift(NamedTuple):
    """What to do. At most one of `stop` and `again` is set, and then there is nothing to add."""

    facts: TableFacts
    """To be kept instead of `before`, once the rest is done. A new snapshot begins with the catalog's."""
    added: tuple[ColumnFacts, ...] = ()
    """To be added to the lake's table, with `missing` in the rows that it has."""
    dropped: tuple[str, ...] = ()
    """Gone from the table; the lake keeps them."""
    again: str = ""
    """Why the shape must be snapshotted again."""
    stop: str = ""
    """Why the shape must stop, and what to do about it."""
    widened: tuple[ColumnFacts, ...] = ()
    """To be given their types of now in the lake's table, which have more digits."""

    def by_snapshot(self, shape: Shape) -> Drift:
        """The same for a table whose columns can't be widened."""
        column = self.widened[0]
        return Drift(
            self.facts, again=f"column {column.name!r} of {shape.table} is {column.type}, which is wider"
        )


def compare(
    shape: Shape, before: TableFacts, now: TableFacts, decoder: Decoder, *, from_stream: bool = False
) -> Drift:
    """What became of the table since `before`, as far as the shape cares."""
    problems = [
        *table_problems(shape, now, decoder, from_stream=from_stream),
        *_renamed_in_list(shape, before, now),
        *_gone_from_where(shape, before, now),
    ]
    if problems:
        return Drift(before, stop=". ".join(map(str, problems)))
    again = next(_grounds_for_snapshot(shape, before, now), "")
    if again:
        return Drift(now, again=again)
    widened = tuple(_widened(shape, before, now))
    retyped = next(_retyped(shape, before, now, widened), None)
    if retyped is not None:
        return Drift(before, stop=str(retyped))
    old, there = _names(shape, before), {column.name for column in now.columns}
    added = tuple(column for column in now.wanted(shape.columns) if column.name not in old)
    gone = [
        # A row that lacks it is one of after, and has null.
        column._replace(not_null=False, missing=None)
        for column in before.columns
        if column.name not in there
    ]
    dropped = tuple(name for name in old if name not in there and name not in before.gone)
    facts = now._replace(columns=(*now.columns, *gone), gone=tuple(column.name for column in gone))
    return Drift(facts, added, dropped, widened=widened)


def _names(shape: Shape, facts: TableFacts) -> dict[str, ColumnFacts]:
    return {column.name: column for column in facts.wanted(shape.columns)}


def _renamed_in_list(shape: Shape, before: TableFacts, now: TableFacts) -> Iterator[Problem]:
    """Columns that the file names and that have another name now: the file has to follow."""
    if shape.columns is None or before.tree.table.oid != now.tree.table.oid:
        return
    there = {column.name for column in now.columns}
    by_attnum = {column.attnum: column.name for column in now.columns}
    for column in before.wanted(shape.columns):
        renamed = by_attnum.get(column.attnum)
        if column.name not in there and renamed is not None:
            yield Problem(
                f"column {column.name!r} of {shape.table} is now named {renamed!r}",
                f"write {renamed!r} into the columns of shape {shape.name!r} and start again",
            )


def _gone_from_where(shape: Shape, before: TableFacts, now: TableFacts) -> Iterator[Problem]:
    there = {column.name for column in now.columns}
    where = _TEXT.sub("", shape.where or "")
    for name in [column.name for column in before.columns if column.name not in there]:
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", where, re.IGNORECASE):
            yield Problem(
                f"where needs column {name!r}, which {shape.table} no longer has",
                f"correct the where of shape {shape.name!r} and start again",
            )


def _grounds_for_snapshot(shape: Shape, before: TableFacts, now: TableFacts) -> Iterator[str]:
    if before.tree.table.oid != now.tree.table.oid:
        yield f"another table has taken the name {shape.table}"
        return
    if set(before.key) != set(now.key):
        yield f"the key of {shape.table} was ({', '.join(before.key)}) and is ({', '.join(now.key)})"
    came = sum(column.attnum > before.attributes for column in now.columns)
    if before.attributes and now.attributes - before.attributes > came:
        yield f"a column of {shape.table} was added and dropped again"
    old = _names(shape, before)
    old_names = {column.attnum: column.name for column in before.columns}
    for column in now.wanted(shape.columns):
        was = old.get(column.name)
        if column.name in before.gone or (was is not None and was.attnum != column.attnum):
            yield f"column {column.name!r} of {shape.table} is another than before, under the same name"
        elif was is not None and _is_rewritten(was, column, before, now):
            types = f"was {was.type} and is {column.type}, which is wider"
            yield f"column {column.name!r} of {shape.table} {types}"
        elif was is not None and (renamed := _renamed_label(was, column)):
            yield f"a label of column {column.name!r} of {shape.table} was renamed: {renamed}"
        elif was is not None and was.composites and was.composites != column.composites:
            yield f"a composite type in column {column.name!r} of {shape.table} got or lost an attribute"
        elif was is None and column.attnum in old_names:
            yield f"column {old_names[column.attnum]!r} of {shape.table} was renamed to {column.name!r}"


def _renamed_label(was: ColumnFacts, column: ColumnFacts) -> str:
    before, now = (dict(label.split(" ", 1) for label in each.labels) for each in (was, column))
    return ", ".join(
        f"{label!r} to {now[oid]!r}" for oid, label in before.items() if now.get(oid, label) != label
    )


def _is_rewritten(was: ColumnFacts, column: ColumnFacts, before: TableFacts, now: TableFacts) -> bool:
    """Whether its type is wider, and its values may be others."""
    new, old = column.column.lake.spark, was.column.lake.spark
    return is_wider(new, old) and not (has_more_digits(new, old) and _has_same_files(before, now))


def _has_same_files(before: TableFacts, now: TableFacts) -> bool:
    """Whether each member that there was and is has its file: no ALTER TABLE has given it other values."""
    files = {member.oid: member.filenode for member in (now.tree.table, *now.tree.partitions)}
    return all(
        files.get(member.oid, member.filenode) == member.filenode
        for member in (before.tree.table, *before.tree.partitions)
    )


def _widened(shape: Shape, before: TableFacts, now: TableFacts) -> Iterator[ColumnFacts]:
    """Called where nothing needs a snapshot."""
    old = _names(shape, before)
    for column in now.wanted(shape.columns):
        was = old.get(column.name)
        if was is not None and has_more_digits(column.column.lake.spark, was.column.lake.spark):
            yield column


def _retyped(
    shape: Shape, before: TableFacts, now: TableFacts, widened: Collection[ColumnFacts]
) -> Iterator[Problem]:
    old = _names(shape, before)
    for column in now.wanted(shape.columns):
        was = old.get(column.name)
        if was is not None and was.column.lake != column.column.lake and column not in widened:
            yield Problem(
                f"column {column.name!r} of {shape.table} was {was.type}, {was.column.lake.spark} in the"
                f" lake, and is {column.type}, {column.column.lake.spark} in the lake",
                f"stop penstock shapes, and start it with --resnapshot {shape.name}",
            )
