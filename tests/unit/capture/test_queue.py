from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.capture.queue import InflightEventQueue
from penstock.kinesis.write.event import ChangeEvent


def event(size: int, ack_id: int = 1) -> ChangeEvent:
    return ChangeEvent(
        ack_id=ack_id,
        payload=b"",
        partition_key="k",
        record_size_bytes=size,
        commit_lsn=0,
        op_offset=0,
        received_at=0.0,
    )


def events(*sizes: int) -> list[ChangeEvent]:
    return [event(size, ack_id) for ack_id, size in enumerate(sizes, start=1)]


def ids(taken: Sequence[ChangeEvent]) -> list[int]:
    return [one.ack_id for one in taken]


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(("messages", "size"), [(0, 1), (-1, 1), (1, 0), (1, -1)])
def test_both_limits_must_be_positive(messages: int, size: int) -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        InflightEventQueue(max_messages=messages, max_bytes=size)


def test_a_new_queue_is_empty_and_knows_its_limits() -> None:
    queue = InflightEventQueue(max_messages=3, max_bytes=100)

    assert (queue.max_messages, queue.max_bytes, queue.qsize(), queue.bytes_inflight) == (3, 100, 0, 0)


async def test_get_frees_the_slot_and_task_done_the_bytes() -> None:
    queue = InflightEventQueue(max_messages=1, max_bytes=100)
    first, second = events(10, 20)

    await queue.put(first)
    assert (queue.qsize(), queue.bytes_inflight) == (1, 10)
    assert await queue.get() is first
    assert (queue.qsize(), queue.bytes_inflight) == (0, 10)
    await queue.put(second)
    assert (queue.qsize(), queue.bytes_inflight) == (1, 30)
    await queue.task_done(first)
    assert (queue.qsize(), queue.bytes_inflight) == (1, 20)


async def test_two_limits_one_queue() -> None:
    queue = InflightEventQueue(max_messages=3, max_bytes=15)
    first, second, third = events(10, 4, 4)
    await queue.put_many([first, second])

    waiting = asyncio.create_task(queue.put(third))
    await settle()
    assert not waiting.done()
    assert queue.bytes_inflight == 14

    assert await queue.get() is first
    await settle()
    assert not waiting.done(), "a slot is free, the bytes aren't"

    await queue.task_done(first)
    await waiting
    assert (queue.qsize(), queue.bytes_inflight) == (2, 8)


async def test_bytes_given_back_are_no_slot() -> None:
    queue = InflightEventQueue(max_messages=1, max_bytes=100)
    first, second, third = events(10, 10, 10)
    await queue.put(first)
    await queue.get()
    await queue.put(second)
    waiting = asyncio.create_task(queue.put(third))
    await settle()

    await queue.task_done(first)
    await settle()

    assert not waiting.done()
    assert queue.qsize() == 1
    await cancel(waiting)


@pytest.mark.parametrize("batch", [[11], [1, 11], [11, 1]])
async def test_an_event_above_the_budget_is_refused_before_anything_is_reserved(batch: list[int]) -> None:
    queue = InflightEventQueue(max_messages=10, max_bytes=10)

    with pytest.raises(ValueError, match="11 bytes"):
        await queue.put_many(events(*batch))

    assert (queue.qsize(), queue.bytes_inflight) == (0, 0)


async def test_put_refuses_an_event_above_the_budget_even_while_others_wait() -> None:
    queue = InflightEventQueue(max_messages=1, max_bytes=10)
    await queue.put(event(10))
    waiting = asyncio.create_task(queue.put(event(1)))
    await settle()

    with pytest.raises(ValueError, match="11 bytes"):
        await queue.put(event(11))

    await cancel(waiting)


@pytest.mark.parametrize("size", [3, 12])
async def test_an_event_that_was_taken_may_change_its_size(size: int) -> None:
    queue = InflightEventQueue(max_messages=3, max_bytes=10)
    await queue.put(event(8))
    taken = await queue.get()

    queue.resize(taken, size)

    assert (taken.record_size_bytes, queue.bytes_inflight) == (size, size)
    waiting = asyncio.create_task(queue.put(event(6, ack_id=2)))
    await settle()
    assert waiting.done() is (size == 3)
    await queue.task_done(taken)
    await waiting
    assert queue.bytes_inflight == 6


async def test_an_event_of_exactly_the_budget_enters() -> None:
    queue = InflightEventQueue(max_messages=1, max_bytes=10)

    await queue.put(event(10))

    assert queue.bytes_inflight == 10


