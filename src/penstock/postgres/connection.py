"""Connections to Postgres: what every one of them is given, and what a refusal means."""

from __future__ import annotations

import math
import os
import socket
import traceback
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection

from penstock.errors import (
    ConnectionFailed,
    NoSpareSlot,
    PostgresError,
    RoleLacksReplication,
)

PINNED_SESSION: Final = (
    "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex"
    " -c client_min_messages=warning"
    " -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
)
"""What ALTER DATABASE, ALTER ROLE or PGOPTIONS may have changed, and every session of ours depends on.

wal2json's text follows the first of them, and its warning that a change was left out reaches us only at this
message level. An operator's time limits for ordinary sessions would end ours, which wait and read for hours.
"""
_LATER_LIMITS: Final = ((140000, "idle_session_timeout"), (170000, "transaction_timeout"))
"""Time limits that only servers from this version on know: a start-up option would be refused by others.

A walsender decodes inside a transaction, so `transaction_timeout` would end it in mid-stream.
"""

_LONGEST_NAME: Final = 63

QUALIFIED_NAMES: Final = "-c search_path="
"""For shapes: names of types, and values of types such as regclass, then always have their schema.

Capture leaves search_path as it is: its payload is wal2json's.
"""


def application_name(role: str) -> str:
    """How the server names our sessions, unless PGAPPNAME or a service file says otherwise."""
    return f"penstock {role}"[:_LONGEST_NAME]


def connection_parameters(
    *, connect_timeout_s: float, silence_limit_s: float, role: str, session: str = ""
) -> dict[str, Any]:
    """What we add to libpq's own variables (PGHOST, PGSERVICE, PGPASSFILE and the rest stay in force).

    `silence_limit_s` bounds how long a dead network line goes unnoticed; `session` are further settings of
    the session, as `-c name=value`.
    """
    probe_s = max(1, round(silence_limit_s / 4))
    return {
        "connect_timeout": max(1, math.ceil(connect_timeout_s)),
        "fallback_application_name": application_name(role),
        # Not `read-write`: a primary with default_transaction_read_only is one all the same.
        "target_session_attrs": "primary",
        "keepalives_idle": probe_s,
        "keepalives_interval": probe_s,
        "keepalives_count": 2,
        "tcp_user_timeout": round(silence_limit_s * 1000),
        "options": session,
    }


async def connect(parameters: dict[str, Any]) -> AsyncConnection:
    """An ordinary session in autocommit mode."""
    return await _connect(parameters, options=PINNED_SESSION)


async def connect_replication(parameters: dict[str, Any], *, wal_sender_timeout_s: float) -> AsyncConnection:
    """A walsender session, which the server ends if it hears nothing for `wal_sender_timeout_s`."""
    timeout_ms = round(wal_sender_timeout_s * 1000)
    return await _connect(
        {**parameters, "replication": "database"},
        options=f"{PINNED_SESSION} -c wal_sender_timeout={timeout_ms}",
        # wal_sender_timeout counts only while streaming. A leader that freezes before that, with the lock
        # already taken, is ended by this.
        idle_session_timeout=timeout_ms,
    )


def later_limits(server_version: int, *, idle_session_timeout: int = 0) -> str:
    """The statement that lifts the time limits which no start-up option can; empty if there are none."""
    values = {"idle_session_timeout": idle_session_timeout}
    return "; ".join(
        f"SET {name} = {values.get(name, 0)}" for since, name in _LATER_LIMITS if server_version >= since
    )


async def _connect(
    parameters: dict[str, Any], *, options: str, idle_session_timeout: int = 0
) -> AsyncConnection:
    connection = await _open(parameters, options)
    limits = later_limits(connection.info.server_version, idle_session_timeout=idle_session_timeout)
    try:
        if limits:
            await connection.execute(limits.encode())
    except psycopg.Error as error:
        connection.pgconn.finish()
        raise ConnectionFailed(f"the server ended the session: {one_line(error)}") from error
    except BaseException:
        connection.pgconn.finish()
        raise
    return connection


async def _open(parameters: dict[str, Any], options: str) -> AsyncConnection:
    try:
        return await AsyncConnection.connect(
            "",
            autocommit=True,
            # A walsender knows only the simple protocol: no bound parameters, no prepared statements.
            cursor_factory=AsyncClientCursor,
            prepare_threshold=None,
            **with_options(parameters, options),
        )
    except psycopg.Error as error:
        _forget_attempt(error)
        raise refusal(error) from error
    except BaseException as error:
        _forget_attempt(error)
        raise


def _forget_attempt(error: BaseException) -> None:
    """Close what a failed attempt left open: it would live as long as the traceback that refers to it.

    A server that is stopping waits for such a connection, up to its authentication_timeout.
    """
    each: BaseException | None = error
    while each is not None:
        traceback.clear_frames(each.__traceback__)
        each = each.__context__


def hang_up(connection: AsyncConnection) -> None:
    """Close a connection at once. Whoever waits for an answer on it gets an error, and may be cancelled.

    A task that was woken by an answer goes on with libpq's own structure, and the process would end if that
    was freed meanwhile (psycopg keeps a bare pointer). So a connection that is busy is only cut off: libpq
    knows it for dead, and its memory is freed with the object.
    """
    if not connection.lock.locked():
        connection.pgconn.finish()
        return
    if connection.closed:
        return
    is_cut_off = False
    with suppress(OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)
        is_cut_off = True
    with suppress(psycopg.Error):
        # The end is an error. A line that can't be cut off is dead, and says so at once, or has no end.
        connection.pgconn.consume_input()
        while is_cut_off:
            connection.pgconn.consume_input()


def with_options(parameters: dict[str, Any], options: str) -> dict[str, Any]:
    """The parameters with these session settings, over what PGOPTIONS has."""
    every = (os.environ.get("PGOPTIONS"), options, parameters.get("options"))
    return {**parameters, "options": " ".join(filter(None, every))}


def refusal(error: psycopg.Error) -> PostgresError:
    """What a failed connection attempt means. There is no SQLSTATE then, only the server's sentence."""
    sentence = one_line(error)
    lowered = sentence.lower()
    if ("walsender" in lowered or "wal sender" in lowered) and ("role" in lowered or "permission" in lowered):
        return RoleLacksReplication(
            f"the role may not replicate: {sentence}. Fix: ALTER ROLE <role> REPLICATION"
            " (on RDS: GRANT rds_replication TO <role>)"
        )
    if "max_wal_senders" in lowered:
        return NoSpareSlot(f"no free walsender: {sentence}. Fix: raise max_wal_senders and restart Postgres")
    return ConnectionFailed(f"can't connect to Postgres: {sentence}")


def one_line(error: BaseException) -> str:
    """An error's text on one line."""
    return " ".join(str(error).split()) or type(error).__name__
