"""What can be seen of a service without asking it: Postgres, the registry, the tables and the stream tell."""

from __future__ import annotations

import msgspec


class TableReading(msgspec.Struct, frozen=True):
    """One shape, by the registry and its own table."""

    name: str
    awaits_snapshot: str | None = None
    """Why its table doesn't count; None: it does."""
    offset_lsn: int | None = None
    """What its table holds; None: nothing, or it can't be told."""
    lag_bytes: int | None = None
    """At most so much WAL is not in its table; None: it can't be told."""
    problem: str | None = None
    """Why the rest can't be told, or why the next start refuses it."""


class OutsideReading(msgspec.Struct, frozen=True):
    """What those tell whom a service uses."""

    slot_name: str
    wal_lsn: int
    """Up to where the server's WAL is on disk."""
    wal_status: str | None = None
    """The slot's, in the server's words."""
    leader: str | None = None
    """The session that holds the slot's lock."""
    reader: str | None = None
    """The session that reads the slot."""
    processes: int = 0
    """How many processes watch the slot, leader and standbys together."""
    note_lsn: int | None = None
    """What the slot's note says; capture alone keeps one."""
    manifest_lsn: int | None = None
    """What the newest manifest of the stream reaches to; None: there is no stream, or none came of late."""
    manifest_age_s: float | None = None
    """Since it came."""
    tables: list[TableReading] = []
    unknown: list[str] = []
    """What can't be told from here, a sentence each."""
