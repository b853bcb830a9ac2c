"""ManifestLog: the manifests of a slot, in the order in which they stand in their stream."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from penstock.kinesis.marked.manifest import Manifest, decode, partition_key
from penstock.kinesis.read.client import TRIM_HORIZON, Start, StreamClient
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.shards import ShardInfo, parents_first


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
        return self._read((shard, Start.arrived(moment)) for shard in self._shards())

    def _read(self, starts: Iterator[tuple[ShardInfo, Start]]) -> Iterator[Arrived]:
        for shard, start in starts:
            for page in self._client.pages(shard.shard_id, start):
                for record in page.records:
                    if record.partition_key == self._key:
                        place = Place(shard.shard_id, record.sequence)
                        yield Arrived(place, self._manifest(shard, record.data), record.arrived)
                if page.behind_ms == 0 and not page.is_last:
                    # More can come only here: a shard has children when it is closed.
                    return

    def _shards(self) -> list[ShardInfo]:
        return parents_first(shard for shard in self._client.shards() if shard.has_key(self._key))

    def _from(self, after: Place | None) -> Iterator[tuple[ShardInfo, Start]]:
        ours = self._shards()
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
