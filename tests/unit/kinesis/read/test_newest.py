"""Where `latest` begins: with the end of the chain, at a cost that a stream's age doesn't raise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import Manifest, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.manifest_log import ManifestLog, Place
from penstock.kinesis.read.newest import Newest
from penstock.model.stream_position import StreamPosition
from tests.stream_in_memory import StreamInMemory

SLOT = "slot"
KEY = partition_key(SLOT)


def at(lsn: int) -> str:
    return str(StreamPosition(1, lsn))


def manifest(resolved: int, by: str = "a", system: str = "7") -> Manifest:
    return Manifest("R", system, SLOT, by, at(resolved - 1), at(resolved), 0, 0, {}, {})


def told(*parts: Sequence[Manifest]) -> Newest:
    """Parts as `backwards` gives them; places count from the oldest manifest."""
    newest = Newest()
    left = sum(map(len, parts))
    for part in parts:
        left -= len(part)
        newest.take((Place("s", left + number), each) for number, each in enumerate(part))
    return newest


@pytest.mark.parametrize(
    ("parts", "is_certain", "resolved", "last"),
    [
        ([[]], False, None, None),
        ([[manifest(5)]], False, 5, 0),
        ([[manifest(5), manifest(6)]], True, 6, 1),
        # What is behind higher ones was carried out late.
        ([[manifest(6), manifest(7), manifest(5)]], True, 7, 2),
        # The last word of a leader that slept; its successor had gone on, and has stopped since.
        ([[manifest(5, "slept")], [manifest(8, "b"), manifest(9, "b")]], True, 9, 2),
        ([[manifest(5, "slept")], [manifest(8, "b")]], False, 8, 1),
        ([[], [manifest(5), manifest(6)], [manifest(9, "b")]], True, 9, 2),
        # Another server has taken the slot's name, and begins far below.
        ([[manifest(3, "b", "8"), manifest(4, "b", "8")], [manifest(90), manifest(91)]], True, 4, 3),
        ([[manifest(90), manifest(91), manifest(3, "b", "8")]], False, 3, 2),
    ],
)
def test_the_chain_ends_with_the_highest(
    parts: list[list[Manifest]], is_certain: bool, resolved: int | None, last: int | None
) -> None:
    newest = told(*parts)
    assert newest.is_certain == is_certain
    offset = newest.offset
    if resolved is None:
        assert offset is None
        return
    assert offset is not None
    assert (offset.resolved, offset.begins) == (at(resolved), at(resolved))
    assert offset.place == offset.begins_behind == Place("s", last or 0)


def read(stream: StreamInMemory) -> list[list[tuple[Place, Manifest]]]:
    return [list(part) for part in ManifestLog(cast(StreamClient, stream), SLOT).backwards()]


def test_parts_are_all_of_the_log_each_manifest_once() -> None:
    stream = StreamInMemory(2)
    stream.empty_pages = 1
    for number in range(400):
        stream.put(stream.open_shard_of(KEY), encode(manifest(number + 1)), KEY)
        stream.put(stream.open_shards()[-1])
        stream.pass_time(timedelta(seconds=10 if number > 50 else 400))
        if number in (100, 395):
            stream.split(stream.open_shard_of(KEY))
        if number == 398:
            stream.merge(*sorted(stream.open_shards(), key=lambda name: stream.held[name].info.low)[:2])
    parts = read(stream)
    assert [each for part in reversed(parts) for each in part] == list(
        ManifestLog(cast(StreamClient, stream), SLOT).read(None)
    )
    assert [len(part) for part in parts[:2]] == [6, 66]
    assert not any(parts[4:]), "nothing is older than two days"


def test_a_stream_s_age_costs_nothing() -> None:
    """A day of manifests at rest, in a shard with other records: the last minute tells."""
    stream = StreamInMemory()
    (shard,) = stream.open_shards()
    for number in range(8640):
        stream.put(shard, encode(manifest(number + 1)), KEY)
        stream.put(shard)
        stream.pass_time(timedelta(seconds=10))
    newest = Newest()
    for part in ManifestLog(cast(StreamClient, stream), SLOT).backwards():
        newest.take(part)
        if newest.is_certain:
            break
    assert newest.offset is not None
    assert newest.offset.resolved == at(8640)
    assert sum(count for _, _, count in stream.calls) <= 12


def test_a_long_silence_is_read_over_once() -> None:
    stream = StreamInMemory()
    (shard,) = stream.open_shards()
    for number in range(3):
        stream.put(shard, encode(manifest(number + 1)), KEY)
    for _ in range(600):
        stream.pass_time(timedelta(seconds=60))
        stream.put(shard)
    parts = read(stream)
    assert [len(part) for part in parts[:4]] == [0, 0, 0, 3]
    # The memory's pages are large: what a part reads beyond its end is the page that it is in.
    stream.calls.clear()
    first, second, *_ = ManifestLog(cast(StreamClient, stream), SLOT).backwards()
    assert list(first) == list(second) == []
    assert sum(count for _, _, count in stream.calls) <= 2 + 13
