"""Synchronous standbys: our walsender must never be taken for one.

A server whose `synchronous_standby_names` names it, if only by `*`, lets the application's commits wait until
we confirm them: an outage of the destination would then stop the application.
"""

from __future__ import annotations

import re
from typing import Final, LiteralString

from psycopg import AsyncConnection

from penstock.errors import SynchronousStandby

_SETTINGS: LiteralString = """
SELECT pg_catalog.current_setting('synchronous_standby_names'),
       pg_catalog.current_setting('application_name')
"""
_SYNC_STATE: LiteralString = "SELECT sync_state FROM pg_catalog.pg_stat_replication WHERE pid = %s"
# `*` as a quoted name counts as well; a list may stand behind `2 (`, `FIRST 2 (` or `ANY 2 (`.
_HEAD: Final = re.compile(r"\s*(?:(?:FIRST|ANY)\s+)?\d+\s*\(", re.IGNORECASE)
_NAME: Final = re.compile(r'"((?:[^"]|"")*)"|([^\s,()"]+)')


def names_standby(setting: str, application_name: str) -> bool:
    """Whether `synchronous_standby_names` counts a walsender of this name, as the server judges it."""
    names = [
        quoted.replace('""', '"') if quoted else plain
        for quoted, plain in _NAME.findall(_HEAD.sub("", setting))
    ]
    return any(name == "*" or name.lower() == application_name.lower() for name in names)


async def read_settings(connection: AsyncConnection) -> tuple[str, str]:
    """synchronous_standby_names, and the name of this session."""
    row = await (await connection.execute(_SETTINGS)).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    names, application_name = row
    return str(names), str(application_name)


async def check_synchronous(walsender: AsyncConnection) -> None:
    """Raise SynchronousStandby if commits would wait for this session once it streams."""
    settings = await read_settings(walsender)
    if names_standby(*settings):
        raise synchronous_standby(*settings)


async def check_walsender(connection: AsyncConnection, pid: int) -> None:
    """Raise SynchronousStandby if commits wait for this walsender: the setting can change at any time."""
    row = await (await connection.execute(_SYNC_STATE, (pid,))).fetchone()
    # A role that may not see the state of other sessions still sees its own ones'.
    if row is not None and row[0] not in (None, "async"):
        raise synchronous_standby(*await read_settings(connection))


def synchronous_standby(setting: str, application_name: str) -> SynchronousStandby:
    """The error, with the fix in its sentence."""
    return SynchronousStandby(
        f"synchronous_standby_names is {setting!r}, which counts our walsender ({application_name!r}) as a"
        " synchronous standby: commits would wait until their changes are confirmed. Fix: name the standbys"
        " themselves, as in ALTER SYSTEM SET synchronous_standby_names = 'standby1', and SELECT"
        " pg_reload_conf()"
    )
