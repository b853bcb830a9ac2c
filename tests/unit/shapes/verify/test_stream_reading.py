"""A stream's reading over a stream in memory: behind a gap it begins again, with nothing told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, ShardRange, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.marked_ranges import MarkedTask
from penstock.lake.stream.place import StreamPlace
from penstock.lake.stream.told import Told
from penstock.model.stream_position import StreamPosition
from penstock.shapes.verify.stream_reading import StreamReading
from penstock.sources.marked_query import MarkedQuery
from tests.stream_in_memory import StreamInMemory

KEY = partition_key("lines")


class Counted:
    """Counts what is told."""

    def __init__(self) -> None:
        self.changes = 0

    def read(self, tasks: Sequence[MarkedTask]) -> None:
        self.changes += sum(portion.changes for task in tasks for portion in task.portions)

    def forget(self) -> None:
        self.changes = 0


class Stream:
    """A shape's manifests, each of as many changes as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._memory = StreamInMemory()

        def open_memory(_query: MarkedQuery, _stream: str | None = None) -> StreamClient:
            return cast(StreamClient, self._memory)

        monkeypatch.setattr(MarkedQuery, "open", open_memory)
        self.counted = Counted()
        self.told = cast(Told, self.counted)
        self.reading = StreamReading(StreamPlace("shop", "eu-west-1"), "shop", "lines")

    def tell(self, since: int, resolved: int, changes: int) -> None:
        shard = self._memory.open_shard_of(KEY)
        numbers = [self._memory.put(shard) for _ in range(changes)]
        shards = {shard: ShardRange(str(numbers[0]), str(numbers[-1]), changes)} if numbers else {}
        start, end = str(place(since)), str(place(resolved))
        manifest = Manifest(ACTION, "7", "lines", f"by {resolved}", start, end, changes, changes, shards, {})
        self._memory.put(shard, encode(manifest), KEY)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    return Stream(monkeypatch)


def place(lsn: int) -> StreamPosition:
    return StreamPosition(1, lsn)


def test_what_follows_is_told_up_to_the_cut(stream: Stream) -> None:
    stream.tell(100, 100, 0)
    stream.tell(100, 110, 3)
    assert stream.reading.begin("7") == place(100)
    stream.reading.read_what_is_there(stream.told, place(200))
    stream.tell(110, 120, 2)
    assert stream.reading.read_below(stream.told, place(200)) == 119
    assert (stream.counted.changes, stream.reading.gap_before) == (5, None)


def test_behind_a_gap_it_begins_again(stream: Stream) -> None:
    stream.tell(100, 110, 3)
    stream.tell(150, 150, 0)
    stream.tell(150, 160, 2)
    stream.reading.begin("7")
    stream.reading.read_what_is_there(stream.told, place(200))
    assert (stream.counted.changes, stream.reading.gap_before) == (2, place(150))


def test_a_gap_that_shows_later_takes_back_what_was_told(stream: Stream) -> None:
    stream.tell(100, 110, 3)
    stream.reading.begin("7")
    stream.reading.read_what_is_there(stream.told, place(200))
    assert stream.counted.changes == 3
    stream.tell(150, 150, 0)
    assert stream.reading.read_below(stream.told, place(200)) == 149
    assert (stream.counted.changes, stream.reading.gap_before) == (0, place(150))


def test_only_what_is_behind_the_last_gap_counts(stream: Stream) -> None:
    for since, resolved, changes in ((100, 110, 3), (150, 160, 2), (160, 170, 2), (300, 310, 1)):
        stream.tell(since, resolved, changes)
    stream.reading.begin("7")
    stream.reading.read_until(stream.told, place(305), 0.0)
    assert stream.reading.gap_before == place(300)
    assert stream.counted.changes == 1
