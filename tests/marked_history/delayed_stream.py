"""A Kinesis stream in memory that accepts records at once, and shows them later."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from penstock.kinesis.aws.outcome import Entry
from penstock.kinesis.read.client import MOST_RECORDS, Page, ReadRecord, Start
from penstock.kinesis.read.errors import RecordsExpired
from tests.stream_in_memory import MemoryShard, StreamInMemory

_STEP = 1_000
"""Between two numbers, so that a record may get one between them."""
_SILENCE = 2
"""Whoever goes on asking, sees what there is after so many empty pages."""


class DelayedStream(StreamInMemory):
    """1. A shard shows its records in the order of their numbers, up to where `show` has let it.

    2. That order is a coarse one: a record may get a number below those of others that nobody could read yet,
       but above the one that its sender names.
    3. Numbers have varying lengths.
    4. A closed shard has no end before all of it is shown; so nobody goes on to its children too early.
    """

    def __init__(self, shards: int) -> None:
        self._number = 96_000
        self.shown: dict[str, int] = {}
        """The highest number that can be read in each shard."""
        self.trimmed: set[tuple[str, int]] = set()
        super().__init__(shards)

    def accept(self, key: str, data: bytes, *, early: bool = False, after: int = 0) -> Entry:
        """Take a record."""
        name = self.open_shard_of(key)
        records, low = self.held[name].records, max(self.shown[name], after)
        hidden = [record.sequence for record in records if record.sequence > low]
        if early and hidden and hidden[0] > low + 1:
            number = (low + hidden[0]) // 2
        else:
            self._number += _STEP
            number = self._number
        insort(records, ReadRecord(number, key, data, self.now), key=lambda record: record.sequence)
        return Entry(shard=name, sequence=str(number))

    def show(self, shard_id: str, count: int | None = None) -> None:
        """Let the next records be read; None: all of them."""
        hidden = self._hidden(shard_id)[:count]
        if hidden:
            self.shown[shard_id] = hidden[-1]

    def trim(self, share: float) -> None:
        """Retention passes a share of the records that are shown, and closed shards that have no more."""
        shown = sorted(
            record.sequence
            for name, shard in self.held.items()
            for record in shard.records
            if record.sequence <= self.shown[name]
        )
        horizon = shown[min(len(shown) - 1, int(share * len(shown)))] if shown else 0
        for name, shard in list(self.held.items()):
            end = min(horizon, self.shown[name])
            self.trimmed |= {(name, record.sequence) for record in shard.records if record.sequence <= end}
            shard.records = [record for record in shard.records if record.sequence > end]
            if shard.info.is_closed and not shard.records:
                del self.held[name]

    def pages(self, shard_id: str, start: Start, *, most: int = MOST_RECORDS) -> Iterator[Page]:
        after, silence = self._place(shard_id, start), 0
        while True:
            shard = self._shard(shard_id)
            left = [each for each in shard.records if after < each.sequence <= self.shown[shard_id]]
            for _ in range(self.empty_pages if left else 0):
                yield Page([], 1000, is_last=False)
            page, more = left[:most], left[most:]
            after = page[-1].sequence if page else after
            is_last = shard.info.is_closed and not more and not self._hidden(shard_id)
            yield Page(page, 1000 * bool(more), is_last)
            if is_last:
                return
            silence = 0 if page else silence + 1
            if silence > _SILENCE:
                self.show(shard_id)

    def _place(self, shard_id: str, start: Start) -> int:
        self._shard(shard_id)
        return super()._place(shard_id, start)

    def _shard(self, shard_id: str) -> MemoryShard:
        if shard_id not in self.held:
            raise RecordsExpired(f"{shard_id} is no more")
        return self.held[shard_id]

    def _hidden(self, shard_id: str) -> list[int]:
        end = self.shown[shard_id]
        return [record.sequence for record in self.held[shard_id].records if record.sequence > end]

    def _add(self, low: int, high: int, parents: tuple[str, ...]) -> str:
        name = super()._add(low, high, parents)
        self.shown[name] = self._number
        return name
