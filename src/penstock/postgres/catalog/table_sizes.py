"""How large tables are, as the server counts them."""

from __future__ import annotations

from collections.abc import Collection
from typing import LiteralString

from psycopg import AsyncConnection

from penstock.model.relation import Relation

_SUM: LiteralString = """
SELECT coalesce(sum(pg_catalog.pg_table_size(c.oid)), 0)::int8
FROM unnest(%s::text[], %s::text[]) AS wanted (schema_name, table_name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema_name
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.table_name
"""


async def total_bytes(session: AsyncConnection, relations: Collection[Relation]) -> int:
    """What these tables take on disk, long values included and indexes not. A missing one counts nothing."""
    names = [each.schema for each in relations], [each.table for each in relations]
    row = await (await session.execute(_SUM, names)).fetchone()
    assert row is not None, "a sum without groups has a row"
    return int(row[0])
