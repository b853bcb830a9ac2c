"""Which server this is, and which history it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from psycopg import AsyncConnection, errors

from penstock.model.lsn import parse_lsn

_PAGE: Final = 8192
_PAGE_HEADERS: Final = (24, 40)
"""A page of WAL, and a segment, begin with so many bytes that are of no record."""


class ServerIdentity(NamedTuple):
    """A server, as a replication connection tells."""

    system_id: str
    timeline: int
    switch_points: Mapping[int, int]
    """For each timeline before the current one, the LSN at which it was left."""


async def identify(line: AsyncConnection) -> ServerIdentity:
    """Ask a replication connection who is at its other end."""
    row = await (await line.execute("IDENTIFY_SYSTEM")).fetchone()
    assert row is not None, "IDENTIFY_SYSTEM has a row"
    system_id, timeline = str(row[0]), int(row[1])
    if timeline == 1:
        return ServerIdentity(system_id, timeline, {})
    try:
        history = await (await line.execute(f"TIMELINE_HISTORY {timeline}")).fetchone()
    except errors.UndefinedFile:
        # The server itself needs the file no more, and somebody has tidied up.
        return ServerIdentity(system_id, timeline, {})
    assert history is not None, "TIMELINE_HISTORY has a row"
    content = history[1]
    return ServerIdentity(
        system_id, timeline, parse_history(content if isinstance(content, str) else bytes(content).decode())
    )


async def flushed_lsn(connection: AsyncConnection) -> int:
    """Up to where the server's WAL is on disk now."""
    row = await (await connection.execute("SELECT pg_catalog.pg_current_wal_flush_lsn()::text")).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    return parse_lsn(row[0])


async def inserted_lsn(connection: AsyncConnection) -> int:
    """Up to where the server has written WAL, on disk or not."""
    row = await (await connection.execute("SELECT pg_catalog.pg_current_wal_insert_lsn()::text")).fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    return end_of_record(parse_lsn(row[0]))


def end_of_record(inserted: int) -> int:
    """Where the last record ends, by where the next one will begin: behind the header of a new page."""
    return inserted - inserted % _PAGE if inserted % _PAGE in _PAGE_HEADERS else inserted


def parse_history(content: str) -> dict[int, int]:
    """The switch points in a history file: a line a timeline, its number, its end and a reason."""
    found = {}
    for line in content.splitlines():
        fields = line.split()
        if len(fields) >= 2 and not fields[0].startswith("#"):
            found[int(fields[0])] = parse_lsn(fields[1])
    return found
