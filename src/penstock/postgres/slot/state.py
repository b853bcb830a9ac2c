"""The replication slot: ensured, read, never dropped."""

from __future__ import annotations

from typing import LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection, errors

from penstock.decoding.plugins import decoder_for
from penstock.errors import (
    DecodingFailed,
    LineLost,
    NoSpareSlot,
    PluginForbidden,
    PluginMissing,
    PluginOptionRefused,
    PostgresError,
    RoleLacksReplication,
    SlotBusy,
    SlotInvalid,
    SlotMismatch,
    WalLevelTooLow,
)
from penstock.model.lsn import format_lsn, parse_lsn
from penstock.postgres.connection import one_line

_READ: LiteralString = """
SELECT slot_type, plugin, database, temporary, active_pid, confirmed_flush_lsn::text, restart_lsn::text,
       wal_status, safe_wal_size, pg_catalog.current_database(),
       pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), restart_lsn)::int8
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""
_SERVER: LiteralString = """
SELECT pg_catalog.current_setting('wal_level'), pg_catalog.current_setting('output_plugin_libraries', true)
"""
_OPEN_WRITERS: LiteralString = (
    "SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL"
)
_CREATE: LiteralString = "SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot(%s, %s)"


class SlotState(NamedTuple):
    """A slot as pg_replication_slots shows it."""

    name: str
    slot_type: str
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    confirmed_flush_lsn: int | None
    restart_lsn: int | None
    wal_status: str | None
    safe_wal_bytes: int | None
    connected_database: str
    retained_bytes: int | None

    @property
    def start_lsn(self) -> int:
        """Where a stream from this slot begins."""
        return self.confirmed_flush_lsn or self.restart_lsn or 0

    @property
    def is_lost(self) -> bool:
        """Whether the server has removed WAL that it needs."""
        return self.wal_status == "lost"


async def read_slot(connection: AsyncConnection, name: str) -> SlotState | None:
    """The slot's state, or None if there is none of that name."""
    row = await (await connection.execute(_READ, (name,))).fetchone()
    if row is None:
        return None
    return SlotState._make((name, *row[:5], *map(_lsn, row[5:7]), *row[7:]))


def check_slot(slot: SlotState, plugin: str) -> None:
    """Raise the error that says why this slot can't be used, and the fix; return if it can."""
    if slot.slot_type != "logical" or slot.temporary:
        kind = "temporary" if slot.temporary else slot.slot_type
        raise SlotMismatch(
            f"replication slot {slot.name!r} is a {kind} slot. Fix: choose another REPLICATION_SLOT"
        )
    if slot.plugin != plugin:
        raise SlotMismatch(
            f"replication slot {slot.name!r} uses the plugin {slot.plugin!r}, not {plugin!r}."
            " Fix: choose another REPLICATION_SLOT"
        )
    if slot.database != slot.connected_database:
        raise SlotMismatch(
            f"replication slot {slot.name!r} belongs to database {slot.database!r}, but PGDATABASE is"
            f" {slot.connected_database!r}. Fix: connect to {slot.database!r}, or choose another slot name"
        )
    if slot.is_lost:
        raise slot_lost(slot.name)


async def check_server(connection: AsyncConnection, plugin: str) -> None:
    """Raise if the server can't decode with this plugin, with the fix in the sentence."""
    row = await (await connection.execute(_SERVER)).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    wal_level, allowed = row
    if wal_level != "logical":
        raise WalLevelTooLow(
            f"wal_level is {wal_level!r}. Fix: ALTER SYSTEM SET wal_level = 'logical' and restart Postgres"
            " (on RDS: rds.logical_replication = 1 in the parameter group)"
        )
    if allowed is not None and plugin not in [name.strip().strip("\"'") for name in allowed.split(",")]:
        raise _plugin_forbidden(plugin, allowed)


async def open_writers(connection: AsyncConnection) -> int:
    """How many sessions have an open write transaction; creating a slot waits for them all."""
    row = await (await connection.execute(_OPEN_WRITERS)).fetchone()
    assert row is not None, "count has a row"
    return int(row[0])


