"""SlotMover: an idle slot is moved along, so that it keeps no WAL that nobody needs."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import structlog
from psycopg import AsyncConnection

from penstock.errors import LineLost
from penstock.model.lsn import format_lsn
from penstock.postgres.connection import one_line

_MOVE: LiteralString = """
SELECT pg_catalog.pg_replication_slot_advance(slot_name, %(lsn)s::pg_lsn)
FROM pg_catalog.pg_replication_slots
WHERE slot_name = %(slot)s AND slot_type = 'logical' AND NOT temporary AND active_pid IS NULL
  AND database = pg_catalog.current_database() AND wal_status <> 'lost'
  AND confirmed_flush_lsn < %(lsn)s::pg_lsn
"""

_log = structlog.get_logger()


class SlotMover:
    """Moves a slot that nobody reads. One that isn't there is none of its business."""

    def __init__(self, connection: AsyncConnection, slot: str) -> None:
        """`connection` is its own."""
        self._connection = connection
        self._slot = slot
        self._said = ""

    async def move(self, lsn: int) -> None:
        """Everything below this is done. What the server refuses is said once, and does no harm."""
        try:
            await self._connection.execute(_MOVE, {"lsn": format_lsn(lsn), "slot": self._slot})
        except psycopg.OperationalError as error:
            raise LineLost(f"the session that moves the slot ended: {one_line(error)}") from error
        except psycopg.Error as error:
            if self._said != one_line(error):
                self._said = one_line(error)
                _log.warning("slot_not_moved", slot=self._slot, detail=self._said)
