"""InflightEventQueue under random programs of producers, consumers and cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.event import ChangeEvent
from penstock.capture.queue import InflightEventQueue

MAX_MESSAGES = 4
MAX_BYTES = 20

sizes = st.one_of(st.integers(1, 3), st.integers(1, MAX_BYTES))
steps = st.one_of(
    st.tuples(st.just("put"), st.lists(sizes, min_size=1, max_size=1)),
    st.tuples(st.just("put_many"), st.lists(sizes, max_size=6)),
    st.tuples(st.sampled_from(["get", "get_many", "get_nowait", "done"]), st.integers(1, 5)),
    st.tuples(st.sampled_from(["cancel_put", "cancel_get"]), st.integers(0, 5)),
    st.tuples(st.just("turn"), st.integers(1, 3)),
)
Step = tuple[str, list[int] | int]


@dataclass
class Call:
    """One call of a producer, and what became of it."""

    batch: list[ChangeEvent]
    returned: bool = False


@dataclass
class World:
    """A queue, everybody who uses it, and what was seen."""

    queue: InflightEventQueue
    calls: list[Call] = field(default_factory=list)
    producers: list[asyncio.Task[None]] = field(default_factory=list)
    consumers: list[asyncio.Task[None]] = field(default_factory=list)
    held: list[ChangeEvent] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    next_id: int = 1

    async def produce(self, batch_sizes: Sequence[int], single: bool) -> None:
        call = Call([self.new_event(size) for size in batch_sizes])
        self.calls.append(call)
        if single:
            await self.queue.put(call.batch[0])
        else:
            await self.queue.put_many(call.batch)
        call.returned = True

    async def consume(self, count: int, single: bool) -> None:
        taken = [await self.queue.get()] if single else await self.queue.get_many(count)
        assert 1 <= len(taken) <= count
        self.take(taken)

    def new_event(self, size: int) -> ChangeEvent:
        self.next_id += 1
        return ChangeEvent(self.next_id, b"", "k", size, 0, 0, 0.0)

    def take(self, taken: Sequence[ChangeEvent]) -> None:
        self.held += taken
        self.seen += [event.ack_id for event in taken]

    def finish(self, count: int) -> None:
        self.queue.tasks_done(self.held[:count])
        del self.held[:count]

    async def step(self, kind: str, argument: list[int] | int) -> None:
        if isinstance(argument, list):
            self.producers.append(asyncio.create_task(self.produce(argument, single=kind == "put")))
        elif kind in ("get", "get_many"):
            self.consumers.append(asyncio.create_task(self.consume(argument, single=kind == "get")))
        elif kind == "get_nowait":
            self.take(self.queue.get_many_nowait(argument))
        elif kind == "done":
            self.finish(argument)
        elif kind == "turn":
            for _ in range(argument):
                await asyncio.sleep(0)
        else:
            waiting = [
                t for t in (self.producers if kind == "cancel_put" else self.consumers) if not t.done()
            ]
            if argument < len(waiting):
                waiting[argument].cancel()

    def check_limits(self) -> None:
        assert self.queue.qsize() <= MAX_MESSAGES
        held_bytes = sum(event.record_size_bytes for event in self.held)
        assert held_bytes <= self.queue.bytes_inflight <= MAX_BYTES

    async def drain(self) -> None:
        """Cancel who waits to take, then take and finish everything until every producer is through."""
        for consumer in self.consumers:
            consumer.cancel()
        await asyncio.gather(*self.consumers, return_exceptions=True)
        while not all(producer.done() for producer in self.producers) or self.queue.qsize():
            self.take(self.queue.get_many_nowait(MAX_MESSAGES))
            self.finish(len(self.held))
            await asyncio.sleep(0)
        self.finish(len(self.held))
        await self.queue.join()

    def check_history(self) -> None:
        for task in (*self.producers, *self.consumers):
            assert task.cancelled() or task.exception() is None
        assert self.seen == sorted(set(self.seen)), "first in, first out, each once"
        seen = set(self.seen)
        for call in self.calls:
            arrived = [event.ack_id in seen for event in call.batch]
            assert all(arrived) or not call.returned, "an accepted event was lost"
            assert arrived == sorted(arrived, reverse=True), "a cancelled batch left a hole"
            if len(arrived) == 1 and not call.returned:
                assert arrived == [False], "a cancelled put added its event"
        assert (self.queue.bytes_inflight, self.queue.qsize()) == (0, 0)


async def run(program: Sequence[Step]) -> None:
    world = World(InflightEventQueue(max_messages=MAX_MESSAGES, max_bytes=MAX_BYTES))
    for kind, argument in program:
        await world.step(kind, argument)
        world.check_limits()
    await world.drain()
    world.check_history()


@given(st.lists(steps, max_size=60))
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_nothing_is_lost_reordered_or_leaked(program: list[Step]) -> None:
    asyncio.run(run(program))
