"""A backlog of changes in a private Postgres, and pg_recvlogical as the baseline that reads it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.decoding.decoder import RecordContent
from penstock.decoding.plugins import decoder_for
from penstock.local.postgres import PrivatePostgres
from penstock.local.postgres_programs import PostgresPrograms

_ROUND: Final = 1000
_TABLE: Final = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, status text NOT NULL,
                     amount numeric(12, 2) NOT NULL, note text)
"""
INSERT_ROWS: Final = """
INSERT INTO orders SELECT g, mod(g, 977), 'open', g * 1.25, 'note for order ' || g
FROM generate_series(%s::int, %s::int) g
"""
# 400 inserts, 500 updates and 100 deletes over 400 keys.
_STATEMENTS: Final = (
    "INSERT INTO orders SELECT g, g % 977, 'open', g * 1.25, 'note for order ' || g"
    " FROM generate_series({base} + 1, {base} + 400) g",
    "UPDATE orders SET status = 'paid', amount = amount + 1 WHERE id BETWEEN {base} + 1 AND {base} + 400",
    "UPDATE orders SET status = 'sent' WHERE id BETWEEN {base} + 1 AND {base} + 100",
    "DELETE FROM orders WHERE id BETWEEN {base} + 1 AND {base} + 100",
)


def create_orders(postgres: PrivatePostgres) -> str:
    """A database with the orders table; returns its name."""
    database = postgres.create_database()
    postgres.psql(_TABLE, database)
    return database


def capture_slot(database: str) -> str:
    """The slot that capture uses for a database; slots are shared by all databases of a server."""
    return f"{database}_capture"


def _baseline_slot(database: str) -> str:
    return f"{database}_baseline"


def write_backlog(postgres: PrivatePostgres, database: str, changes: int) -> None:
    """Write changes that both slots have still to read: 40 % inserts, 50 % updates, 10 % deletes."""
    for slot in (capture_slot(database), _baseline_slot(database)):
        postgres.psql(f"SELECT pg_create_logical_replication_slot('{slot}', 'wal2json')", database)
    for number in range(changes // _ROUND):
        for statement in _STATEMENTS:
            postgres.psql(statement.format(base=number * _ROUND), database)


@contextmanager
def read_again(postgres: PrivatePostgres, database: str) -> Iterator[str]:
    """A slot for reading the backlog once more; the baseline's must not have moved."""
    slot = f"{database}_again"
    copied = f"SELECT pg_copy_logical_replication_slot('{_baseline_slot(database)}', '{slot}')"
    postgres.psql(copied, database)
    try:
        yield slot
    finally:
        postgres.psql(f"SELECT pg_drop_replication_slot('{slot}')", database)


def read_with_pg_recvlogical(postgres: PrivatePostgres, database: str) -> float:
    """Seconds that pg_recvlogical takes to read the backlog to /dev/null with the same options."""
    end_lsn = postgres.psql("SELECT pg_current_wal_lsn()::text", database)[0][0]
    options = decoder_for("wal2json").record_options(RecordContent())
    command = [
        str(PostgresPrograms.find().bindir / "pg_recvlogical"),
        *("--dbname", postgres.conninfo(database), "--slot", _baseline_slot(database)),
        *("--start", "--no-loop"),
        *("--file", "/dev/null", "--endpos", end_lsn),
        *(part for name, value in options.items() for part in ("--option", f"{name}={value}")),
    ]
    started = time.monotonic()
    subprocess.run(command, check=True)
    return time.monotonic() - started
