"""The shapes file that `penstock init` writes: a shape for each table that can be followed. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from penstock.model.relation import Relation
from penstock.model.size import format_size

_UNFIT: Final = re.compile(r"[^a-z0-9_]+")
_LONGEST_NAME: Final = 63


class TableLook(NamedTuple):
    """A table, as far as somebody who chooses wants to know it."""

    relation: Relation
    rows: int | None
    """About so many; None: nobody has counted yet (ANALYZE does)."""
    size_bytes: int
    key: Sequence[str]
    """The columns that identify a row."""
    identity: str
    """Its replica identity, in words."""
    partitions: int = 0
    problems: Sequence[str] = ()
    """Why it can't be followed, with the fix; none: it can."""
    where_needs: str | None = None
    """What a `where` over it needs first."""


def render_shapes(database: str, tables: Sequence[TableLook]) -> str:
    """The file's text: the tables in the order given. At least one of them can be followed."""
    names: set[str] = set()
    blocks = []
    for table in tables:
        name = shape_name(table.relation, names)
        names.add(name)
        blocks.append(_block(name, table))
    usable = sum(not table.problems for table in tables)
    head = [
        f"# Shapes of the database {_line(database)}, written by `penstock init`:"
        f" {usable:,} of {len(tables):,} tables.",
        "# Each [[shape]] is a Delta table that `penstock shapes` keeps equal to a Postgres table.",
        "# Take out those that you don't need: the first start copies them all.",
        "# What else a shape can have (docs/shapes.md):",
        "#   where = \"status <> 'closed'\"      only these rows: a condition in Spark SQL",
        '#   columns = ["id", "status"]        only these columns, those of the key among them',
        "#   flush_interval_ms = 1000          how fresh it should be",
        "",
        "# A directory, beside this file unless it is absolute; or s3a://bucket/path.",
        'storage = "./lake"',
    ]
    return "\n\n".join(["\n".join(head), *blocks]) + "\n"


def shape_name(relation: Relation, taken: Collection[str]) -> str:
    """A name that a shape may have and no other has: the table's, if that can be."""
    wishes = [relation.table, f"{relation.schema}_{relation.table}"]
    for wish in map(_fit, wishes):
        if wish not in taken:
            return wish
    number = 2
    while (wish := f"{_fit(wishes[1])[: _LONGEST_NAME - 5]}_{number}") in taken:
        number += 1
    return wish


def _fit(name: str) -> str:
    fit = _UNFIT.sub("_", name.lower())
    return (fit if fit[:1].isascii() and fit[:1].isalpha() else f"t_{fit}")[:_LONGEST_NAME]


def _block(name: str, table: TableLook) -> str:
    shape = ["[[shape]]", f"name = {_toml(name)}", f"table = {_toml(str(table.relation))}"]
    facts = f"# {_facts(table)}"
    if table.problems:
        reasons = [f"# Left out: {_line(problem)}" for problem in table.problems]
        return "\n".join([facts, *reasons, *(f"#{_line(line)}" for line in shape)])
    advice = [] if table.where_needs is None else [f"# A where needs {_line(table.where_needs)}"]
    return "\n".join([facts, *advice, *shape])


def _facts(table: TableLook) -> str:
    rows = "rows not counted yet" if table.rows is None else f"about {table.rows:,} rows"
    key = f"key {', '.join(table.key)}" if table.key else "no key"
    words = [str(table.relation), rows, format_size(table.size_bytes), key]
    words.append(f"replica identity {table.identity}")
    if table.partitions:
        words.append(f"{table.partitions:,} partitions")
    return _line(", ".join(words))


def _toml(text: str) -> str:
    """A basic string. JSON's escapes are among TOML's."""
    return json.dumps(text, ensure_ascii=False)


def _line(text: str) -> str:
    """What fits into a comment."""
    return "".join(each if each.isprintable() else "?" for each in text)