async def create_slot(connection: AsyncConnection, name: str, plugin: str) -> SlotState:
    """Create the slot, or use the one that somebody else created meanwhile."""
    try:
        await connection.execute(_CREATE, (name, plugin))
    except errors.DuplicateObject:
        pass
    except psycopg.Error as error:
        raise translate(error, slot=name, plugin=plugin) from error
    slot = await read_slot(connection, name)
    if slot is None:
        raise LineLost(f"replication slot {name!r} went away while it was being created")
    return slot


def translate(error: psycopg.Error, *, slot: str, plugin: str) -> PostgresError:
    """What an error of CREATE or START means, by its SQLSTATE."""
    sentence = one_line(error)
    match error:
        case errors.ObjectInUse():
            return SlotBusy(
                f"{sentence}: a former leader's walsender still lives, or somebody reads the slot without"
                " the lock. Fix: find that pid in pg_stat_replication and end it"
            )
        case errors.ConfigurationLimitExceeded():
            return NoSpareSlot(f"{sentence}. Fix: raise max_replication_slots and restart Postgres")
        case errors.UndefinedFile():
            return PluginMissing(
                f"the server has no {plugin}: {sentence}. Fix: install it"
                f" (Debian: postgresql-<version>-{plugin})"
            )
        case errors.InsufficientPrivilege() if plugin in sentence or "output_plugin_libraries" in sentence:
            return _plugin_forbidden(plugin, sentence)
        case errors.InsufficientPrivilege():
            return RoleLacksReplication(f"{sentence}. Fix: ALTER ROLE <role> REPLICATION")
        case errors.InvalidParameterValue() | errors.InvalidName() | errors.FeatureNotSupported():
            return PluginOptionRefused(
                f"{plugin} on this server refuses an option: {sentence}."
                f" Fix: {decoder_for(plugin).refused_option_fix}"
            )
        case errors.ObjectNotInPrerequisiteState() if "wal_level" in sentence:
            return WalLevelTooLow(f"{sentence}. Fix: set wal_level = logical and restart Postgres")
        case errors.ObjectNotInPrerequisiteState():
            return slot_lost(slot)
        case _:
            return LineLost(sentence)


def stream_error(error: psycopg.Error, *, plugin: str) -> PostgresError:
    """What an error that ended a running stream means, in the server's own words.

    A session that was ended (class 57, or no SQLSTATE at all) says nothing about the changes. Anything else
    was raised by decoding: the next stream may meet it again at the same place.
    """
    diagnostic = error.diag
    # Not the detail, which may quote values; the context names the place in the WAL.
    words = filter(None, (diagnostic.message_primary, diagnostic.context))
    sentence = " ".join("; ".join(words).split()) or one_line(error)
    sqlstate = error.sqlstate or "57"
    if sqlstate.startswith("57"):
        return LineLost(f"the server ended the stream: {sentence}")
    if isinstance(error, errors.InsufficientPrivilege) and "output_plugin_libraries" in sentence:
        return _plugin_forbidden(plugin, sentence)
    return DecodingFailed(f"Postgres can't decode the stream ({sqlstate}): {sentence}")


def describe(slot: SlotState) -> dict[str, object]:
    """The slot in words for a log line."""
    return {
        "slot": slot.name,
        "confirmed_flush_lsn": None
        if slot.confirmed_flush_lsn is None
        else format_lsn(slot.confirmed_flush_lsn),
        "restart_lsn": None if slot.restart_lsn is None else format_lsn(slot.restart_lsn),
        "wal_status": slot.wal_status,
    }


def _lsn(text: str | None) -> int | None:
    return None if text is None else parse_lsn(text)


def slot_lost(name: str) -> SlotInvalid:
    """The error of a slot that is lost, with the fix."""
    return SlotInvalid(
        f"replication slot {name!r} is lost: Postgres removed WAL that it needs (max_slot_wal_keep_size)."
        " Changes are missing from here on. Fix: create a slot under a new name, set REPLICATION_SLOT to it,"
        " and take new snapshots downstream"
    )


def _plugin_forbidden(plugin: str, reason: str) -> PluginForbidden:
    return PluginForbidden(
        f"Postgres forbids the output plugin {plugin} ({reason}). Fix: ALTER SYSTEM SET"
        f" output_plugin_libraries = 'pgoutput','test_decoding','{plugin}'; SELECT pg_reload_conf()."
        " Until then the slot retains WAL"
    )
