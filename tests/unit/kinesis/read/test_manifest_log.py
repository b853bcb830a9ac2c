"""The manifests of a slot across the shards that theirs became, however Kinesis ends a closed one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.kinesis.read.client import MOST_RECORDS, Page, Start, StreamClient
from penstock.kinesis.read.manifest_log import ManifestLog
from penstock.kinesis.read.shards import ShardInfo
from penstock.model.stream_position import StreamPosition
from tests.stream_in_memory import StreamInMemory

SLOT = "s"
KEY = partition_key(SLOT)


def say(stream: StreamInMemory, number: int) -> None:
    since, resolved = (str(StreamPosition(1, lsn)) for lsn in (number, number + 1))
    manifest = Manifest(ACTION, "7", SLOT, "by", since, resolved, 0, 0, {}, {})
    stream.put(stream.open_shard_of(KEY), encode(manifest), KEY)


def numbers(found: list[Manifest]) -> list[int]:
    return [manifest.since_position.commit_lsn for manifest in found]


@pytest.mark.parametrize("ends_later", [False, True])
def test_a_reader_goes_on_behind_a_split(ends_later: bool) -> None:
    stream = StreamInMemory()
    stream.ends_later = ends_later
    log = ManifestLog(cast(StreamClient, stream), SLOT)
    for number in range(3):
        say(stream, number)
    stream.split(stream.open_shard_of(KEY))
    for number in range(3, 5):
        say(stream, number)

    read = list(log.read(None))

    assert numbers([manifest for _, manifest in read]) == [0, 1, 2, 3, 4]
    assert numbers([manifest for _, manifest in log.read(read[1][0])]) == [2, 3, 4]
    assert numbers([found.manifest for found in log.arrivals_since(stream.now)]) == [0, 1, 2, 3, 4]
    parts = [[manifest for _, manifest in part] for part in log.backwards()]
    assert [numbers(part) for part in parts if part] == [[0, 1, 2, 3, 4]]


class Busy(StreamInMemory):
    """Its shard is written as fast as it is read."""

    began_at: datetime | None = None

    def shards(self) -> list[ShardInfo]:
        self.began_at = self.now
        return super().shards()

    @property
    def listed_at(self) -> datetime:
        assert self.began_at is not None
        return self.began_at

    def pages(self, shard_id: str, start: Start, *, most: int = MOST_RECORDS) -> Iterator[Page]:
        for number, page in enumerate(super().pages(shard_id, start, most=most)):
            assert number < 20, "it is read without end"
            self.pass_time(timedelta(seconds=0.5))
            say(self, self.now.second)
            yield page._replace(behind_ms=500)


def test_a_look_ends_with_what_came_after_it_began() -> None:
    stream = Busy()
    for number in range(3):
        say(stream, number)
    log = ManifestLog(cast(StreamClient, stream), SLOT)

    first = list(log.read(None))
    assert numbers([manifest for _, manifest in first])[:3] == [0, 1, 2]
    second = list(log.read(first[-1][0]))
    assert second
    assert second[0][0].sequence > first[-1][0].sequence
    parts = [list(part) for part in log.backwards()]
    assert parts[0][: len(first)] == first
