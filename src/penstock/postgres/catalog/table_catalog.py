"""ShapeCatalog: what the database says of the tables that shapes name.

It reads pg_catalog by name and oid and opens no table, so it waits for no lock on one: neither a cast to
regclass nor a size function stands here. It needs PostgreSQL 14.

Type names follow `search_path`, here as in frames. So the sessions have to be opened like the replication
connection: by the same role, in the same database, with the same options. Frames of a marked stream come from
a capture, whose names may lack the schema (rows.py, 7).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import AsyncConnection

from penstock.decoding.decoder import Decoder
from penstock.errors import ConnectionFailed
from penstock.model.lsn import parse_lsn
from penstock.model.relation import Relation
from penstock.postgres.catalog.table_facts import (
    PARTITIONED,
    ColumnFacts,
    IndexFacts,
    LeafFacts,
    TableFacts,
    missing_text,
)
from penstock.postgres.catalog.table_tree import Found, Member, Tree
from penstock.postgres.connection import one_line

# Behind the start of a recursive `parts (oid)`: what these types are made of, down to the last, each once.
_AND_THEIR_PARTS: LiteralString = """
UNION
SELECT x.oid FROM parts JOIN pg_catalog.pg_type p ON p.oid = parts.oid
CROSS JOIN LATERAL (
    VALUES (p.typelem), (p.typbasetype)
    UNION ALL
    SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE p.oid IN (r.rngtypid, r.rngmultitypid)
    UNION ALL
    SELECT m.atttypid FROM pg_catalog.pg_attribute m WHERE m.attrelid = p.typrelid AND m.attnum > 0
) AS x (oid)
"""
# When a table was made is told by the row of its column `ctid` (-1): nothing alters that one, whereas an
# ATTACH, a rename or an ALTER gives the table's other rows a new xmin. A partition brings rows along if it
# joined its parent in another transaction than the one that made it, or if something above it joined later
# than that: `above_age` is the age of the latest link above. An age is a signed number that overflows for
# rows that were frozen long ago; taken as unsigned, those are old, as they should be. What `named` is
# for, and `joined_by` once more: rewrites.py. A bound names no column, so it is printed without a relation:
# newer servers would open that.
_TREES: LiteralString = (
    """