class TestCancellation:
    async def test_a_put_that_waits_for_a_slot_holds_its_bytes_and_gives_them_back(self) -> None:
        queue = InflightEventQueue(max_messages=1, max_bytes=100)
        first, second = events(10, 20)
        await queue.put(first)
        waiting = asyncio.create_task(queue.put(second))
        await settle()
        assert queue.bytes_inflight == 30

        await cancel(waiting)

        assert (queue.qsize(), queue.bytes_inflight) == (1, 10)

    async def test_a_put_that_waits_for_bytes_holds_none(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=25)
        await queue.put(event(10))
        waiting = asyncio.create_task(queue.put(event(20)))
        await settle()
        assert queue.bytes_inflight == 10

        await cancel(waiting)

        assert (queue.qsize(), queue.bytes_inflight) == (1, 10)

    @pytest.mark.parametrize("freed", ["slot", "bytes"])
    async def test_a_put_cancelled_after_it_was_woken_leaves_no_event(self, freed: str) -> None:
        limit = 1 if freed == "slot" else 10
        queue = InflightEventQueue(max_messages=limit, max_bytes=100 if freed == "slot" else 15)
        first, second = events(10, 10)
        await queue.put(first)
        waiting = asyncio.create_task(queue.put(second))
        await settle()

        queue.get_many_nowait(1)
        queue.tasks_done([first])
        await cancel(waiting)

        assert (queue.qsize(), queue.bytes_inflight) == (0, 0)

    async def test_the_next_in_line_goes_on_when_the_first_is_cancelled(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=20)
        blocker, large, small = events(10, 20, 10)
        await queue.put(blocker)
        first = asyncio.create_task(queue.put(large))
        second = asyncio.create_task(queue.put(small))
        await settle()
        assert not second.done(), "it would fit, and isn't its turn"

        await cancel(first)
        await second

        assert ids(queue.get_many_nowait(10)) == [1, 3]

    async def test_one_in_the_middle_of_the_line_leaves_it(self) -> None:
        queue = InflightEventQueue(max_messages=1, max_bytes=100)
        batch = events(1, 1, 1, 1)
        await queue.put(batch[0])
        line = [asyncio.create_task(queue.put(one)) for one in batch[1:]]
        await settle()

        await cancel(line[1])
        taken = [await queue.get() for _ in range(3)]

        assert ids(taken) == [1, 2, 4]
        await asyncio.gather(line[0], line[2])

    async def test_a_line_that_everybody_left_holds_nobody_up(self) -> None:
        queue = InflightEventQueue(max_messages=2, max_bytes=100)
        await queue.put_many(events(1, 1))
        line = [asyncio.create_task(queue.put(event(1))) for _ in range(3)]
        await settle()
        for waiting in reversed(line):
            await cancel(waiting)
        queue.get_many_nowait(2)
        sizes_seen: list[int] = []
        queue.set_wakeup(lambda: sizes_seen.append(queue.qsize()))

        await queue.put_many(events(1, 1))

        assert sizes_seen == [2], "the batch went in as one, past the line"

    async def test_half_a_batch_stays_in_the_queue(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=10)
        waiting = asyncio.create_task(queue.put_many(events(4, 4, 4, 4)))
        await settle()
        assert (queue.qsize(), queue.bytes_inflight) == (2, 8)

        await cancel(waiting)
        taken = queue.get_many_nowait(10)
        queue.tasks_done(taken)

        assert ids(taken) == [1, 2]
        assert queue.bytes_inflight == 0
        await queue.put_many(events(5, 5))

    async def test_a_cancelled_get_takes_nothing(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        first = asyncio.create_task(queue.get())
        second = asyncio.create_task(queue.get())
        await settle()

        await queue.put(event(1))
        first.cancel()
        await settle()

        assert first.cancelled()
        assert ids([await second]) == [1]


class TestOrder:
    async def test_producers_enter_in_the_order_of_their_calls_and_batches_stay_whole(self) -> None:
        queue = InflightEventQueue(max_messages=1, max_bytes=100)
        batch = events(*[1] * 7)
        line = [
            asyncio.create_task(queue.put_many(batch[:3])),
            asyncio.create_task(queue.put(batch[3])),
            asyncio.create_task(queue.put_many(batch[4:])),
        ]
        await settle()

        taken = [await queue.get() for _ in batch]

        assert ids(taken) == [1, 2, 3, 4, 5, 6, 7]
        await asyncio.gather(*line)

    async def test_a_newcomer_does_not_overtake_a_producer_that_was_just_woken(self) -> None:
        queue = InflightEventQueue(max_messages=1, max_bytes=100)
        first, second, third = events(1, 1, 1)
        await queue.put(first)
        waiting = asyncio.create_task(queue.put(second))
        await settle()

        queue.get_many_nowait(1)
        newcomer = asyncio.create_task(queue.put(third))
        await settle()

        assert waiting.done()
        assert ids(queue.get_many_nowait(1)) == [2]
        await newcomer

    async def test_consumers_are_served_in_the_order_of_their_calls(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        consumers = [asyncio.create_task(queue.get()) for _ in range(3)]
        await settle()

        await queue.put_many(events(1, 1, 1))

        assert ids(await asyncio.gather(*consumers)) == [1, 2, 3]

    async def test_a_late_consumer_does_not_overtake_one_that_was_just_woken(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        early = asyncio.create_task(queue.get())
        await settle()

        await queue.put_many(events(1, 1))
        late = await queue.get()

        assert ids([await early, late]) == [1, 2]

    async def test_a_consumer_waits_on_when_its_event_was_taken_without_waiting(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        first, second = events(1, 1)
        waiting = asyncio.create_task(queue.get())
        await settle()

        await queue.put(first)
        assert ids(queue.get_many_nowait(1)) == [1]
        await settle()
        assert not waiting.done()

        await queue.put(second)
        assert await waiting is second


class TestBatches:
    async def test_put_many_does_not_yield_when_everything_fits(self) -> None:
        queue = InflightEventQueue(max_messages=3, max_bytes=6)
        put = queue.put_many(events(1, 2, 3))

        with pytest.raises(StopIteration):
            put.send(None)

        assert ids(queue.get_many_nowait(10)) == [1, 2, 3]

    async def test_a_batch_larger_than_both_limits_flows_through(self) -> None:
        queue = InflightEventQueue(max_messages=3, max_bytes=20)
        batch = events(*[6] * 20)
        producer = asyncio.create_task(queue.put_many(batch))
        taken: list[ChangeEvent] = []

        while len(taken) < len(batch):
            some = await queue.get_many(2)
            taken += some
            queue.tasks_done(some)

        await producer
        assert taken == batch
        assert (queue.qsize(), queue.bytes_inflight) == (0, 0)

    async def test_an_empty_batch_never_waits(self) -> None:
        queue = InflightEventQueue(max_messages=1, max_bytes=10)
        await queue.put(event(10))
        waiting = asyncio.create_task(queue.put(event(10)))
        await settle()

        await queue.put_many([])
        queue.tasks_done([])

        await cancel(waiting)

    async def test_get_many_waits_for_one_and_takes_what_is_there(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        consumer = asyncio.create_task(queue.get_many(3))
        await settle()
        assert not consumer.done()

        await queue.put_many(events(1, 1, 1, 1, 1))

        assert ids(await consumer) == [1, 2, 3]
        assert ids(await queue.get_many(3)) == [4, 5]

    async def test_get_many_nowait_of_an_empty_queue_or_of_nothing(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        assert queue.get_many_nowait(5) == []

        await queue.put(event(1))

        assert queue.get_many_nowait(0) == []
        assert queue.qsize() == 1

    async def test_get_many_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="max_events"):
            await InflightEventQueue(max_messages=1, max_bytes=1).get_many(0)


class TestDone:
    async def test_one_done_too_many_is_refused_and_gives_nothing_back(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        batch = events(10, 20)
        await queue.put(batch[0])

        with pytest.raises(ValueError, match="too many times"):
            queue.tasks_done(batch)
        assert queue.bytes_inflight == 10
        await queue.task_done(batch[0])
        with pytest.raises(ValueError, match="too many times"):
            await queue.task_done(batch[0])

        assert queue.bytes_inflight == 0

    async def test_bytes_never_go_below_zero(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        await queue.put(event(10))

        await queue.task_done(event(50))

        assert queue.bytes_inflight == 0

    async def test_join_waits_for_what_was_taken_too(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        await queue.join()
        batch = events(1, 1)
        await queue.put_many(batch)
        joining = asyncio.create_task(queue.join())

        queue.get_many_nowait(2)
        queue.tasks_done(batch[:1])
        await settle()
        assert not joining.done()

        queue.tasks_done(batch[1:])
        await joining


class TestWakeup:
    async def test_it_is_called_when_events_have_been_added_and_only_then(self) -> None:
        queue = InflightEventQueue(max_messages=10, max_bytes=100)
        sizes_seen: list[int] = []
        queue.set_wakeup(lambda: sizes_seen.append(queue.qsize()))

        await queue.put_many(events(1, 1, 1))
        assert sizes_seen == [3]
        await queue.put_many([])
        queue.tasks_done(queue.get_many_nowait(3))
        assert sizes_seen == [3]

        await queue.put(event(1))
        assert sizes_seen == [3, 1]
        queue.set_wakeup(None)
        await queue.put(event(1))
        assert sizes_seen == [3, 1]

    async def test_it_is_called_for_what_a_blocked_producer_adds(self) -> None:
        queue = InflightEventQueue(max_messages=2, max_bytes=100)
        sizes_seen: list[int] = []
        queue.set_wakeup(lambda: sizes_seen.append(queue.qsize()))

        producer = asyncio.create_task(queue.put_many(events(1, 1, 1)))
        await settle()
        assert sizes_seen[-1] == 2, "the consumer hears of the first part while the rest waits"
        queue.get_many_nowait(2)
        await producer

        assert sizes_seen[-1] == 1
