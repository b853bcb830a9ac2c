"""The witness: what Postgres itself says was committed, by a logical slot that the product knows nothing of.

Its options are spelt out here on purpose. They must say what `penstock capture` asks for by default, but if
they were taken from there, a mistake in them would hide from the proof.
"""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier

from penstock.demo.proof import Row, RowKey
from penstock.demo.shop import KEYS

SLOT: Final = "demo_witness"

# Decoded text follows these settings; both sides must agree on them to be compared byte by byte.
_SESSION: Final = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1"
_CREATE: Final[LiteralString] = "SELECT pg_create_logical_replication_slot(%s, 'wal2json')"
_PEEK: Final[LiteralString] = """
SELECT data FROM pg_logical_slot_peek_changes(%s, NULL, NULL,
    'format-version', '2', 'include-transaction', 'true', 'include-timestamp', 'true', 'include-lsn', 'true',
    'include-pk', 'true')
"""


class Witnessed(NamedTuple):
    """What the slot has seen, in commit order."""

    transactions: list[list[bytes]]
    """The changes of each that has at least one: Postgres has transactions of its own."""


class Witness:
    """Watches one database from its creation on."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        with self._connect() as connection:
            connection.execute(_CREATE, [SLOT])

    def committed(self) -> Witnessed:
        """Every change since then. Nothing is consumed: it can be asked again."""
        with self._connect() as connection:
            frames = [data.encode() for (data,) in connection.execute(_PEEK, [SLOT])]
        transactions: list[list[bytes]] = []
        for frame in frames:
            if frame.startswith(b'{"action":"B"'):
                transactions.append([])
            elif not frame.startswith(b'{"action":"C"'):
                transactions[-1].append(frame)
        return Witnessed([changes for changes in transactions if changes])

    def tables(self) -> dict[RowKey, Row]:
        """Every row that the shop's tables hold now, its values as Postgres writes them."""
        with self._connect() as connection:
            return {key: row for table in KEYS for key, row in _rows(connection, table)}

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self._conninfo, autocommit=True, options=_SESSION)


def _rows(connection: psycopg.Connection, table: str) -> list[tuple[RowKey, Row]]:
    description = connection.execute(SQL("SELECT * FROM {} LIMIT 0").format(Identifier(table))).description
    names = [column.name for column in description or ()]
    texts = SQL(", ").join(SQL("{}::text").format(Identifier(name)) for name in names)
    rows = [
        dict(zip(names, values, strict=True))
        for values in connection.execute(SQL("SELECT {} FROM {}").format(texts, Identifier(table)))
    ]
    return [(RowKey.of(table, row, KEYS[table]), row) for row in rows]
