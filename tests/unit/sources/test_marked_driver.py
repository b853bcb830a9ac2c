"""The driver's side of a read of a marked stream, over a stream in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from time import process_time
from typing import cast

import pytest

from penstock.kinesis.marked.manifest import ACTION, Manifest, ShardRange, encode, partition_key
from penstock.kinesis.read import joining
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.manifest_log import ManifestLog, Place
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


class FakeLog:
    """Manifests of so many changes, one after the other; the records of the first few are gone."""

    def __init__(self, counts: Sequence[int], gone: int) -> None:
        self.counts = counts
        self.gone = gone

    def read(self, after: Place | None) -> Iterator[tuple[Place, Manifest]]:
        assert after is None
        for number, count in enumerate(self.counts):
            shards = {"s": ShardRange(str(number), str(number), count)} if count else {}
            yield (
                Place("marks", number),
                Manifest(ACTION, "7", "etl", "by", at(number), at(number + 1), count, count, shards, {}),
            )

    def has(self, manifest: Manifest) -> bool:
        return manifest.since_position.commit_lsn >= self.gone


def earliest(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int | None]:
    """Where a reader begins, and the place behind which it reads manifests."""
    driver = driver_of(StreamInMemory())
    monkeypatch.setattr(driver, "_log", cast(ManifestLog, log))
    monkeypatch.setattr(driver, "_is_there", log.has)
    offset = driver.begin()
    assert offset is not None
    begins = StreamPosition.parse(offset.resolved).commit_lsn
    return begins, None if offset.place is None else offset.place.sequence


@pytest.mark.parametrize(
    ("counts", "gone", "begins"),
    [
        ([0, 0, 0, 1], 0, 0),
        ([0, 0], 0, 0),
        ([1, 0, 0, 0, 1], 1, 1),
        ([1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1], 3, 3),
        ([1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1], 6, 6),
        ([1] * 100, 77, 77),
        ([1, 0, 0] * 100, 77, 76),
    ],
)
def test_earliest_is_behind_the_last_whose_records_are_gone(
    counts: list[int], gone: int, begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = None if begins == 0 else begins - 1
    assert earliest(FakeLog(counts, gone), monkeypatch) == (begins, behind)


def test_earliest_of_a_stream_at_rest_takes_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    began = process_time()
    assert earliest(FakeLog([0] * 200_000 + [1], 0), monkeypatch) == (0, None)
    assert process_time() - began < 5, "not the square of the number of manifests"
