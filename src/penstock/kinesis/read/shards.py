"""Shards: who descends from whom, and which of them share partition keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class ShardInfo(NamedTuple):
    """A shard, as ListShards has it."""

    shard_id: str
    low: int
    """The lowest hash key."""
    high: int
    """The highest."""
    parents: tuple[str, ...] = ()
    is_closed: bool = False

    def has_key(self, partition_key: str) -> bool:
        """Whether records of a partition key stand here."""
        return self.low <= hash_key(partition_key) <= self.high

    def overlaps(self, other: ShardInfo) -> bool:
        """Whether a partition key may have records in both."""
        return self.low <= other.high and other.low <= self.high


def hash_key(partition_key: str) -> int:
    """Where Kinesis puts a partition key."""
    return int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest())


def parents_first(shards: Iterable[ShardInfo]) -> list[ShardInfo]:
    """The same shards, each behind those that it was made from, otherwise by name."""
    waiting = {shard.shard_id: shard for shard in sorted(shards)}
    ordered: list[ShardInfo] = []
    while waiting:
        ready = [
            shard for shard in waiting.values() if not any(parent in waiting for parent in shard.parents)
        ]
        ordered += ready
        for shard in ready:
            del waiting[shard.shard_id]
    return ordered


def overlapping(shards: Mapping[str, ShardInfo], wanted: Iterable[str]) -> list[list[str]]:
    """The wanted shards in groups: a partition key has its records in one group only."""
    groups: list[list[ShardInfo]] = []
    for shard in sorted((shards[name] for name in wanted), key=lambda shard: (shard.low, shard.shard_id)):
        # Sorted by where they begin, only the last group can reach this one.
        if groups and any(shard.overlaps(other) for other in groups[-1]):
            groups[-1].append(shard)
        else:
            groups.append([shard])
    return [sorted(shard.shard_id for shard in group) for group in groups]
