"""How large the tables of a database are."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple

from psycopg import AsyncConnection, errors

from penstock.model.relation import Relation

_LOCK_MS: Final = 2000
_SIZES: LiteralString = """
SELECT n.nspname::text, c.relname::text, c.reltuples::int8, pg_catalog.pg_table_size(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.oid >= 16384
"""
# As of the last ANALYZE: that waits for nobody's lock.
_OLD_SIZES: LiteralString = """
SELECT n.nspname::text, c.relname::text, c.reltuples::int8,
       c.relpages::int8 * pg_catalog.current_setting('block_size')::int8
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND c.oid >= 16384
"""


class TableSize(NamedTuple):
    """How large a table without partitions, or a partition, is."""

    rows: int | None
    """About so many; None: nobody has counted yet."""
    size_bytes: int


async def read_sizes(session: AsyncConnection) -> dict[Relation, TableSize]:
    """Each table that holds rows. One that somebody has locked has the size that was last known."""
    await session.execute(f"SET lock_timeout = {_LOCK_MS}".encode())
    try:
        rows = await (await session.execute(_SIZES)).fetchall()
    except errors.LockNotAvailable:
        rows = await (await session.execute(_OLD_SIZES)).fetchall()
    return {
        Relation(schema, table): TableSize(None if count < 0 else count, size)
        for schema, table, count, size in rows
    }
