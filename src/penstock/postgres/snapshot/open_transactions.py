"""Open write transactions: whoever makes a slot, or a snapshot that has a cut, waits for them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString, NamedTuple

import psycopg
from psycopg import AsyncConnection

from penstock.errors import LineLost
from penstock.postgres.connection import one_line

_MOST_NAMED: Final = 3

# Every transaction that writes holds a lock on its own number, in whichever database; subtransactions have
# numbers too. Everybody may see locks, while pg_stat_activity shows others' transactions to few.
_OPEN: LiteralString = """
SELECT DISTINCT ON (l.virtualtransaction, l.pid) l.transactionid::text, l.pid, a.application_name, p.gid,
       extract(epoch FROM pg_catalog.clock_timestamp() - coalesce(p.prepared, a.xact_start))::float8
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = l.transactionid
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
ORDER BY l.virtualtransaction, l.pid, pg_catalog.age(l.transactionid) DESC
"""


class OpenTransaction(NamedTuple):
    """A transaction that has written, and not ended."""

    xid: str
    pid: int | None
    """Of its session; None: it is prepared, and nobody's."""
    application: str | None
    gid: str | None
    """The name of a prepared one."""
    age_s: float | None
    """None: the role may not see it."""

    def __str__(self) -> str:
        who = f"prepared transaction {self.gid!r}" if self.pid is None else f"pid {self.pid}"
        known = [
            *([self.application] if self.application else []),
            *([] if self.age_s is None else [f"for {self.age_s:.0f} s"]),
        ]
        return f"{who} ({', '.join(known)})" if known else who


async def open_transactions(connection: AsyncConnection) -> list[OpenTransaction]:
    """All of the server, the oldest first. Takes a session in autocommit mode."""
    try:
        rows = await (await connection.execute(_OPEN)).fetchall()
    except psycopg.Error as error:
        raise LineLost(f"the open transactions can't be read: {one_line(error)}") from error
    return sorted(map(OpenTransaction._make, rows), key=lambda each: -(each.age_s or 0.0))


def waits_for(transactions: Sequence[OpenTransaction]) -> str:
    """The sentence for whoever waits for these."""
    named = [str(each) for each in transactions[:_MOST_NAMED]]
    more = len(transactions) - len(named)
    others = [f"{more} more"] if more else []
    return (
        f"it waits for open transactions: {', '.join([*named, *others])}. Fix: end them, or wait"
        " (pg_terminate_backend, ROLLBACK PREPARED)"
    )
