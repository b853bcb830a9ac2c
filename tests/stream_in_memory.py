"""A Kinesis stream in memory, as a StreamClient shows it: shards that split, merge, close and expire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.kinesis.read.client import MOST_RECORDS, Page, ReadRecord, Start
from penstock.kinesis.read.shards import ShardInfo

BEGAN = datetime(2026, 11, 17, tzinfo=UTC)
RETENTION = timedelta(hours=24)
HASH_KEYS = 2**128


@dataclass
class MemoryShard:
    info: ShardInfo
    records: list[ReadRecord] = field(default_factory=list)
    """Those that have not expired."""
    closed_at: datetime | None = None


class StreamInMemory:
    """Time stands still until it is told to pass.

    Kinesis' whims are kept: empty pages are no end, and neither are full ones that are 0 ms behind.
    """

    stream = "memory"

    def __init__(self, shards: int = 1) -> None:
        self.now = BEGAN
        self.held: dict[str, MemoryShard] = {}
        self.calls: list[tuple[str, Start, int]] = []
        """Each GetRecords: its shard, where its pages began, and how many records it gave."""
        self.empty_pages = 0
        """How many empty pages come before each page with records."""
        self.tip_is_now = False
        """Whether pages tell how far they are behind the present, instead of behind the newest record."""
        self.ends_later = False
        """Whether a closed shard ends with an empty page behind its last records, instead of with them."""
        self._sequence = 10**20
        step = HASH_KEYS // shards
        for number in range(shards):
            high = HASH_KEYS - 1 if number == shards - 1 else (number + 1) * step - 1
            self._add(number * step, high, ())

    @property
    def listed_at(self) -> datetime:
        return self.now

    def put(self, shard_id: str, data: bytes = b"x", key: str = "key") -> int:
        shard = self.held[shard_id]
        assert not shard.info.is_closed
        self._sequence += 7
        shard.records.append(ReadRecord(self._sequence, key, data, self.now))
        return self._sequence

    def split(self, shard_id: str) -> list[str]:
        low, high = self.held[shard_id].info.low, self.held[shard_id].info.high
        self._close(shard_id)
        middle = (low + high) // 2
        return [self._add(low, middle, (shard_id,)), self._add(middle + 1, high, (shard_id,))]

    def merge(self, shard_id: str, other: str) -> str:
        low = min(self.held[shard_id].info.low, self.held[other].info.low)
        high = max(self.held[shard_id].info.high, self.held[other].info.high)
        self._close(shard_id)
        self._close(other)
        return self._add(low, high, (shard_id, other))

    def pass_time(self, by: timedelta) -> None:
        """Let time pass; what is older than the retention expires, and closed shards with it."""
        self.now += by
        horizon = self.now - RETENTION
        for shard in self.held.values():
            shard.records = [record for record in shard.records if record.arrived > horizon]
        self.held = {
            shard_id: shard
            for shard_id, shard in self.held.items()
            if shard.closed_at is None or shard.closed_at > horizon
        }

    def open_shard_of(self, key: str) -> str:
        return next(name for name in self.open_shards() if self.held[name].info.has_key(key))

    def open_shards(self) -> list[str]:
        return [shard_id for shard_id, shard in self.held.items() if not shard.info.is_closed]

    def shards(self) -> list[ShardInfo]:
        return [shard.info for shard in self.held.values()]

    def pages(self, shard_id: str, start: Start, *, most: int = MOST_RECORDS) -> Iterator[Page]:
        after = self._place(shard_id, start)
        while True:
            shard = self.held[shard_id]
            left = [record for record in shard.records if record.sequence > after]
            for _ in range(self.empty_pages if left else 0):
                yield Page([], 1000, is_last=False)
            page, more = left[:most], left[most:]
            self.calls.append((shard_id, start, len(page)))
            after = page[-1].sequence if page else after
            newest = self.now if self.tip_is_now or not more else more[-1].arrived
            behind = newest - page[-1].arrived if more else timedelta()
            is_last = shard.info.is_closed and not more and not (page and self.ends_later)
            yield Page(page, behind // timedelta(milliseconds=1), is_last)
            if is_last:
                return

    def _place(self, shard_id: str, start: Start) -> int:
        """The number behind which pages begin."""
        records = self.held[shard_id].records
        if start.timestamp is not None:
            assert start.timestamp <= self.now, "Kinesis refuses times in the future"
            older = [record.sequence for record in records if record.arrived < start.timestamp]
            return older[-1] if older else 0
        if start.sequence is not None:
            return start.sequence - (start.kind == "AT_SEQUENCE_NUMBER")
        return 0

    def _close(self, shard_id: str) -> None:
        shard = self.held[shard_id]
        shard.info = shard.info._replace(is_closed=True)
        shard.closed_at = self.now

    def _add(self, low: int, high: int, parents: tuple[str, ...]) -> str:
        self._sequence += 1
        shard_id = f"shardId-{self._sequence - 10**20:012d}"
        self.held[shard_id] = MemoryShard(ShardInfo(shard_id, low, high, parents))
        return shard_id
