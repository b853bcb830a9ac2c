"""How old the manifests are that a reader needs: found without reading all of them."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.manifest_ages import first_needed, newest
from penstock.kinesis.read.manifest_log import ManifestLog
from penstock.model.stream_position import StreamPosition
from tests.stream_in_memory import StreamInMemory

SLOT = "s"
STEP = timedelta(minutes=1)


def position(lsn: int) -> str:
    return str(StreamPosition(1, lsn))


def say(stream: StreamInMemory, since: int, resolved: int) -> None:
    manifest = Manifest(ACTION, "7", SLOT, "by", position(since), position(resolved), 0, 0, {}, {})
    stream.put(stream.open_shard_of(partition_key(SLOT)), encode(manifest), partition_key(SLOT))


def log_of(stream: StreamInMemory) -> ManifestLog:
    return ManifestLog(cast(StreamClient, stream), SLOT)


def told_for(minutes: int) -> StreamInMemory:
    """A manifest a minute, each of 16 bytes; the last one came now."""
    stream = StreamInMemory(2)
    for minute in range(minutes):
        stream.pass_time(STEP)
        say(stream, 16 * minute, 16 * (minute + 1))
        stream.put(stream.open_shard_of("another key"), b"a change", "another key")
    return stream


@pytest.mark.parametrize("behind", [1, 2, 20, 100, 400, 900, 1_380])
def test_the_first_that_is_needed_is_found_about(behind: int) -> None:
    stream = told_for(1_400)
    needed = StreamPosition(1, 16 * (1_400 - behind))

    found = first_needed(log_of(stream), needed)

    assert found is not None
    assert found.begins <= needed
    assert behind * STEP <= found.age + STEP
    looked_back = next(back for back in (2, 30, 360, 1_440) if behind <= back)
    assert found.age <= behind * STEP + max(timedelta(minutes=3), looked_back * STEP / 8)


def test_only_a_few_manifests_are_read_for_it() -> None:
    stream = told_for(1_400)
    first_needed(log_of(stream), StreamPosition(1, 16 * 300))
    assert len(stream.calls) <= 9


def test_one_that_doesnt_reach_down_is_the_first_that_is_left() -> None:
    stream = told_for(1_500)

    found = first_needed(log_of(stream), StreamPosition(1, 16))

    assert found is not None
    assert found.begins > StreamPosition(1, 16)
    assert found.age > timedelta(hours=23)


@pytest.mark.parametrize("silent", [timedelta(), timedelta(minutes=1), timedelta(hours=10)])
@pytest.mark.parametrize("beyond", [0, 8])
def test_a_reader_that_has_everything_needs_nothing(silent: timedelta, beyond: int) -> None:
    stream = told_for(5)
    stream.pass_time(silent)

    found = first_needed(log_of(stream), StreamPosition(1, 16 * 5 + beyond))

    assert found is not None
    assert found.begins <= StreamPosition(1, 16 * 5)
    assert found.age == timedelta()


def test_in_a_silent_stream_what_is_not_held_is_needed() -> None:
    stream = told_for(5)
    stream.pass_time(timedelta(hours=10))

    found = first_needed(log_of(stream), StreamPosition(1, 16 * 4))

    assert found is not None
    assert timedelta(hours=10) <= found.age <= timedelta(hours=10, minutes=5)
    assert newest(log_of(stream)) is None


def test_a_stream_without_manifests_has_none() -> None:
    stream = StreamInMemory()
    stream.put(stream.open_shards()[0])
    assert first_needed(log_of(stream), StreamPosition(1, 16)) is None
    assert newest(log_of(stream)) is None


@pytest.mark.parametrize("silent", [timedelta(), timedelta(minutes=1), timedelta(minutes=4)])
def test_the_newest_is_the_one_that_reaches_furthest(silent: timedelta) -> None:
    stream = told_for(10)
    # That of a leader that slept.
    say(stream, 0, 32)
    came = stream.now
    stream.pass_time(silent)

    found = newest(log_of(stream), timedelta(minutes=5))

    assert found is not None
    assert (found.manifest.resolved, found.at) == (position(160), came)


def test_the_newest_of_a_busy_stream_costs_a_few_seconds_of_it() -> None:
    stream = StreamInMemory()
    for second in range(300):
        stream.pass_time(timedelta(seconds=1))
        say(stream, second, second + 1)

    assert newest(log_of(stream)) is not None
    assert sum(count for _, _, count in stream.calls) <= 20
