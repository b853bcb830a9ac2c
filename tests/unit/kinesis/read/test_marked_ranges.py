"""Ranges of a shard: what is missing there is said, and never waited for without end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

import pytest

from penstock.kinesis.read.client import MOST_RECORDS, Page, ReadRecord, Start, StreamClient
from penstock.kinesis.read.errors import RecordsExpired, StreamReadError
from penstock.kinesis.read.marked_ranges import ShardSpan, has_begin, read_span
from tests.stream_in_memory import StreamInMemory

SPAN = ShardSpan("s", 10, 30)


class Shard:
    """Pages as they are given; then empty ones, at the end of an open shard or of a closed one."""

    stream = "memory"

    def __init__(self, *pages: list[int], is_closed: bool = False) -> None:
        self._pages = list(pages)
        self._is_closed = is_closed
        self._start = Start.at(10)

    def pages(self, _shard: str, start: Start, *, most: int = MOST_RECORDS) -> Iterator[Page]:
        assert start == self._start
        while self._pages:
            numbers = self._pages.pop(0)
            if numbers:
                self._start = Start.after(numbers[-1])
            yield Page([ReadRecord(each, "k", b"", datetime.now(UTC)) for each in numbers], 5, False)
        while True:
            yield Page([], 0, self._is_closed)
            if self._is_closed:
                return

    def read(self) -> list[int]:
        return [record.sequence for record in read_span(cast(StreamClient, self), SPAN)]


def test_it_ends_with_its_last_record_or_one_behind_it() -> None:
    assert Shard([10, 20], [], [30, 40]).read() == [10, 20, 30]
    assert Shard([10, 20], [31]).read() == [10, 20]


@pytest.mark.parametrize("shard", [Shard([20, 30]), Shard(), Shard([], [], is_closed=True)])
def test_a_first_record_that_is_gone_has_expired(shard: Shard) -> None:
    with pytest.raises(RecordsExpired, match="the records from 10 on are gone"):
        shard.read()


@pytest.mark.parametrize("shard", [Shard([10, 20]), Shard([10, 20], is_closed=True)])
def test_a_last_one_that_never_comes_is_another_stream(shard: Shard) -> None:
    with pytest.raises(StreamReadError, match="ends before 30"):
        shard.read()


def written(count: int) -> tuple[StreamInMemory, ShardSpan]:
    """A shard with so many records, and a range that begins with the first and ends with the last."""
    stream = StreamInMemory()
    (shard,) = stream.held
    numbers = [stream.put(shard) for _ in range(count)]
    return stream, ShardSpan(shard, numbers[0], numbers[-1])


def pages_read(stream: StreamInMemory, span: ShardSpan) -> list[int]:
    """How many records each page had."""
    read = [record.sequence for record in read_span(cast(StreamClient, stream), span)]
    assert read == [each.sequence for each in stream.held[span.shard].records if each.sequence <= span.last]
    return [count for _, _, count in stream.calls]


def test_little_is_read_behind_a_range() -> None:
    stream, span = written(100)
    for _ in range(30_000):
        stream.put(span.shard)
    assert pages_read(stream, span._replace(changes=100)) == [122]


def test_a_large_range_comes_in_pages_of_one_size() -> None:
    stream, span = written(25_000)
    assert pages_read(stream, span._replace(changes=25_000)) == [8_507, 8_507, 7_986]


@pytest.mark.parametrize("counted", [0, 1])
def test_a_range_full_of_others_records_comes_in_full_pages(counted: int) -> None:
    stream, span = written(25_000)
    assert pages_read(stream, span._replace(changes=counted)) == [
        20 + counted,
        10_000,
        10_000,
        4_980 - counted,
    ]


def test_to_see_whether_a_range_begins_takes_a_small_page() -> None:
    stream, span = written(25_000)
    assert has_begin(cast(StreamClient, stream), span)
    assert [count for _, _, count in stream.calls] == [21]
