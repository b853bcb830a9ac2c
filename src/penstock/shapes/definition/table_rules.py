"""What is refused: shapes whose tables could not be kept equal to Postgres, with what to do about each.

1. The table exists, is permanent and holds its own rows: no plugin tells of views, foreign, unlogged or
   system tables, and changes of a table that inherits come under that one's name.
2. It has a key (TableFacts.key), and updates and deletes of each leaf carry it.
3. With a `where`, no column may be absent from an update: the row could not be judged, or would enter the
   shape without it. So a leaf with a TOAST table needs REPLICA IDENTITY FULL.
4. Delta can hold the names of the columns, and frames with their types can be read.
5. The database is UTF-8: the stream has its bytes as they are.
6. From a marked stream, no value follows `search_path`: capture has its role's, and a snapshot has none.

Spark judges what is written in `where` (lake/jobs/where_check.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple

from penstock.decoding.decoder import Decoder
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile, shape_line
from penstock.postgres.catalog.table_facts import (
    BY_INDEX,
    FULL,
    ORDINARY,
    PARTITIONED,
    PERMANENT,
    UTF8,
    LeafFacts,
    TableFacts,
)

OWN_PREFIX: Final = "_penstock_"
"""What our own columns begin with."""

_NOT_IN_DELTA: Final = frozenset(" ,;{}()\n\t=")
_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
    "t": "a TOAST table",
}
_PERSISTENCES: Final = {"u": "unlogged", "t": "temporary"}
_SYSTEM_SCHEMAS: Final = ("pg_catalog", "information_schema", "pg_toast")
_STATEMENTS_SHOWN: Final = 20


class Problem(NamedTuple):
    """Something that keeps a shape from running."""

    found: str
    fix: str

    def __str__(self) -> str:
        return f"{self.found}. Fix: {self.fix}"


def refusals(
    file: ShapesFile,
    facts: Mapping[Relation, TableFacts],
    decoder: Decoder,
    tables: Collection[Relation] = (),
    *,
    from_stream: bool = False,
) -> list[str]:
    """A line for each thing that is wrong, shape by shape; none: all of them may start.

    `facts` are of the tables that exist, and `decoder` reads their changes; among the names `tables` the one
    is sought that was meant. `from_stream`: the changes come from a marked stream.
    """
    return [
        shape_line(file.path, f"shape {shape.name!r}", *problem)
        for shape in file.shapes
        for problem in _problems(shape, facts.get(shape.table), decoder, tables, from_stream=from_stream)
    ]


def table_problems(
    shape: Shape, facts: TableFacts, decoder: Decoder, *, from_stream: bool = False
) -> list[Problem]:
    """What is wrong with the table as it is now; also asked when it was altered under a running shape."""
    not_ours = _not_ours(facts, decoder)
    if not_ours is not None:
        return [not_ours]
    return [
        *_key(shape, facts),
        *_identities(shape, facts),
        *_names(shape, facts),
        *_types(facts, decoder),
        *(_by_search_path(shape, facts) if from_stream else ()),
    ]


def _problems(
    shape: Shape,
    facts: TableFacts | None,
    decoder: Decoder,
    tables: Collection[Relation],
    *,
    from_stream: bool,
) -> list[Problem]:
    if facts is None:
        return [_missing_table(shape, tables)]
    problems = table_problems(shape, facts, decoder, from_stream=from_stream)
    return [*problems, *_missing_columns(shape, facts)]


def _missing_table(shape: Shape, tables: Collection[Relation]) -> Problem:
    found = f"there is no table {shape.table}"
    names = sorted(str(table) for table in tables)
    close = get_close_matches(str(shape.table), names, n=1)
    # The right name in another schema is not always close as a whole.
    close += sorted(str(table) for table in tables if table.table == shape.table.table)
    if close:
        return Problem(found, f"did you mean {close[0]}?")
    return Problem(found, "create it, or name one that is in the database that PGDATABASE names")


def _missing_columns(shape: Shape, facts: TableFacts) -> Iterator[Problem]:
    there = [column.name for column in facts.wanted(None)]
    virtual = [column.name for column in facts.columns if column.is_virtual]
    for name in shape.columns or ():
        if name in virtual:
            fix = "take it out, or make it STORED"
            yield Problem(
                f"column {name!r} of {shape.table} is generated and not stored: no change has it", fix
            )
        elif name not in there:
            close = get_close_matches(name, there, n=1)
            fix = f"did you mean {close[0]!r}?" if close else f"take it out; the table has {', '.join(there)}"
            yield Problem(f"{shape.table} has no column {name!r}", fix)


def _not_ours(facts: TableFacts, decoder: Decoder) -> Problem | None:
    table = facts.relation
    if facts.encoding != UTF8:
        return Problem(
            f"the database's encoding is {facts.encoding}, which {decoder.plugin} does not translate",
            f"use a database with ENCODING '{UTF8}'",
        )
    if facts.relation.schema in _SYSTEM_SCHEMAS:
        return Problem(f"{table} is a system table, whose changes are not sent", "name a table of your own")
    if facts.kind not in (ORDINARY, PARTITIONED):
        what = _KINDS.get(facts.kind, "no table")
        return Problem(f"{table} is {what}, whose changes are not sent", "name a table")
    if facts.has_children:
        return Problem(
            f"other tables inherit from {table}, and their rows would be left out",
            "name the tables that inherit, or make them partitions",
        )
    for leaf in facts.leaves:
        name = leaf.relation
        if leaf.persistence != PERMANENT:
            fix = f"ALTER TABLE {name} SET LOGGED" if leaf.persistence == "u" else "name a permanent table"
            what = _PERSISTENCES.get(leaf.persistence, "not permanent")
            return Problem(f"{name} is {what}, and its changes are not sent", fix)
        if leaf.kind != ORDINARY:
            what = _KINDS.get(leaf.kind, "no table")
            return Problem(
                f"the partition {name} is {what}, whose changes are not sent",
                f"ALTER TABLE {table} DETACH PARTITION {name}, or name the other partitions",
            )
    return None


def _key(shape: Shape, facts: TableFacts) -> Iterator[Problem]:
    if not facts.key:
        yield _no_key(shape, facts)
    elif shape.columns is not None:
        lacking = [name for name in facts.key if name not in shape.columns]
        if lacking:
            listed = ", ".join(map(repr, lacking))
            yield Problem(f"columns lacks {listed}, of the key of {shape.table}", f"add {listed} to columns")


def _no_key(shape: Shape, facts: TableFacts) -> Problem:
    table, index = facts.relation, facts.key_index
    if index is not None:
        return Problem(
            f"the key of {table} is deferrable, so rows may share it inside a transaction",
            f"ALTER TABLE {table} DROP CONSTRAINT {_quoted(index.name)},"
            f" ADD PRIMARY KEY ({', '.join(map(_quoted, index.columns))})",
        )
    found = f"{table} has no key: no primary key, and no unique index that is its replica identity"
    usable = [each for each in facts.indexes if each.is_immediate]
    if facts.replica_identity == BY_INDEX:
        found = f"{table} has no key: the index of its replica identity was dropped"
        if any(each.is_primary for each in usable):
            return Problem(found, f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT")
    # The index can't be the replica identity where FULL has to be.
    if usable and facts.kind == ORDINARY and not _need_full(shape, facts):
        return Problem(found, f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {_quoted(usable[0].name)}")
    return Problem(found, f"ALTER TABLE {table} ADD PRIMARY KEY (…), with the columns that identify a row")


def _identities(shape: Shape, facts: TableFacts) -> Iterator[Problem]:
    need_full = _need_full(shape, facts)
    if need_full:
        names = _listed([str(leaf.relation) for leaf in need_full])
        yield Problem(
            f"where needs REPLICA IDENTITY FULL on {names}: an update leaves out long values that it"
            " doesn't change, and the row can't be judged without them",
            _statements(need_full, "FULL"),
        )
    silent = [leaf for leaf in facts.leaves if leaf not in need_full and not leaf.carries(facts.key)]
    if facts.key and silent:
        names = _listed([str(leaf.relation) for leaf in silent])
        by_primary = facts.key_index is not None and facts.key_index.is_primary
        yield Problem(
            f"updates and deletes of {names} don't carry the key ({', '.join(facts.key)})",
            _statements(silent, "DEFAULT" if by_primary else "FULL"),
        )


def _need_full(shape: Shape, facts: TableFacts) -> list[LeafFacts]:
    if shape.where is None or not any(column.toastable for column in facts.columns):
        return []
    return [leaf for leaf in facts.leaves if leaf.has_toast and leaf.replica_identity != FULL]


def _statements(leaves: Sequence[LeafFacts], identity: str) -> str:
    shown = leaves[:_STATEMENTS_SHOWN]
    text = "; ".join(f"ALTER TABLE {leaf.relation} REPLICA IDENTITY {identity}" for leaf in shown)
    more = len(leaves) - len(shown)
    return f"{text}; and so for {more} more" if more else text


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _names(shape: Shape, facts: TableFacts) -> Iterator[Problem]:
    names = [column.name for column in facts.wanted(shape.columns)]
    advice = "rename the column, or list in columns those to keep"
    for name in names:
        if _NOT_IN_DELTA & set(name):
            yield Problem(f"a Delta table can't hold a column named {name!r}", advice)
        elif name.lower().startswith(OWN_PREFIX):
            yield Problem(f"column {name!r} begins with {OWN_PREFIX}, as our own do", advice)
    spellings: dict[str, list[str]] = {}
    # A `where` reads all columns, and Spark makes no difference between the two.
    read = names if shape.where is None else [column.name for column in facts.columns]
    for name in read:
        spellings.setdefault(name.lower(), []).append(name)
    for group in spellings.values():
        if len(group) > 1:
            same = " and ".join(map(repr, group))
            yield Problem(
                f"columns {same} are equal but for case: Spark can't tell them apart",
                advice if shape.where is None else "rename one: a where reads all columns",
            )


def _types(facts: TableFacts, decoder: Decoder) -> Iterator[Problem]:
    # The whole frame is broken, so a list of columns doesn't help.
    for column in facts.columns:
        if decoder.is_unreadable(column.type):
            yield Problem(
                f"{decoder.plugin} can't write the type {column.type} of column {column.name!r}: its name"
                " needs quotes",
                "rename the type or its schema",
            )


def _by_search_path(shape: Shape, facts: TableFacts) -> Iterator[Problem]:
    for column in facts.wanted(None if shape.where is not None else shape.columns):
        if column.by_search_path:
            yield Problem(
                f"values of column {column.name!r} ({column.type}) are names that Postgres prints by"
                " search_path: a stream has them as capture's session does, a snapshot with their schemas",
                "read the shape from Postgres, without --from; or make the column text or oid"
                + ("" if shape.where is not None else "; or list in columns those to keep"),
            )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
