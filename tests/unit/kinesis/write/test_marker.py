"""Marker with a sink in memory: what Postgres may be told, and when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from penstock.errors import LineStale, SinkOutage
from penstock.kinesis.aws.outcome import Failed, MarkResult, Placed, Refused, Taken, Unsent
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.mark_pace import MUCH_WAL_BYTES, MarkPace
from penstock.kinesis.write.marker import Marker
from penstock.kinesis.write.marks import Marks, Signature
from penstock.kinesis.write.sending import Sending
from penstock.model.stream_position import History
from penstock.postgres.leader.freshness import Freshness
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics
from tests.kinesis_answers import entries

THROTTLED = Failed("ProvisionedThroughputExceededException", "slower", stream_fault=False)
DENIED = Failed("AccessDeniedException", "no right", stream_fault=True)
INVALID = Refused("ValidationException", "no")


class Sink:
    """Takes manifests in memory; `answers` decide what becomes of the next ones."""

    def __init__(self, *answers: MarkResult | Callable[[], MarkResult]) -> None:
        self._answers = list(answers)
        self.sent: list[tuple[dict[str, Any], str, str | None]] = []

    def put_mark(self, data: bytes, key: str, after: str | None, may_send: Callable[[], bool]) -> MarkResult:
        if not may_send():
            return Unsent()
        self.sent.append((json.loads(data), key, after))
        answer = self._answers.pop(0) if self._answers else Placed(f"4{len(self.sent)}")
        return answer() if callable(answer) else answer

    def spans(self) -> list[tuple[int, int, int]]:
        """Of each manifest: since, resolved, changes."""
        return [
            (int(said["since"][9:25], 16), int(said["resolved"][9:25], 16), said["changes"])
            for said, *_ in self.sent
        ]


class Tracker:
    frontier_lsn = 100


class Made(NamedTuple):
    marker: Marker
    sink: Sink
    tracker: Tracker
    health: Health
    moved: list[int]

    def accept(self, commit_lsn: int, frontier_lsn: int) -> None:
        self.tracker.frontier_lsn = frontier_lsn
        self.marker.accepted([ChangeEvent(1, b"", "k", 9, commit_lsn, 0, 0.0)], Taken.of(entries([None])))

    async def until(self, done: Callable[[], bool]) -> None:
        running = asyncio.create_task(self.marker.run())
        try:
            async with asyncio.timeout(10):
                while not done() and not running.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await self.marker.close()


def made(sink: Sink, *, vouched_s_ago: float = 0.0, outage_limit_s: float = 5.0) -> Made:
    tracker, health, moved = Tracker(), Health(), list[int]()
    marker = Marker(
        marks=Marks(100),
        signature=Signature("7", "slot", "0123456789ab", History(1, {})),
        tracker=tracker,
        sink=sink,
        sending=Sending(
            Freshness(limit_s=5.0, now=time.clock_gettime(time.CLOCK_BOOTTIME) - vouched_s_ago),
            health,
            CaptureMetrics(),
            backoff=lambda attempt: 0.001,
            outage_limit_s=outage_limit_s,
        ),
        pace=MarkPace(interval_s=0.001, now=time.monotonic()),
    )
    marker.on_moved(lambda: moved.append(marker.frontier_lsn))
    return Made(marker, sink, tracker, health, moved)


async def test_the_frontier_moves_with_accepted_manifests_only() -> None:
    some = made(Sink(Placed("40"), THROTTLED, THROTTLED))
    some.accept(100, 110)
    assert (some.marker.frontier_lsn, some.marker.is_behind) == (100, True)
    seen = []

    def look() -> bool:
        seen.append((len(some.sink.sent), some.marker.frontier_lsn))
        if some.marker.frontier_lsn == 110 and some.tracker.frontier_lsn == 110:
            some.accept(110, 120)
        return some.marker.frontier_lsn == 120

    await some.until(look)

    assert some.sink.spans() == [(100, 110, 1), (110, 120, 1), (110, 120, 1), (110, 120, 1)]
    assert [after for *_, after in some.sink.sent] == [None, "40", "40", "40"]
    assert {key for _, key, _ in some.sink.sent} == {"penstock/slot"}
    assert all(frontier <= 110 for sent, frontier in seen if sent < 4)
    assert some.moved == [110, 120]
    assert not some.marker.is_behind


async def test_a_failed_one_is_replaced_by_one_that_says_more() -> None:
    def more() -> MarkResult:
        some.accept(110, 120)
        return THROTTLED

    some = made(Sink(more))
    some.accept(100, 110)

    await some.until(lambda: some.marker.frontier_lsn == 120)

    assert some.sink.spans() == [(100, 110, 1), (100, 120, 2)]


async def test_it_has_begun_when_the_first_one_is_accepted() -> None:
    some = made(Sink(DENIED, THROTTLED))
    begun = asyncio.create_task(some.marker.begun())
    seen = []

    def look() -> bool:
        seen.append((len(some.sink.sent), begun.done()))
        return begun.done()

    await some.until(look)

    assert len(some.sink.sent) == 3
    assert not any(done for sent, done in seen if sent < 3)
    await asyncio.wait_for(some.marker.begun(), 1)


async def test_accepted_records_that_wait_for_a_manifest_are_not_delivered() -> None:
    some = made(Sink())
    assert some.marker.delivered_lsn() == 100
    some.tracker.frontier_lsn = 110
    assert some.marker.delivered_lsn() == 110, "no record is there"
    some.accept(110, 120)
    assert some.marker.delivered_lsn() == 100
    await some.marker.catch_up()
    assert some.marker.delivered_lsn() == 120
    some.accept(120, 120)
    assert some.marker.delivered_lsn() == 120, "its commit is still to come"
    some.tracker.frontier_lsn = 130
    assert some.marker.delivered_lsn() == 120
    await some.marker.close()


async def test_at_rest_the_first_one_says_where_it_begins_and_then_it_is_silent() -> None:
    some = made(Sink())
    await some.until(lambda: bool(some.sink.sent))
    assert some.sink.spans() == [(100, 100, 0)]


@pytest.mark.parametrize("refusal", [DENIED, INVALID])
async def test_refusals_make_it_unready_until_one_is_accepted(refusal: MarkResult) -> None:
    some = made(Sink(refusal, refusal))
    some.accept(100, 110)
    reasons = []

    def look() -> bool:
        reasons.append(tuple(some.health.readiness(0.0).reasons))
        return some.marker.frontier_lsn == 110

    await some.until(look)

    assert any("manifests are refused" in " ".join(each) for each in reasons)
    assert not any("manifests" in each for each in some.health.readiness(0.0).reasons)


async def test_one_that_is_refused_is_not_sent_with_the_same_number_again() -> None:
    """The stream may have been made again: then it doesn't know that number, and never will."""
    some = made(Sink(Placed("40"), INVALID, THROTTLED, Placed("50")))
    some.accept(100, 110)

    def look() -> bool:
        if some.marker.frontier_lsn == some.tracker.frontier_lsn < 130:
            some.accept(some.tracker.frontier_lsn, some.tracker.frontier_lsn + 10)
        return some.marker.frontier_lsn == 130

    await some.until(look)

    assert [after for *_, after in some.sink.sent] == [None, "40", None, None, "50"]


