"""Pages of a shard: one at a time in memory, for as long as somebody wants more."""

from __future__ import annotations

import weakref
from typing import Any, cast

import pytest

from penstock.kinesis.read.client import TRIM_HORIZON, Page, StreamClient
from penstock.kinesis.read.marked_ranges import ShardSpan, read_span
from penstock.kinesis.read.page_body import PAGE, FoundPage, FoundRecord
from tests.stream_in_memory import StreamInMemory


class Records(list[Any]):
    """A list that can be seen to go."""


class FewRecords(StreamInMemory):
    """A stream with pages of two records, and one page in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.held_page = weakref.ref(Records())

    def pages(self, *args: Any, **options: Any) -> Any:
        for page in super().pages(*args, **{**options, "most": 2}):
            assert self.held_page() is None, "the page before is held while the next is asked for"
            records = Records(page.records)
            self.held_page = weakref.ref(records)
            one = Page(cast(Any, records), page.behind_ms, page.is_last)
            del records
            yield one
            del one


def test_a_range_is_read_with_one_page_in_memory() -> None:
    stream = FewRecords()
    (shard,) = stream.held
    numbers = [stream.put(shard) for _ in range(7)]
    found = read_span(cast(StreamClient, stream), ShardSpan(shard, numbers[0], numbers[-1], 7))
    assert sum(1 for _ in found) == 7


def test_a_client_holds_no_page_while_it_asks_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    client = StreamClient(stream="shop", region="eu-west-1", endpoint_url="http://127.0.0.1:9")
    held: list[weakref.ref[Records]] = []

    def call(operation: str, **request: Any) -> Any:
        assert all(each() is None for each in held), "the answer before is held"
        if operation == "get_shard_iterator":
            return {"ShardIterator": "0"}
        records = Records([FoundRecord(request["ShardIterator"], "key", bytes(1 << 20), 0.0)])
        held.append(weakref.ref(records))
        number = int(request["ShardIterator"]) + 1
        return {PAGE: FoundPage(records, None if number == 3 else str(number), 0)}

    monkeypatch.setattr(client, "_call", call)
    assert [len(page.records) for page in client.pages("shard", TRIM_HORIZON)] == [1, 1, 1]
    assert len(held) == 3
    client.close()
