from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.kinesis.read.look import Reached, Task
from penstock.kinesis.read.reach import UNLIMITED, Limit, reach
from penstock.kinesis.read.shard_ranges import read_range
from penstock.kinesis.read.stream_offset import ReadRange, ShardPosition
from tests.stream_in_memory import StreamInMemory


def reached(
    stream: StreamInMemory, limit: Limit = UNLIMITED, after: int | None = None, *, to_tip: bool = False
) -> Reached:
    task = Task(stream.shards()[0], ShardPosition(after), needs_proof=True)
    return reach(stream, task, limit, to_tip=to_tip)


def filled(records: int, every_s: float) -> tuple[StreamInMemory, list[int]]:
    """A stream with one shard, into which a record came at each of some moments."""
    stream = StreamInMemory()
    numbers = []
    for _ in range(records):
        stream.now += timedelta(seconds=every_s)
        numbers.append(stream.put(stream.open_shards()[0]))
    return stream, numbers


def test_a_long_shard_is_not_read_to_know_where_it_ends() -> None:
    stream, numbers = filled(20_000, 1)

    found = reached(stream)

    assert found.first == numbers[0]
    assert found.last is not None
    assert found.last >= numbers[-3]
    assert sum(records for _, _, records in stream.calls) < 300
    assert reached(stream, to_tip=True).last == numbers[-1]


def test_an_old_backlog_is_found_by_halves() -> None:
    stream, numbers = filled(1_000, 1)
    stream.now += timedelta(hours=5)
    stream.tip_is_now = True

    ends = [reached(stream).last]
    while ends[-1] != numbers[-1]:
        ends.append(reached(stream, after=ends[-1]).last)

    assert len(ends) <= 4


@pytest.mark.parametrize(
    ("limit", "records"),
    [
        (Limit(records=7), 7),
        (Limit(size_bytes=9), 9),
        (Limit(seconds=10), 11),
        (Limit(records=7, seconds=3), 4),
        (Limit(seconds=400), 401),
    ],
)
def test_a_limit_is_kept(limit: Limit, records: int) -> None:
    stream, numbers = filled(1_000, 1)
    found = reached(stream, limit)
    assert (found.first, found.last, found.is_tip) == (numbers[0], numbers[records - 1], False)


def test_a_record_larger_than_the_limit_is_taken_alone() -> None:
    stream = StreamInMemory()
    numbers = [stream.put(stream.open_shards()[0], b"x" * 50) for _ in range(3)]
    found = reached(stream, Limit(size_bytes=10))
    assert (found.first, found.last) == (numbers[0], numbers[0])


def test_the_last_record_that_was_read_is_the_proof_that_nothing_expired() -> None:
    stream, numbers = filled(5, 3600)
    assert reached(stream, after=numbers[0]).is_proven
    stream.pass_time(timedelta(hours=21))
    found = reached(stream, after=numbers[0])
    assert (found.is_proven, found.first) == (False, numbers[2])


def test_a_range_that_has_expired_is_told_and_what_is_left_is_read() -> None:
    stream, numbers = filled(4, 3600)
    part = ReadRange(stream.open_shards()[0], numbers[0], numbers[2])
    losses: list[str] = []

    def read() -> list[int]:
        return [record.sequence for page in read_range(stream, part, losses.append) for record in page]

    assert (read(), losses) == (numbers[:3], [])
    stream.pass_time(timedelta(hours=22))
    assert read() == numbers[2:3]
    assert f"of the records {numbers[0]} to {numbers[2]} some expired unread" in losses[0]
    stream.pass_time(timedelta(hours=3))
    assert read() == []
    assert losses[1].endswith("nothing is left")
