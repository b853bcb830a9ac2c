"""Part: what one task has published, small enough for the driver; put together they are a manifest's word."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.kinesis.marked.manifest import ShardRange, TableMark
from penstock.kinesis.write.tally import MOST_TABLES, Tally
from penstock.model.stream_position import History


class Part(msgspec.Struct, frozen=True):
    """Where some accepted records are."""

    records: int = 0
    size_bytes: int = 0
    shards: dict[str, ShardRange] = {}
    tables: dict[str, TableMark] | str = {}
    quarantined: int = 0
    """How many of them point to quarantined ones."""

    @classmethod
    def of(cls, tally: Tally, history: History, quarantined: int = 0) -> Part:
        """What a task has counted."""
        return cls(tally.records, tally.size_bytes, tally.shards(), tally.tables(history), quarantined)

    @classmethod
    def decode(cls, data: bytes) -> Part:
        """Read what `encode` has written."""
        return msgspec.json.decode(data, type=cls)

    def encode(self) -> bytes:
        """For the way to the driver."""
        return msgspec.json.encode(self)


def together(parts: Iterable[Part]) -> Part:
    """All of them as one."""
    records = size_bytes = quarantined = 0
    shards: dict[str, ShardRange] = {}
    tables: dict[str, TableMark] | str = {}
    for part in parts:
        records, size_bytes = records + part.records, size_bytes + part.size_bytes
        quarantined += part.quarantined
        for name, found in part.shards.items():
            shards[name] = found.with_others(shards.get(name))
        if isinstance(part.tables, str) or isinstance(tables, str):
            tables = "*"
            continue
        for table, mark in part.tables.items():
            tables[table] = mark.with_others(tables.get(table))
        if len(tables) > MOST_TABLES:
            tables = "*"
    return Part(records, size_bytes, dict(sorted(shards.items())), tables, quarantined)
