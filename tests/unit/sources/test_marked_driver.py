"""The driver's side of a read of a marked stream, over a stream in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, ShardRange, encode, partition_key
from penstock.kinesis.read import joining
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.marked_plan import ReadLimits
from penstock.model.stream_position import StreamPosition
from penstock.sources.marked_driver import MarkedDriver
from penstock.sources.marked_query import MarkedQuery
from tests.stream_in_memory import StreamInMemory

OPTIONS = {"kinesis.streamName": "shop", "kinesis.region": "eu-west-1", "slot": "etl"}
KEY = partition_key("etl")


def at(lsn: int) -> str:
    return str(StreamPosition(1, lsn))


class Query(MarkedQuery):
    """Of a stream in memory."""

    memory: StreamInMemory

    def open(self, stream: str | None = None) -> StreamClient:
        return cast(StreamClient, self.memory)


def driver_of(stream: StreamInMemory) -> MarkedDriver:
    query = Query(*MarkedQuery.parse(OPTIONS))
    query.memory = stream
    return MarkedDriver(query)


def written(*counts: int) -> StreamInMemory:
    """A manifest of so many changes each second, of one leadership."""
    stream = StreamInMemory()
    shard = stream.open_shard_of(KEY)
    for number, count in enumerate(counts):
        stream.pass_time(timedelta(seconds=1))
        numbers = [stream.put(shard) for _ in range(count)]
        shards = {shard: ShardRange(str(numbers[0]), str(numbers[-1]), count)} if numbers else {}
        manifest = Manifest(ACTION, "7", "etl", "by", at(number), at(number + 1), count, count, shards, {})
        stream.put(shard, encode(manifest), KEY)
    return stream


def test_a_full_batch_is_told_how_far_behind_it_is() -> None:
    stream = written(*[5] * 20)
    driver = driver_of(stream)
    offset = driver.begin()
    assert offset is not None

    offset = driver.plan.advance(offset, ReadLimits(changes=10), 100.0)

    assert offset.resolved == at(2)
    tip = driver.tip(100.0)
    assert tip is not None
    assert (tip.manifest.resolved, tip.at) == (at(20), stream.now)


def test_the_end_is_not_looked_for_with_every_batch() -> None:
    driver = driver_of(stream := written(*[5] * 20))
    offset = driver.begin()
    assert offset is not None
    offset = driver.plan.advance(offset, ReadLimits(changes=10), 100.0)
    driver.tip(100.0)
    asked = len(stream.calls)

    driver.tip(109.0)
    assert len(stream.calls) == asked
    driver.tip(110.0)
    assert len(stream.calls) > asked

    driver.plan.advance(offset, ReadLimits(), 120.0)
    asked = len(stream.calls)
    driver.tip(130.0)
    assert len(stream.calls) == asked, "all of them were read"


def test_manifests_of_a_leadership_take_the_room_of_one() -> None:
    tasks = driver_of(written(5, 0, 7, 0, 0, 3)).everything(0.0)

    (task,) = tasks
    assert [portion.changes for portion in task.portions] == [15]


def test_but_not_more_than_a_task_can_have_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_MOST_CHANGES", 10)
    (task,) = driver_of(written(5, 0, 5, 4, 20, 1)).everything(0.0)
    assert [portion.changes for portion in task.portions] == [10, 4, 20, 1]
