"""ManifestLog: the manifests of a slot, in the order in which they stand in their stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from penstock.kinesis.marked.manifest import Manifest, decode, partition_key
from penstock.kinesis.read.client import TRIM_HORIZON, Page, ReadRecord, Start, StreamClient
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.shards import ShardInfo, parents_first

_BACK: Final = tuple(timedelta(minutes=12**step) for step in range(6))
"""How far the parts of `backwards` reach: a minute, twelve of them, 2.4 hours, … half a year."""


_SECOND: Final = timedelta(seconds=1)


class Place(NamedTuple):
    """Where a manifest stands."""

    shard: str
    sequence: int


class Arrived(NamedTuple):
    """A manifest, and when it came."""

    place: Place
    manifest: Manifest
    at: datetime
    """By the clock of Kinesis."""


class ManifestLog:
    """Reads the one shard that has a slot's manifests, and those that it was made from or became."""

    def __init__(self, client: StreamClient, slot: str) -> None:
        self._client = client
        self._key = partition_key(slot)

    def read(self, after: Place | None) -> Iterator[tuple[Place, Manifest]]:
        """All that is there now, behind a place (None: from the beginning), a parent's before its children's.

        A place whose shard has expired is no place any more: everything that is left is read. Whoever
        puts manifests in order sees whether something is missing.
        """
        return ((found.place, found.manifest) for found in self.arrivals(after))

    def arrivals(self, after: Place | None) -> Iterator[Arrived]:
        """The same, with the time at which each came."""
        return self._read(self._from(after))

    def arrivals_since(self, moment: datetime) -> Iterator[Arrived]:
        """All that came in this second or later, and is there now."""
        return self._read((shard, Start.arrived(moment)) for shard in self._ours())

    def arrivals_within(self, back: timedelta) -> Iterator[Arrived]:
        """All that came in the time from so long ago on, by the clock of Kinesis, and is there now."""
        ours = self._ours()
        return self._read((shard, Start.arrived(self.now - back)) for shard in ours)

    @property
    def now(self) -> datetime:
        """When a reading began last, by the clock of Kinesis; by ours if it doesn't tell."""
        return self._client.listed_at or datetime.now(UTC)

    def _read(self, starts: Iterator[tuple[ShardInfo, Start]]) -> Iterator[Arrived]:
        began: datetime | None = None
        for shard, start in starts:
            began = began or self._client.listed_at
            for page in self._client.pages(shard.shard_id, start):
                for record in page.records:
                    if record.partition_key == self._key:
                        place = Place(shard.shard_id, record.sequence)
                        yield Arrived(place, self._manifest(shard, record.data), record.arrived)
                if _is_tip(shard, page, began):
                    return

    def backwards(self) -> Iterator[Iterator[tuple[Place, Manifest]]]:
        """All that is there, in parts: those of the last minute, of eleven minutes before, and so on.

        Each part is in its own order, and has to be read before the next one is asked for. So whoever looks
        for something recent doesn't pay for the age of a stream.
        """
        ours = self._ours()
        now = self.now
        begun: dict[str, int] = {}
        for start in (*(Start.arrived(now - back) for back in _BACK), TRIM_HORIZON):
            yield self._part(ours, start, begun)

    def _part(
        self, ours: Sequence[ShardInfo], start: Start, begun: dict[str, int]
    ) -> Iterator[tuple[Place, Manifest]]:
        """From `start` up to where newer parts have begun. Times of arrival need not ascend; numbers do."""
        for shard in ours:
            for record in self._records(shard, start, begun.get(shard.shard_id)):
                begun[shard.shard_id] = min(record.sequence, begun.get(shard.shard_id, record.sequence))
                if record.partition_key == self._key:
                    yield Place(shard.shard_id, record.sequence), self._manifest(shard, record.data)

    def _records(self, shard: ShardInfo, start: Start, end: int | None) -> Iterator[ReadRecord]:
        began = self._client.listed_at
        for page in self._client.pages(shard.shard_id, start):
            for record in page.records:
                if end is not None and record.sequence >= end:
                    return
                yield record
            if _is_tip(shard, page, began):
                return

    def _ours(self) -> list[ShardInfo]:
        return parents_first(shard for shard in self._client.shards() if shard.has_key(self._key))

    def _from(self, after: Place | None) -> Iterator[tuple[ShardInfo, Start]]:
        ours = self._ours()
        if after is None or all(shard.shard_id != after.shard for shard in ours):
            yield from ((shard, TRIM_HORIZON) for shard in ours)
            return
        # Of the shards with this key, one is open and each other one has one child among them.
        at = next(index for index, shard in enumerate(ours) if shard.shard_id == after.shard)
        yield ours[at], Start.after(after.sequence)
        yield from ((shard, TRIM_HORIZON) for shard in ours[at + 1 :])

    def _manifest(self, shard: ShardInfo, data: bytes) -> Manifest:
        try:
            return decode(data)
        except ValueError as error:
            raise StreamReadError(
                f"{self._client.stream}, {shard.shard_id}: a record under the key {self._key}: {error}."
                " Fix: nobody else may write under that key"
            ) from None


def _is_tip(shard: ShardInfo, page: Page, began: datetime | None) -> bool:
    """Whether more can come only here, and later: a shard has children when it is closed.

    1. A closed one goes on until Kinesis says that it ends: that may be with its last records, or with an
       empty page behind them.
    2. Whoever reads an open one as fast as it is written never sees its end. What arrived after the reading
       began (by the clock of Kinesis, which tells whole seconds) is left for the next.
    """
    if shard.is_closed:
        return False
    is_later = began is not None and bool(page.records) and page.records[-1].arrived > began + _SECOND
    return page.behind_ms == 0 or is_later
