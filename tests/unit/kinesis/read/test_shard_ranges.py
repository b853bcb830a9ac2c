"""A range is read up to its last record, or somebody hears of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock.kinesis.read.client import Page, ReadRecord, Start
from penstock.kinesis.read.shard_ranges import read_range
from penstock.kinesis.read.shards import ShardInfo
from penstock.kinesis.read.stream_offset import ReadRange
from tests.stream_in_memory import BEGAN, StreamInMemory


class Answers:
    """Pages that were written down; behind them nothing comes any more."""

    def __init__(self, *pages: Sequence[int], ends: bool = False) -> None:
        self._pages = pages
        self._ends = ends

    def shards(self) -> list[ShardInfo]:
        raise AssertionError("nobody lists shards here")

    def pages(self, shard_id: str, start: Start, *, most: int = 10_000) -> Iterator[Page]:
        for number, page in enumerate(self._pages, start=1):
            records = [ReadRecord(each, "key", b"x", BEGAN) for each in page]
            yield Page(records, 0, is_last=self._ends and number == len(self._pages))
        while not self._ends:
            yield Page([], 0, is_last=False)


def read(answers: Answers, last: int | None = 30) -> tuple[list[int], list[str]]:
    losses: list[str] = []
    pages = read_range(answers, ReadRange("s", 10, last), losses.append, now=lambda: BEGAN)
    return [record.sequence for page in pages for record in page], losses


def test_an_empty_page_is_no_end() -> None:
    assert read(Answers([10], [], [20, 30])) == ([10, 20, 30], [])
    assert read(Answers([], [10], [], [], [20, 30, 40])) == ([10, 20, 30], [])


@pytest.mark.parametrize(
    ("answers", "found", "loss"),
    [
        (Answers([10], [20]), [10, 20], "nothing comes behind 20"),
        (Answers([10], [20], ends=True), [10, 20], "nothing comes behind 20"),
        (Answers(), [], "nothing is left"),
        (Answers([], ends=True), [], "nothing is left"),
        (Answers([20, 30]), [20, 30], "the oldest that is left is 20"),
        (Answers([40]), [], "the oldest that is left is 40"),
    ],
)
def test_what_is_missing_at_the_end_is_told(answers: Answers, found: list[int], loss: str) -> None:
    assert read(answers) == (found, [f"shard s: of the records 10 to 30 some expired unread; {loss}"])


def test_a_closed_shard_is_read_to_its_end() -> None:
    assert read(Answers([10], *[[]] * 50, [20], ends=True), None) == ([10, 20], [])


class SlowlyRead(StreamInMemory):
    """Pages of two records, and some time between them."""

    between = timedelta()

    def pages(self, *args: Any, **options: Any) -> Iterator[Page]:
        for page in super().pages(*args, **{**options, "most": 2}):
            yield page
            self.pass_time(self.between)


@pytest.mark.parametrize(
    ("between", "found", "has_loss"),
    [(timedelta(minutes=1), 6, False), (timedelta(hours=11), 6, False), (timedelta(hours=25), 2, True)],
)
def test_retention_that_overtakes_a_slow_task_is_told(between: timedelta, found: int, has_loss: bool) -> None:
    stream = SlowlyRead()
    (shard,) = stream.open_shards()
    numbers = [stream.put(shard) for _ in range(6)]
    stream.between = between
    losses: list[str] = []
    part = ReadRange(shard, numbers[0], numbers[-1])
    pages = read_range(stream, part, losses.append, now=lambda: stream.now)
    assert sum(len(page) for page in pages) == found
    assert bool(losses) == has_loss


def test_a_hole_in_the_middle_is_told() -> None:
    """The horizon passes the second page of a range while its first one is worked on; the third is there."""
    stream = SlowlyRead()
    (shard,) = stream.open_shards()
    numbers = []
    for _ in range(6):
        numbers.append(stream.put(shard))
        stream.pass_time(timedelta(minutes=10))
    stream.pass_time(timedelta(hours=22, minutes=50))
    losses: list[str] = []
    pages = read_range(
        stream, ReadRange(shard, numbers[0], numbers[-1]), losses.append, now=lambda: stream.now
    )
    first = next(pages)
    stream.pass_time(timedelta(minutes=45))
    rest = [record.sequence for page in pages for record in page]
    assert ([record.sequence for record in first], rest) == (numbers[:2], numbers[4:])
    assert losses == [
        f"shard {shard}: of the records {numbers[0]} to {numbers[-1]} some expired unread;"
        " the first was there when they were read, and was gone at the end"
    ]
