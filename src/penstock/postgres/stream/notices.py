"""Notices of the server that mean a loss: changes that the output plugin leaves out."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from psycopg.errors import Diagnostic

from penstock.model.relation import Relation

_log = structlog.get_logger()


class NoticeAlarm:
    """Passes on changes that the plugin dropped because they have no replica identity; logs each table once.

    They are not in the stream, and nothing else tells: only this notice reaches the client. It does so
    before the frames that the server sent behind it are read.
    """

    def __init__(
        self, left_out: Callable[[str], Relation | None], on_dropped: Callable[[Relation], None]
    ) -> None:
        """`left_out`: as a Decoder has it; `on_dropped` gets the table, for each change."""
        self._left_out = left_out
        self._on_dropped = on_dropped
        self._said: set[Relation] = set()

    def __call__(self, diagnostic: Diagnostic) -> None:
        """Take a notice from psycopg."""
        relation = self._left_out(diagnostic.message_primary or "")
        if relation is None:
            return
        self._on_dropped(relation)
        if relation not in self._said:
            self._said.add(relation)
            _log.error(
                "changes_dropped_by_server",
                table=str(relation),
                fix="give the table a primary key, or ALTER TABLE ... REPLICA IDENTITY FULL",
            )