WITH RECURSIVE tree (root, oid, parent, joined_by, above_age) AS (
    SELECT c.oid, c.oid, 0::oid, NULL::xid, 4294967296::int8
    FROM ROWS FROM (pg_catalog.unnest(%s::name[]), pg_catalog.unnest(%s::name[])) AS w (schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    UNION ALL
    SELECT t.root, c.oid, t.oid, i.xmin, least(t.above_age, CASE WHEN t.joined_by IS NOT NULL
           THEN (pg_catalog.age(t.joined_by)::int8 + 4294967296) %% 4294967296 END)
    FROM tree t
    JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT t.root, n.nspname::text, c.relname::text, c.oid, c.relfilenode, c.relkind::text,
       (SELECT pg_catalog.md5(pg_catalog.string_agg(a.attnum || ' ' || a.xmin::text, ',' ORDER BY a.attnum))
        FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
       coalesce(t.joined_by <> made.xmin
                OR t.above_age < (pg_catalog.age(made.xmin)::int8 + 4294967296) %% 4294967296, false),
       pg_catalog.concat(c.relreplident, (
           SELECT pg_catalog.string_agg(pg_catalog.concat_ws(' ', '', i.indkey, i.indisprimary::int,
                  i.indisreplident::int, i.indimmediate::int, i.indisvalid::int), ',' ORDER BY i.indexrelid)
           FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)), (
           SELECT pg_catalog.md5(pg_catalog.string_agg(e.oid || ' ' || e.enumlabel, ',' ORDER BY e.oid))
           FROM pg_catalog.pg_attribute a
           JOIN pg_catalog.pg_type p ON p.oid = a.atttypid
           LEFT JOIN pg_catalog.pg_type b ON b.oid = p.typbasetype
           JOIN pg_catalog.pg_enum e ON e.enumtypid IN (p.oid, p.typelem, b.oid, b.typelem)
           WHERE t.oid = t.root AND a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped), (
           WITH RECURSIVE parts (oid) AS (
               SELECT a.atttypid FROM pg_catalog.pg_attribute a
               WHERE t.oid = t.root AND a.attrelid = c.oid AND a.attnum > 0 AND a.atttypid >= 16384
"""  # noqa: S608 - constants only
    + _AND_THEIR_PARTS
    + """)
           SELECT pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(' ', m.attrelid, m.attnum,
                  m.attisdropped), ',' ORDER BY m.attrelid, m.attnum))
           FROM parts JOIN pg_catalog.pg_type p ON p.oid = parts.oid
           JOIN pg_catalog.pg_attribute m ON m.attrelid = p.typrelid AND m.attnum > 0)),
       c.reltoastrelid, pg_catalog.concat_ws(' ', named.xmin, t.joined_by), t.parent,
       CASE WHEN t.parent <> 0 THEN pg_catalog.pg_get_expr(c.relpartbound, 0) END, (
           SELECT p.partstrat::text || ARRAY (
               SELECT a.attname::text
               FROM pg_catalog.unnest(p.partattrs::int2[]) WITH ORDINALITY AS k (attnum, place)
               JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum ORDER BY k.place)
           FROM pg_catalog.pg_partitioned_table p
           WHERE p.partrelid = c.oid AND p.partexprs IS NULL AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_opclass o
               WHERE o.oid = ANY (p.partclass::oid[]) AND NOT o.opcdefault) AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_collation l
               WHERE l.oid = ANY (p.partcollation::oid[]) AND NOT l.collisdeterministic)), ARRAY (
           SELECT ARRAY[a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod)]
           FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND t.oid = t.root AND c.relkind = 'p' AND a.attnum > 0
             AND NOT a.attisdropped AND a.attgenerated <> 'v' ORDER BY a.attnum),
       ARRAY (
           SELECT a.attname::text FROM pg_catalog.pg_index i
           CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
           JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
           WHERE i.indrelid = c.oid AND t.oid = t.root AND c.relkind = 'p' AND k.place <= i.indnkeyatts
             AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END),
       c.relkind <> 'p' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)
FROM tree t
JOIN pg_catalog.pg_class c ON c.oid = t.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute made ON made.attrelid = c.oid AND made.attnum = -1
LEFT JOIN pg_catalog.pg_type named ON named.oid = c.reltype
ORDER BY t.root, c.oid <> t.root, c.oid
"""
)
_FOUND: LiteralString = """
WITH RECURSIVE self AS (
    SELECT c.oid, made.xmin AS made_by,
           (pg_catalog.age(made.xmin)::int8 + 4294967296) %% 4294967296 AS made_age
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_attribute made ON made.attrelid = c.oid AND made.attnum = -1
    WHERE n.nspname = %s AND c.relname = %s
), up (parent, level, brought) AS (
    SELECT i.inhparent, 1, i.xmin <> s.made_by
    FROM self s JOIN pg_catalog.pg_class c ON c.oid = s.oid AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = s.oid AND NOT i.inhdetachpending
    UNION ALL
    SELECT i.inhparent, up.level + 1,
           (pg_catalog.age(i.xmin)::int8 + 4294967296) %% 4294967296 < s.made_age
    FROM up CROSS JOIN self s JOIN pg_catalog.pg_class c ON c.oid = up.parent AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = up.parent AND NOT i.inhdetachpending
)
SELECT n.nspname::text, c.relname::text, up.brought
FROM self LEFT JOIN up ON true
LEFT JOIN pg_catalog.pg_class c ON c.oid = up.parent
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY up.level
"""
_TABLES: LiteralString = """
SELECT c.oid, c.relkind::text, c.relreplident::text, c.relnatts, pg_catalog.current_setting('server_encoding')
FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::oid[])
"""
_COLUMNS: LiteralString = (
    """
