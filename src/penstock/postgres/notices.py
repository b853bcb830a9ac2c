"""Notices of the server that mean a loss: changes that wal2json leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import structlog
from psycopg.errors import Diagnostic

_NO_IDENTITY: Final = re.compile(
    r'no tuple identifier for (?:UPDATE|DELETE) in table "(.+)"\."(.+)"', re.DOTALL
)

_log = structlog.get_logger()


class NoticeAlarm:
    """Hands on changes that wal2json dropped for want of a replica identity; says each table once.

    They are not in the stream, and nothing else tells: only this notice reaches the client. It does so
    before the frames that the server sent behind it are read.
    """

    def __init__(self, on_dropped: Callable[[str, str], None]) -> None:
        """`on_dropped` gets the schema and the name of the table, for each change."""
        self._on_dropped = on_dropped
        self._said: set[str] = set()

    def __call__(self, diagnostic: Diagnostic) -> None:
        """Take a notice from psycopg."""
        match = _NO_IDENTITY.search(diagnostic.message_primary or "")
        if match is None:
            return
        self._on_dropped(*match.groups())
        table = ".".join(match.groups())
        if table not in self._said:
            self._said.add(table)
            _log.error(
                "changes_dropped_by_server",
                table=table,
                fix="give the table a primary key, or ALTER TABLE ... REPLICA IDENTITY FULL",
            )
