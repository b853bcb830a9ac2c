"""The manifests of a slot across the shards that theirs became, however Kinesis ends a closed one."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.manifest_log import ManifestLog
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
