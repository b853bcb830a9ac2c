"""A process of its own that hangs up in the middle of queries: at every turn of the loop around an answer.

The database's address is the first argument. An answer wakes whoever waits for it, and that one goes on in a
later turn; what is freed in between is used by it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict

from penstock.postgres.connection import connect, hang_up

TURNS = 4
TIMES = 20


async def asked(connection: AsyncConnection) -> str:
    try:
        await connection.execute("SELECT pg_sleep(0.01)")
    except psycopg.OperationalError:
        return "failed"
    return "answered"


async def hang_up_after(connection: AsyncConnection, turns: int) -> str:
    """What the query came to if all ends so many turns after its answer is there."""
    query = asyncio.create_task(asked(connection))
    await asyncio.sleep(0.005)
    time.sleep(0.02)  # noqa: ASYNC251 - the answer comes, and the loop doesn't know it yet
    for _ in range(turns):
        await asyncio.sleep(0)
    hang_up(connection)
    hang_up(connection)  # whoever ends the leadership does it once more
    assert connection.closed
    return await query


async def cancel_while_asking(connection: AsyncConnection) -> str:
    query = asyncio.create_task(connection.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0.02)
    hang_up(connection)
    query.cancel()
    await asyncio.wait([query], timeout=1)
    return "cancelled" if query.cancelled() else "other"


async def main(conninfo: str) -> None:
    """Print what became of the queries."""
    parameters = conninfo_to_dict(conninfo)
    seen = Counter[str]()
    for turns in range(TURNS):
        for _ in range(TIMES):
            seen[await hang_up_after(await connect(parameters), turns)] += 1
    seen[await cancel_while_asking(await connect(parameters))] += 1
    print(dict(seen))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
