"""How far a shape in a stream is: by the manifest that reaches furthest, whoever spoke last."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.lake.errors import StorageRefused
from penstock.lake.stream.shape_marks import last_manifest
from penstock.model.stream_position import StreamPosition
from tests.stream_in_memory import StreamInMemory

KEY = partition_key("orders")


def say(stream: StreamInMemory, resolved: int) -> None:
    low, high = (str(StreamPosition(1, lsn)) for lsn in (0, resolved))
    manifest = Manifest(ACTION, "7", "orders", "by", low, high, 0, 0, {}, {})
    stream.put(stream.open_shard_of(KEY), encode(manifest), KEY)


def last(stream: StreamInMemory, system: str = "7", known: int | None = None) -> int | None:
    found = last_manifest(cast(StreamClient, stream), "orders", system, known)
    return None if found is None else found.resolved_position.commit_lsn


@pytest.mark.parametrize("rested", [timedelta(seconds=70), timedelta(minutes=10)])
@pytest.mark.parametrize("since", [timedelta(), timedelta(seconds=50), timedelta(minutes=15)])
def test_a_leader_that_wakes_late_does_not_set_a_shape_back(rested: timedelta, since: timedelta) -> None:
    stream = StreamInMemory()
    say(stream, 100)
    stream.pass_time(rested)
    say(stream, 40)
    stream.pass_time(since)
    assert last(stream) == 100


@pytest.mark.parametrize(("known", "found"), [(None, 50), (49, 50), (50, 100), (99, 100), (100, 100)])
def test_one_that_speaks_on_and_on_is_seen_through_by_what_is_known(known: int | None, found: int) -> None:
    stream = StreamInMemory()
    say(stream, 100)
    for _ in range(4):
        stream.pass_time(timedelta(minutes=10))
        say(stream, 50)
    assert last(stream, known=known) == found


def test_the_age_of_a_stream_costs_little() -> None:
    stream = StreamInMemory()
    for number in range(300):
        say(stream, number)
        stream.pass_time(timedelta(minutes=10))
    assert last(stream) == 299
    assert sum(count for _, _, count in stream.calls) <= 20


def test_there_may_be_none_or_another_server_s() -> None:
    stream = StreamInMemory()
    assert last(stream) is None
    say(stream, 1)
    with pytest.raises(StorageRefused, match="of the database system 7, and the server is 8"):
        last(stream, "8")
