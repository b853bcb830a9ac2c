"""The sessions that copy a snapshot, as the server sees them."""

from __future__ import annotations

from typing import LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection

from penstock.errors import LineLost
from penstock.postgres.connection import one_line

_CLIENT = "Client"

# Only the role itself, and those who may read all statistics, see a session's query and what it waits for.
_SESSIONS: LiteralString = """
SELECT a.pid, a.backend_start::text, a.state_change::text, a.wait_event_type,
       p.bytes_processed, p.tuples_processed
FROM pg_catalog.pg_stat_activity a LEFT JOIN pg_catalog.pg_stat_progress_copy p ON p.pid = a.pid
WHERE pg_catalog.starts_with(a.query, %s) ORDER BY a.pid
"""


class CopySession(NamedTuple):
    """A session that copies a part, or has copied it and not ended."""

    pid: int
    began: str
    last_statement: str
    """When the state of its statement changed last."""
    waits_for: str | None
    """The kind of its wait; None: it works."""
    bytes_sent: int | None
    rows_sent: int | None

    @property
    def waits_for_client(self) -> bool:
        """Whether the server has done all it can: who copies takes no more, or asks for nothing."""
        return self.waits_for == _CLIENT


def mark(snapshot_name: str) -> str:
    """How the statements begin that copy a snapshot, so that their sessions are found."""
    return f"/* penstock snapshot {snapshot_name} */ "


async def copy_sessions(connection: AsyncConnection, snapshot_name: str) -> list[CopySession]:
    """Those of a snapshot that our role may see. Takes a session in autocommit mode; LineLost."""
    try:
        rows = await (await connection.execute(_SESSIONS, (mark(snapshot_name),))).fetchall()
    except psycopg.Error as error:
        raise LineLost(f"the sessions that copy can't be seen: {one_line(error)}") from error
    return [CopySession(*row) for row in rows]
