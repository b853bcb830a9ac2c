"""The questions that `penstock check` puts to Postgres. They change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

from psycopg import AsyncConnection

from penstock.model.relation import Relation
from penstock.postgres.preflight.server_rules import CheckedServer, Places, Retention, RoleFacts
from penstock.postgres.preflight.tables import CheckedTable

_SERVER: LiteralString = """
SELECT pg_catalog.current_setting('server_version_num')::int, pg_catalog.current_setting('server_version'),
       pg_catalog.current_database()::text, current_user::text
"""
_WAL_LEVEL: LiteralString = "SELECT pg_catalog.current_setting('wal_level')"
_ROLE: LiteralString = """
SELECT rolname::text, rolsuper, rolreplication,
       EXISTS (SELECT FROM pg_catalog.pg_roles rds
               WHERE rds.rolname = 'rds_replication' AND pg_catalog.pg_has_role(rds.oid, 'member'))
FROM pg_catalog.pg_roles WHERE rolname = current_user
"""
_SLOTS: LiteralString = """
SELECT (SELECT count(*) FROM pg_catalog.pg_replication_slots),
       pg_catalog.current_setting('max_replication_slots')::int
"""
_WALSENDERS: LiteralString = """
SELECT (SELECT count(*) FROM pg_catalog.pg_stat_replication),
       pg_catalog.current_setting('max_wal_senders')::int
"""
_RETENTION: LiteralString = """
SELECT (SELECT setting::int FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
       pg_catalog.current_setting('idle_replication_slot_timeout', true)
"""
_NOTE: LiteralString = """
SELECT pg_catalog.bool_and(pg_catalog.has_function_privilege(name::pg_catalog.regprocedure, 'EXECUTE'))
FROM pg_catalog.unnest(ARRAY['pg_catalog.lo_from_bytea(oid,bytea)', 'pg_catalog.lo_get(oid)',
                             'pg_catalog.lo_put(oid,bigint,bytea)']) AS name
"""
_SESSION: LiteralString = """
SELECT application_name || coalesce(' at ' || pg_catalog.host(client_addr), '')
FROM pg_catalog.pg_stat_activity WHERE pid = %s
"""
# An identity is what the server (RelationGetIndexList) takes for one; a key is what our Catalog does.
_TABLES: LiteralString = """
SELECT n.nspname::text, c.relname::text, c.relkind = 'p', c.relispartition,
       c.relreplident = 'f' OR EXISTS (
           SELECT FROM pg_catalog.pg_index i
           WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
             AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END),
       EXISTS (
           SELECT FROM pg_catalog.pg_index i
           WHERE i.indrelid = c.oid
             AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END),
       EXISTS (
           SELECT FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND NOT a.attisdropped
             AND a.atttypid IN ('pg_catalog.numeric'::regtype, 'pg_catalog.float4'::regtype,
                                'pg_catalog.float8'::regtype))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
ORDER BY n.nspname, c.relname
"""
_BLOCKERS: LiteralString = """
SELECT (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL)
     + (SELECT count(*) FROM pg_catalog.pg_prepared_xacts)
"""
_TRIAL_SLOT: LiteralString = "SELECT FROM pg_catalog.pg_create_logical_replication_slot(%s, %s, true)"
# Only a count: what the slot has to tell may hold row values.
_TRIAL_READ: LiteralString = """
SELECT count(*) FROM pg_catalog.pg_logical_slot_peek_binary_changes(%s, NULL, 1, VARIADIC %s::text[])
"""


async def limit_statements(connection: AsyncConnection, seconds: float) -> None:
    """Let the server itself end what takes longer."""
    await connection.execute(f"SET statement_timeout = {round(seconds * 1000)}".encode())


async def read_server(connection: AsyncConnection) -> CheckedServer:
    """Which server this is."""
    return CheckedServer(*await _row(connection, _SERVER))


async def read_wal_level(connection: AsyncConnection) -> str:
    """The server's wal_level."""
    (level,) = await _row(connection, _WAL_LEVEL)
    return str(level)


async def read_role(connection: AsyncConnection) -> RoleFacts:
    """What the connected role may do."""
    return RoleFacts(*await _row(connection, _ROLE))


async def read_slots(connection: AsyncConnection) -> Places:
    """How many replication slots are taken, of any kind."""
    return Places(*await _row(connection, _SLOTS))


async def read_walsenders(connection: AsyncConnection) -> Places:
    """How many walsenders are taken."""
    return Places(*await _row(connection, _WALSENDERS))


async def read_retention(connection: AsyncConnection) -> Retention:
    """Under which settings the server gives a slot up."""
    return Retention(*await _row(connection, _RETENTION))


async def may_keep_note(connection: AsyncConnection) -> bool:
    """Whether our role may use large objects, in which the slot's note is kept."""
    (may,) = await _row(connection, _NOTE)
    return bool(may)


async def read_tables(connection: AsyncConnection) -> list[CheckedTable]:
    """The database's permanent tables."""
    cursor = await connection.execute(_TABLES)
    return [CheckedTable(Relation(*row[:2]), *row[2:]) for row in await cursor.fetchall()]


async def describe_session(connection: AsyncConnection, pid: int) -> str | None:
    """A session's name and address, as far as our role may see them."""
    row = await (await connection.execute(_SESSION, (pid,))).fetchone()
    return None if row is None else row[0]


async def count_blockers(connection: AsyncConnection) -> int:
    """Open transactions, prepared ones too, that a new slot has to wait for."""
    (count,) = await _row(connection, _BLOCKERS)
    return int(count)


async def read_system(walsender: AsyncConnection) -> tuple[str, int]:
    """The cluster's system id and timeline, from a walsender."""
    system_id, timeline, *_ = await _row(walsender, "IDENTIFY_SYSTEM")
    return str(system_id), int(timeline)


async def create_trial_slot(connection: AsyncConnection, name: str, plugin: str) -> None:
    """A temporary slot: it ends with the session, or with the session's next error."""
    await connection.execute(_TRIAL_SLOT, (name, plugin))


async def try_options(connection: AsyncConnection, slot: str, options: Mapping[str, str]) -> None:
    """Start decoding with these options; the server raises if it refuses one."""
    pairs = [part for pair in options.items() for part in pair]
    await connection.execute(_TRIAL_READ, (slot, pairs))


async def _row(connection: AsyncConnection, query: LiteralString) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = await (await connection.execute(query)).fetchone()
    assert row is not None, "each of these questions has an answer"
    return row
