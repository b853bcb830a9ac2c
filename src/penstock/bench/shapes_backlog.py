"""A backlog of changes in a log, as the shapes' collector would have written it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, LiteralString, NamedTuple

import psycopg
from psycopg.sql import SQL, Placeholder

from penstock.changelog.index import SegmentRange
from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.runs import create_run
from penstock.decoding.plugins import decoder_for
from penstock.decoding.rows import Column
from penstock.local.postgres import PrivatePostgres
from penstock.model.change import Action
from penstock.model.log_offset import BEFORE_ALL
from penstock.model.relation import Relation
from penstock.postgres.connection import PINNED_SESSION, QUALIFIED_NAMES

ORDERS: Final = Relation("public", "orders")
KEY: Final = ("id",)
COLUMNS: Final = (
    Column("id", "bigint", not_null=True),
    Column("customer", "integer", not_null=True),
    Column("status", "text", not_null=True),
    Column("amount", "numeric(12,2)", not_null=True),
    Column("note", "text"),
    Column("at", "timestamp with time zone"),
)
_TABLE: Final = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, status text NOT NULL,
                     amount numeric(12, 2) NOT NULL, note text, at timestamptz DEFAULT now())
"""
_INSERT: Final = (
    "INSERT INTO orders SELECT g, g % 977, 'open', g * 1.25, 'note for order ' || g"
    " FROM generate_series({first}, {last}) g"
)
_UPDATE: Final = "UPDATE orders SET status = 'paid', amount = amount + 1 WHERE id BETWEEN {first} AND {last}"
_DELETE: Final = "DELETE FROM orders WHERE id BETWEEN {first} AND {last}"
_READ: LiteralString = "SELECT data FROM pg_logical_slot_get_changes('bench_backlog', NULL, NULL, {})"
_STEP: Final = 1000


class Backlog(NamedTuple):
    """Changes in a log, ready to be flushed."""

    ranges: Sequence[SegmentRange]
    up_to: int
    """The commit LSN of the last transaction."""
    changes: int


def create_orders(postgres: PrivatePostgres) -> str:
    """A database with an empty table of orders; returns its name."""
    database = postgres.create_database()
    postgres.psql(_TABLE, database)
    return database


def insert_orders(postgres: PrivatePostgres, database: str, rows: int) -> None:
    """So many orders, with ids from 1 on."""
    postgres.psql(_INSERT.format(first=1, last=rows), database)


def write_backlog(
    postgres: PrivatePostgres,
    directory: Path,
    changes: int,
    keys: int,
    prepare: Callable[[str], None] = lambda _database: None,
) -> Backlog:
    """40 % inserts, 50 % updates and 10 % deletes over `keys` keys, in transactions of 1000 changes.

    `prepare` is called with the database before they are made.
    """
    database = create_orders(postgres)
    prepare(database)
    postgres.psql("SELECT pg_create_logical_replication_slot('bench_backlog', 'wal2json')", database)
    deleted = changes // 10
    for statement, count in (
        (_INSERT, keys),
        (_UPDATE, changes // 2),
        (_DELETE, deleted),
        (_INSERT, min(deleted, changes * 2 // 5 - keys)),
    ):
        for done in range(0, count, _STEP):
            first = done % keys + 1
            postgres.psql(statement.format(first=first, last=first + _STEP - 1), database)
    return _logged(postgres, database, directory)


def _logged(postgres: PrivatePostgres, database: str, directory: Path) -> Backlog:
    log = ChangeLog(create_run(directory / "log", "bench"), LogLimits(min_free_bytes=0))
    decoder = decoder_for("wal2json")
    options = decoder.row_options()[-1]
    arguments = [part for pair in options.items() for part in pair]
    query = SQL(_READ).format(SQL(", ").join([Placeholder()] * len(arguments)))
    count = tx_offset = op_offset = 0
    session = f"{PINNED_SESSION} {QUALIFIED_NAMES}"
    with psycopg.connect(postgres.conninfo(database), options=session) as connection:
        for (data,) in connection.execute(query, arguments):
            payload = data.encode()
            action = decoder.action(payload)
            if action not in (Action.BEGIN, Action.COMMIT, Action.MESSAGE):
                log.append(ORDERS, tx_offset, op_offset, payload)
                op_offset += 2
                count += 1
                if log.write_due:
                    log.write()
            elif action is Action.BEGIN:
                tx_offset, op_offset = decoder.transaction(payload).commit_lsn or 0, 0
            elif op_offset:
                log.commit(tx_offset)
    log.flush(0.0)
    return Backlog(log.read_plan(None, BEFORE_ALL), log.last_persisted_txn_offset.tx_offset, count)
