"""ChangeWatch: which changes were committed to some tables since a moment, from a temporary slot.

Making the slot waits for every write transaction that is open, and needs a spare replication slot. The slot
ends with its session; while it lives, the server keeps the WAL since then.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Final, LiteralString

import psycopg
from psycopg import AsyncConnection

from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.model.change import Action
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.postgres.connection import connect
from penstock.postgres.slot.state import translate

MOST_BYTES: Final = 64 << 20
"""More is not fetched: it would fill the memory."""

_CREATE: LiteralString = "SELECT FROM pg_catalog.pg_create_logical_replication_slot(%s, %s, true)"
# The first frame that is too much comes as null.
_PEEK: LiteralString = """
SELECT CASE WHEN total <= %s THEN data END FROM (
    SELECT data, place, pg_catalog.octet_length(data) AS own,
           pg_catalog.sum(pg_catalog.octet_length(data)) OVER (ORDER BY place) AS total
    FROM pg_catalog.pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, VARIADIC %s::text[])
         WITH ORDINALITY AS frame (lsn, xid, data, place)) frames
WHERE total - own <= %s ORDER BY place
"""
_NOT_CHANGES: Final = (Action.BEGIN, Action.COMMIT, Action.MESSAGE)


class ChangeWatch:
    """A temporary slot, and what it has seen."""

    def __init__(self, connection: AsyncConnection, slot: str, decoder: Decoder) -> None:
        self._decoder = decoder
        self._connection = connection
        self._slot = slot

    async def frames(self, relations: Collection[Relation], up_to_lsn: int) -> list[bytes] | None:
        """The frames of all changes to these tables with a commit LSN up to this one, that included.

        In the order of the stream; truncates are among them. None if they have more than MOST_BYTES.
        """
        options = self._decoder.table_options(relations)
        words = [word for option in options.items() for word in option]
        # The server stops behind the first record that ends at or above the LSN, and a commit ends above
        # its own: one more makes it part of the answer.
        up_to = format_lsn(up_to_lsn + 1)
        try:
            values = (MOST_BYTES, self._slot, up_to, words, MOST_BYTES)
            rows = await (await self._connection.execute(_PEEK, values)).fetchall()
        except psycopg.Error as error:
            raise translate(error, slot=self._slot, plugin=self._decoder.plugin) from error
        if rows and rows[-1][0] is None:
            return None
        payloads = [payload for (raw,) in rows if (payload := self._decoder.payload(raw)) is not None]
        return [payload for payload in payloads if self._decoder.action(payload) not in _NOT_CHANGES]


@asynccontextmanager
async def watch_changes(parameters: dict[str, Any], *, plugin: str) -> AsyncIterator[ChangeWatch]:
    """Watch from now on. Raises what making a slot raises (NoSpareSlot, …), ConnectionFailed or LineLost."""
    connection = await connect(parameters)
    slot = f"penstock_watch_{secrets.token_hex(8)}"
    try:
        try:
            await connection.execute(_CREATE, (slot, plugin))
        except psycopg.Error as error:
            raise translate(error, slot=slot, plugin=plugin) from error
        yield ChangeWatch(connection, slot, decoder_for(plugin))
    finally:
        connection.pgconn.finish()