SELECT a.attrelid, a.attname::text, a.attnum, pg_catalog.format_type(a.atttypid, a.atttypmod), (
           WITH RECURSIVE down (oid, typmod) AS (
               SELECT d.typbasetype, d.typtypmod FROM pg_catalog.pg_type d
               WHERE d.oid = a.atttypid AND d.typtype = 'd'
               UNION ALL
               SELECT d.typbasetype, d.typtypmod FROM down JOIN pg_catalog.pg_type d
               ON d.oid = down.oid AND d.typtype = 'd')
           SELECT pg_catalog.format_type(down.oid, down.typmod)
           FROM down JOIN pg_catalog.pg_type b ON b.oid = down.oid AND b.typtype <> 'd'),
       a.attnotnull, a.attlen = -1 AND t.typstorage <> 'p', ARRAY (
           SELECT e.oid || ' ' || e.enumlabel FROM pg_catalog.pg_enum e
           LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
           WHERE e.enumtypid IN (t.oid, t.typelem, b.oid, b.typelem) ORDER BY e.oid), a.attgenerated::text,
       inside.by_search_path, inside.composites
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
CROSS JOIN LATERAL (
    WITH RECURSIVE parts (oid) AS (
        SELECT a.atttypid
"""  # noqa: S608 - constants only
    + _AND_THEIR_PARTS
    + """)
    SELECT pg_catalog.bool_or(p.oid IN (
               'pg_catalog.regclass'::pg_catalog.regtype, 'pg_catalog.regtype'::pg_catalog.regtype,
               'pg_catalog.regproc'::pg_catalog.regtype, 'pg_catalog.regprocedure'::pg_catalog.regtype,
               'pg_catalog.regoper'::pg_catalog.regtype, 'pg_catalog.regoperator'::pg_catalog.regtype,
               'pg_catalog.regconfig'::pg_catalog.regtype, 'pg_catalog.regdictionary'::pg_catalog.regtype,
               'pg_catalog.regcollation'::pg_catalog.regtype)),
           coalesce(pg_catalog.string_agg(m.attrelid || '.' || m.attnum || CASE WHEN m.attisdropped
                    THEN '-' ELSE '' END, ' ' ORDER BY m.attrelid, m.attnum), '')
    FROM parts JOIN pg_catalog.pg_type p ON p.oid = parts.oid
    LEFT JOIN pg_catalog.pg_attribute m ON m.attrelid = p.typrelid AND m.attnum > 0
) AS inside (by_search_path, composites)
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""
)
# A partitioned table has no rows, so its partitions alone know what their old rows have in a new column.
_MISSING: LiteralString = """
SELECT a.attrelid, a.attname::text, a.attmissingval::text FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%s::oid[]) AND a.atthasmissing AND NOT a.attisdropped ORDER BY a.attrelid
"""
_INDEXES: LiteralString = """
SELECT i.indrelid, c.relname::text, pg_catalog.array_agg(a.attname::text ORDER BY k.place),
       i.indisprimary, i.indisreplident, i.indimmediate
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = ANY (%s::oid[]) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, c.relname HAVING pg_catalog.bool_and(a.attnotnull) ORDER BY i.indexrelid
"""
# An identity is what the server takes for one (RelationGetIndexList).
_LEAVES: LiteralString = """
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
       c.relreplident::text, ARRAY (
           SELECT a.attname::text FROM pg_catalog.pg_index i
           CROSS JOIN LATERAL pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
           JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
           WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND k.place <= i.indnkeyatts
             AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END
           ORDER BY k.place), c.reltoastrelid <> 0
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[]) AND c.relkind <> 'p'
"""
_NAMES: LiteralString = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
"""

_VIRTUAL = "v"

_Answer = TypeVar("_Answer")
_Row = tuple[Any, ...]


class ShapeCatalog:
    """Answers questions about tables, each kind on a session that is opened when the first one comes.

    `found` has one of its own: the reader of the stream waits for its answer, which must not come behind
    looks at every table. A question is put once more, on a new session, if the server has ended the old one.
    ConnectionFailed if there is no answer; that is never to be taken for "no such table".
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection]],
        decoder: Decoder,
        *,
        slot_plugin: str | None = None,
    ) -> None:
        """`decoder` reads the frames: types get the names that these have for them.

        `slot_plugin`: what the server makes slots with, if the frames aren't its own.
        """
        self.decoder = decoder
        self.slot_plugin = slot_plugin or decoder.plugin
        self._looks = _Session(connect)
        self._finds = _Session(connect)

    async def trees(self, tables: Collection[Relation]) -> list[Tree]:
        """The tables with their partitions, without those that don't exist. One quick query for all."""

        async def ask(connection: AsyncConnection) -> list[Tree]:
            return list((await _trees(connection, tables, self.decoder)).values())

        return await self._looks.ask(ask)

    async def look(self, tables: Collection[Relation]) -> tuple[list[Tree], int, int]:
        """The same, and where the server's WAL was just after, and before: what was on disk by then."""

        async def ask(connection: AsyncConnection) -> tuple[list[Tree], int, int]:
            ((before,),) = await _rows(connection, "SELECT pg_catalog.pg_current_wal_flush_lsn()::text")
            trees = list((await _trees(connection, tables, self.decoder)).values())
            ((lsn,),) = await _rows(connection, "SELECT pg_catalog.pg_current_wal_insert_lsn()::text")
            return trees, parse_lsn(lsn), parse_lsn(before)

        return await self._looks.ask(ask)

    async def found(self, relation: Relation) -> Found | None:
        """What a relation is a partition of; None: there is none of that name."""

        async def ask(connection: AsyncConnection) -> Found | None:
            rows = await _rows(connection, _FOUND, *relation)
            if not rows:
                return None
            above = [(Relation(schema, table), brought) for schema, table, brought in rows if schema]
            return Found(tuple(parent for parent, _ in above), any(brought for _, brought in above))

        return await self._finds.ask(ask)

    async def facts(self, tables: Collection[Relation]) -> dict[Relation, TableFacts]:
        """All that the rules need to know of these tables, at one moment; without those that don't exist."""

        async def ask(connection: AsyncConnection) -> dict[Relation, TableFacts]:
            async with connection.transaction():
                await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return await _facts(connection, tables, self.decoder)

        return await self._looks.ask(ask)

    async def table_names(self) -> list[Relation]:
        """All tables that a shape could name, to find the one that was meant."""

        async def ask(connection: AsyncConnection) -> list[Relation]:
            return [Relation(*row) for row in await _rows(connection, _NAMES)]

        return await self._looks.ask(ask)

    async def close(self) -> None:
        """End the sessions that there are."""
        await self._looks.close()
        await self._finds.close()


