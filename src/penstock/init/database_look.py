"""The look at the database that `penstock init` takes. It changes nothing, and reads no rows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection

from penstock.errors import ConnectionFailed
from penstock.init.shapes_text import TableLook
from penstock.init.sizes import TableSize, read_sizes
from penstock.model.relation import Relation
from penstock.postgres.connection import QUALIFIED_NAMES, connect, connection_parameters, one_line
from penstock.postgres.preflight.queries import limit_statements, read_tables
from penstock.settings.postgres import ReplicationSettings

_ANSWER_S: Final = 60.0

# An extension's own tables come with it.
_ROOTS: LiteralString = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition AND c.oid >= 16384
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
                  WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid
                    AND d.deptype = 'e')
ORDER BY n.nspname, c.relname
"""


class DatabaseLook(NamedTuple):
    """What was seen."""

    connected: Mapping[str, str]
    """The server, role and database, as libpq's variables name them."""
    tables: int
    """Those that hold rows, partitions by themselves."""
    size_bytes: int
    without_identity: Sequence[str]
    shapes: Sequence[TableLook] | None
    """A look at each table for the shapes file; None: it was not asked for."""


async def look_at_database(replication: ReplicationSettings, *, with_shapes: bool) -> DatabaseLook:
    """Take it. ConnectionFailed if the server can't be asked."""
    parameters = connection_parameters(
        connect_timeout_s=replication.connect_timeout_s,
        silence_limit_s=10.0,
        role="init",
        session=QUALIFIED_NAMES,
    )
    session = await connect(parameters)
    try:
        async with asyncio.timeout(_ANSWER_S):
            await limit_statements(session, _ANSWER_S)
            return await _look(session, replication.output_plugin, with_shapes=with_shapes)
    except psycopg.Error as error:
        raise ConnectionFailed(f"Postgres could not be asked: {one_line(error)}") from error
    except TimeoutError:
        raise ConnectionFailed(f"no answer from Postgres within {_ANSWER_S:.0f} s") from None
    finally:
        session.pgconn.finish()


async def _look(session: AsyncConnection, plugin: str, *, with_shapes: bool) -> DatabaseLook:
    info = session.info
    connected = {
        "PGHOST": info.host,
        "PGPORT": str(info.port),
        "PGUSER": info.user,
        "PGDATABASE": info.dbname,
    }
    checked = [table for table in await read_tables(session) if not table.partitioned]
    sizes = await read_sizes(session)
    return DatabaseLook(
        connected,
        len(checked),
        sum(size.size_bytes for size in sizes.values()),
        [table.name for table in checked if not table.has_identity],
        await _look_at_shapes(session, plugin, sizes) if with_shapes else None,
    )


async def _look_at_shapes(
    session: AsyncConnection, plugin: str, sizes: Mapping[Relation, TableSize]
) -> list[TableLook]:
    # These need penstock[spark].
    from penstock.init.table_look import look_at_tables

    rows = await (await session.execute(_ROOTS)).fetchall()
    return await look_at_tables(session, plugin, [Relation(*row) for row in rows], sizes)
