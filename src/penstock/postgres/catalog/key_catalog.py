"""The catalog: which columns identify a row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import LiteralString

import psycopg
from psycopg import AsyncConnection

from penstock.errors import ConnectionFailed
from penstock.model.key_indexes import KeyIndexes
from penstock.model.relation import Relation
from penstock.postgres.connection import one_line

_KEY_COLUMNS: LiteralString = """
SELECT i.indisprimary, c.relreplident = 'i' AND i.indisreplident, a.attname
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
     AND (i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
WHERE n.nspname = %s AND c.relname = %s AND k.place <= i.indnkeyatts
ORDER BY k.place
"""


class Catalog:
    """Answers questions about tables, on a session that is opened when the first question comes."""

    def __init__(self, connect: Callable[[], Awaitable[AsyncConnection]]) -> None:
        self._connect = connect
        self._connection: AsyncConnection | None = None

    async def key_indexes(self, relation: Relation) -> KeyIndexes:
        """The indexes that identify the table's rows now; a frame may be older than that.

        Empty if there are none, or no such table any more. Reads pg_catalog by name, which waits for no lock
        on the table.
        """
        try:
            return await self._ask(relation)
        except psycopg.OperationalError:
            # Questions are rare: the server may have ended an idle session long ago.
            self._connection = None
        except psycopg.Error as error:
            raise _unreadable(error) from error
        try:
            return await self._ask(relation)
        except psycopg.Error as error:
            raise _unreadable(error) from error

    async def _ask(self, relation: Relation) -> KeyIndexes:
        if self._connection is None:
            self._connection = await self._connect()
        cursor = await self._connection.execute(_KEY_COLUMNS, relation)
        columns = await cursor.fetchall()
        return KeyIndexes(
            primary=tuple([name for is_primary, _, name in columns if is_primary]),
            identity=tuple([name for _, is_identity, name in columns if is_identity]),
        )


def _unreadable(error: psycopg.Error) -> ConnectionFailed:
    return ConnectionFailed(f"can't read the catalog: {one_line(error)}")