class _Session:
    """A session for one question at a time."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncConnection]]) -> None:
        self._connect = connect
        self._connection: AsyncConnection | None = None
        self._one_at_a_time = asyncio.Lock()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def ask(self, question: Callable[[AsyncConnection], Awaitable[_Answer]]) -> _Answer:
        async with self._one_at_a_time:
            try:
                if self._connection is not None:
                    return await question(self._connection)
            except psycopg.OperationalError:
                # The server may have ended an idle session long ago.
                await self.close()
            except psycopg.Error as error:
                raise _unreadable(error) from error
            try:
                self._connection = self._connection or await self._connect()
                return await question(self._connection)
            except psycopg.Error as error:
                await self.close()
                raise _unreadable(error) from error


async def _facts(
    connection: AsyncConnection, tables: Collection[Relation], decoder: Decoder
) -> dict[Relation, TableFacts]:
    trees = await _trees(connection, tables, decoder)
    members = {root: [root, *(each.oid for each in tree.partitions)] for root, tree in trees.items()}
    roots, everyone = list(trees), sorted({oid for oids in members.values() for oid in oids})
    columns = _by_first(await _rows(connection, _COLUMNS, roots))
    missing = _by_first(await _rows(connection, _MISSING, everyone))
    indexes = _by_first(await _rows(connection, _INDEXES, roots))
    leaves = {row[0]: _leaf(row[1:]) for row in await _rows(connection, _LEAVES, everyone)}
    facts = {}
    for root, kind, replica_identity, attributes, encoding in await _rows(connection, _TABLES, roots):
        old: dict[str, str] = dict(row for oid in reversed(members[root]) for row in missing[oid])
        facts[trees[root].table.relation] = TableFacts(
            tree=trees[root],
            columns=tuple(column_facts(row, old, decoder) for row in columns[root]),
            indexes=tuple(IndexFacts(name, tuple(key), *flags) for name, key, *flags in indexes[root]),
            kind=kind,
            replica_identity=replica_identity,
            leaves=tuple(leaves[oid] for oid in members[root] if oid in leaves),
            has_children=trees[root].has_children,
            attributes=attributes,
            encoding=encoding,
        )
    return facts


async def _trees(
    connection: AsyncConnection, tables: Collection[Relation], decoder: Decoder
) -> dict[int, Tree]:
    schemas, names = [each.schema for each in tables], [each.table for each in tables]
    trees = {}
    for root, rows in _by_first(await _rows(connection, _TREES, schemas, names)).items():
        table, *partitions = (_member(row) for row in rows)
        *_, printed, key, has_children = rows[0]
        columns = {name: f"{name} {decoder.frame_type(text)}" for name, text in printed}
        trees[root] = Tree(
            table,
            tuple(partitions),
            rows[0][4] == PARTITIONED,
            tuple(columns.values()),
            has_children,
            tuple(text for name, text in columns.items() if name in key),
        )
    return trees


async def _rows(connection: AsyncConnection, query: LiteralString, *values: Any) -> list[_Row]:
    return await (await connection.execute(query, values or None)).fetchall()


def _by_first(rows: Iterable[_Row]) -> defaultdict[int, list[_Row]]:
    """The rows, each without its first value, by that value."""
    grouped = defaultdict(list)
    for first, *rest in rows:
        grouped[first].append(tuple(rest))
    return grouped


def _member(row: _Row) -> Member:
    schema, table, oid, filenode, _, layout, attached, identity, toast, placed, parent, *rest = row
    bound, split, *_ = rest
    return Member(
        Relation(schema, table),
        oid,
        filenode,
        layout or "",
        attached,
        identity,
        toast,
        placed,
        parent,
        bound or "",
        tuple(split or ()),
    )


def column_facts(row: _Row, old: Mapping[str, str], decoder: Decoder) -> ColumnFacts:
    """A column from the catalog's row; `old`: what older rows have in columns, each as an array of one."""
    name, attnum, printed, base, not_null, toastable, labels, generated, *inside = row
    by_search_path, composites = inside
    missing = missing_text(old[name]) if name in old else None
    return ColumnFacts(
        name,
        attnum,
        decoder.frame_type(printed),
        base or "",
        not_null,
        toastable,
        missing,
        tuple(labels),
        is_virtual=generated == _VIRTUAL,
        by_search_path=by_search_path,
        composites=composites,
    )


def _leaf(row: _Row) -> LeafFacts:
    schema, table, kind, persistence, replica_identity, identity, has_toast = row
    return LeafFacts(Relation(schema, table), kind, persistence, replica_identity, tuple(identity), has_toast)


def _unreadable(error: psycopg.Error) -> ConnectionFailed:
    return ConnectionFailed(f"can't read the catalog: {one_line(error)}")
