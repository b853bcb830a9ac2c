"""A marked stream from a position on, also if a leader that slept has sent its last manifest late."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.model.stream_position import StreamPosition
from tests.stream_in_memory import StreamInMemory

KEY = partition_key("etl")


class Address(StreamAddress):
    """Of a stream in memory."""

    memory: StreamInMemory

    def open(self, stream: str | None = None) -> StreamClient:
        return cast(StreamClient, self.memory)


def say(stream: StreamInMemory, since: int, resolved: int) -> None:
    low, high = (str(StreamPosition(1, lsn)) for lsn in (since, resolved))
    manifest = Manifest(ACTION, "7", "etl", "by", low, high, 0, 0, {}, {})
    stream.put(stream.open_shard_of(KEY), encode(manifest), KEY)


def read(stream: StreamInMemory, at: int) -> list[tuple[int, int]]:
    address = Address("shop", "shop", "etl", "eu-west-1")
    address.memory = stream
    marked = MarkedStream(address)
    assert marked.begin(StreamPosition(1, at)) == str(StreamPosition(1, at))
    found = [each.manifest for _ in range(3) for each in marked.more()]
    return [(each.since_position.commit_lsn, each.resolved_position.commit_lsn) for each in found]


def test_a_late_manifest_hides_nothing_of_what_is_before_it() -> None:
    stream = StreamInMemory()
    say(stream, 10, 20)
    say(stream, 20, 30)
    stream.pass_time(timedelta(minutes=5))
    say(stream, 0, 15)
    say(stream, 30, 40)
    assert read(stream, 20) == [(10, 20), (20, 30), (0, 15), (30, 40)]


@pytest.mark.parametrize("at", [30, 35, 40])
def test_what_is_further_back_is_not_read_if_nothing_is_missing(at: int) -> None:
    stream = StreamInMemory()
    say(stream, 10, 30)
    stream.pass_time(timedelta(minutes=5))
    say(stream, 30, 40)
    say(stream, 40, 40)
    assert read(stream, at) == [(30, 40), (40, 40)]


def test_a_gap_remains_one() -> None:
    stream = StreamInMemory()
    say(stream, 0, 10)
    stream.pass_time(timedelta(minutes=5))
    say(stream, 0, 15)
    say(stream, 30, 40)
    assert read(stream, 20) == [(0, 10), (0, 15), (30, 40)]
