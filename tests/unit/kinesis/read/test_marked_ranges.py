"""Ranges of a shard: what is missing there is said, and never waited for without end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

import pytest

from penstock.kinesis.read.client import Page, ReadRecord, Start, StreamClient
from penstock.kinesis.read.errors import RecordsExpired, StreamReadError
from penstock.kinesis.read.marked_ranges import ShardSpan, read_span

SPAN = ShardSpan("s", 10, 30)


class Shard:
    """Pages as they are given; then empty ones, at the end of an open shard or of a closed one."""

    stream = "memory"

    def __init__(self, *pages: list[int], is_closed: bool = False) -> None:
        self._pages = pages
        self._is_closed = is_closed

    def pages(self, _shard: str, start: Start) -> Iterator[Page]:
        assert start == Start.at(10)
        for numbers in self._pages:
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