async def test_none_accepted_for_long_is_an_outage() -> None:
    some = made(Sink(*[THROTTLED] * 10_000), outage_limit_s=0.1)
    some.accept(100, 110)
    with pytest.raises(SinkOutage, match="accepted no manifest"):
        await some.until(lambda: False)
    assert some.moved == []


async def test_nothing_is_sent_on_a_line_that_nobody_vouches_for() -> None:
    some = made(Sink(), vouched_s_ago=6.0)
    some.accept(100, 110)
    with pytest.raises(LineStale):
        await some.until(lambda: False)
    assert some.sink.sent == []


async def test_catching_up_says_all_of_the_frontier_whatever_the_pace() -> None:
    some = made(Sink(THROTTLED))
    some.accept(100, 110)
    some.tracker.frontier_lsn = 130
    await some.marker.catch_up()
    assert some.sink.spans() == [(100, 130, 1), (100, 130, 1)]
    assert some.marker.frontier_lsn == 130
    await some.marker.close()


async def test_closing_waits_for_one_that_has_left() -> None:
    def slow() -> MarkResult:
        time.sleep(0.2)
        return Placed("41")

    some = made(Sink(slow))
    some.accept(100, 110)
    running = asyncio.create_task(some.marker.run())
    async with asyncio.timeout(10):
        while not some.sink.sent:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    began_at = time.monotonic()
    await some.marker.close()
    assert time.monotonic() - began_at > 0.1
    assert some.moved == [], "a leadership that is over confirms nothing"


async def test_one_that_is_given_up_in_mid_send_is_said_again() -> None:
    """A drain whose time is over cancels it; whether it was accepted nobody knows."""

    def slow() -> MarkResult:
        time.sleep(0.2)
        return Placed("41")

    some = made(Sink(slow))
    some.accept(100, 110)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await some.marker.catch_up()
    assert (some.marker.frontier_lsn, some.marker.is_behind) == (100, True)
    await some.marker.catch_up()
    assert some.sink.spans() == [(100, 110, 1), (100, 110, 1)]
    assert (some.marker.frontier_lsn, some.marker.marked_records) == (110, 1)
    await some.marker.close()


async def test_one_that_hangs_is_an_outage_and_leaves_nothing_behind() -> None:
    """A drain may still try to say what was accepted."""
    answers = threading.Event()

    def hangs() -> MarkResult:
        answers.wait(10)
        return Placed("41")

    some = made(Sink(hangs), outage_limit_s=0.1)
    some.accept(100, 110)
    with pytest.raises(SinkOutage, match="under way"):
        await some.marker.catch_up()
    assert (some.marker.frontier_lsn, some.marker.is_behind) == (100, True)
    answers.set()
    await some.marker.catch_up()
    assert some.marker.frontier_lsn == 110
    await some.marker.close()


async def test_much_wal_without_a_record_is_told_of_before_the_rest_is_over() -> None:
    some = made(Sink())
    running = asyncio.create_task(some.until(lambda: some.marker.frontier_lsn > 100))
    async with asyncio.timeout(10):
        while not some.sink.sent:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    some.tracker.frontier_lsn = 100 + MUCH_WAL_BYTES
    began_at = time.monotonic()
    await running
    assert time.monotonic() - began_at < 5
    assert some.sink.spans() == [(100, 100, 0), (100, 100 + MUCH_WAL_BYTES, 0)]


async def test_a_commit_that_comes_after_its_records_is_told_of_soon() -> None:
    """The frontier moves without another record, and no rest of ten seconds lies between."""
    some = made(Sink())
    some.accept(100, 100)
    assert not some.marker.is_behind
    running = asyncio.create_task(some.until(lambda: some.marker.frontier_lsn == 110))
    async with asyncio.timeout(10):
        while not some.sink.sent:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    some.tracker.frontier_lsn = 110
    began_at = time.monotonic()
    await running
    assert time.monotonic() - began_at < 5
    assert some.sink.spans() == [(100, 100, 0), (100, 110, 1)]
