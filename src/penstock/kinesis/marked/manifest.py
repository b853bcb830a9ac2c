"""Manifest: the record of a marked stream that says where everything up to a position is."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.model.stream_position import StreamPosition

ACTION: Final = "R"


class ShardRange(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The records of a manifest in one shard.

    They stand between two records of their sender, both included, which may be of other transactions.
    """

    first: str
    """The lower sequence number, by value: these are decimals of varying length."""
    last: str
    """The higher one."""
    count: int
    """How many positions were accepted there."""

    def with_others(self, others: ShardRange | None) -> ShardRange:
        """These records and others of the same shard."""
        if others is None:
            return self
        first = min(self.first, others.first, key=int)
        return ShardRange(first, max(self.last, others.last, key=int), self.count + others.count)


class TableMark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a manifest says of a table."""

    count: int
    """Changes, truncates included."""
    truncated: str | None
    """The position of its last truncate."""

    def with_others(self, others: TableMark | None) -> TableMark:
        """These changes and others of the same table."""
        if others is None:
            return self
        truncates = [each for each in (self.truncated, others.truncated) if each is not None]
        return TableMark(self.count + others.count, max(truncates, default=None))


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything from `since` up to, not including, `resolved` is in the stream: here is where.

    It speaks only of records with its own `by`. Fields stand in the order in which they are written.
    """

    action: str
    system: str
    slot: str
    by: str
    since: str
    resolved: str
    changes: int
    bytes: int
    shards: dict[str, ShardRange]
    tables: dict[str, TableMark] | str
    """`*`: too many to list."""
    history: list[tuple[int, str]] = []
    """Each timeline before this one, with the LSN at which it was left; empty on timeline 1."""

    @property
    def since_position(self) -> StreamPosition:
        """Where it begins."""
        return StreamPosition.parse(self.since)

    @property
    def resolved_position(self) -> StreamPosition:
        """Where it ends."""
        return StreamPosition.parse(self.resolved)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Manifest)


def partition_key(slot: str) -> str:
    """The key under which all manifests of a slot stand."""
    return f"penstock/{slot}"


def encode(manifest: Manifest) -> bytes:
    """The record's data."""
    return _encoder.encode(manifest)


def decode(data: bytes) -> Manifest:
    """Read a record's data; ValueError if it isn't a manifest."""
    try:
        manifest = _decoder.decode(data)
        if manifest.action == ACTION and manifest.since_position <= manifest.resolved_position:
            return manifest
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise ValueError("not a manifest of a marked stream")
