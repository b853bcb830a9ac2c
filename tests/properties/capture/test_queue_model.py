"""InflightEventQueue under random programs of producers, consumers and cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.capture.queue import InflightEventQueue
from penstock.kinesis.write.event import ChangeEvent

MAX_MESSAGES = 3
MAX_BYTES = 20
MAX_EVENT_BYTES = 8
ENOUGH_TURNS = 1_000
"""Far more than the longest program needs; a loop without an end would hang instead of failing."""

sizes = st.integers(1, MAX_EVENT_BYTES)
actions = st.one_of(
    st.tuples(st.just("put"), st.lists(sizes, min_size=1, max_size=1)),
    st.tuples(st.just("put_many"), st.lists(sizes, max_size=6)),
    st.tuples(st.sampled_from(["get", "get_many"]), st.integers(1, 5)),
    st.tuples(st.sampled_from(["get_nowait", "done"]), st.integers(1, 3)),
    st.tuples(st.sampled_from(["cancel_put", "cancel_get"]), st.integers(0, 3)),
)
Action = tuple[str, list[int] | int]
turns = st.sampled_from([0, 0, 1, 2, 20])
"""How often the event loop turns between two actions: 20 are enough for everybody to do what they can."""


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

    def waiting(self, tasks: Sequence[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
        return [task for task in tasks if not task.done()]

    def act(self, kind: str, argument: list[int] | int) -> None:
        if isinstance(argument, list):
            self.producers.append(asyncio.create_task(self.produce(argument, single=kind == "put")))
        elif kind in ("get", "get_many"):
            self.consumers.append(asyncio.create_task(self.consume(argument, single=kind == "get")))
        elif kind == "get_nowait":
            self.take(self.queue.get_many_nowait(argument))
        elif kind == "done":
            self.finish(argument)
        elif waiting := self.waiting(self.producers if kind == "cancel_put" else self.consumers):
            waiting[argument % len(waiting)].cancel()

    def check_limits(self) -> None:
        assert self.queue.qsize() <= MAX_MESSAGES
        held_bytes = sum(event.record_size_bytes for event in self.held)
        assert held_bytes <= self.queue.bytes_inflight <= MAX_BYTES

    def check_nobody_waits_in_vain(self) -> None:
        if self.waiting(self.consumers):
            assert self.queue.qsize() == 0
        if self.waiting(self.producers):
            room = MAX_BYTES - self.queue.bytes_inflight
            assert self.queue.qsize() == MAX_MESSAGES or room < MAX_EVENT_BYTES

    async def drain(self) -> None:
        """Cancel who waits to take, then take and finish everything until every producer is through."""
        for consumer in self.consumers:
            consumer.cancel()
        await asyncio.gather(*self.consumers, return_exceptions=True)
        for _ in range(ENOUGH_TURNS):
            if not self.waiting(self.producers) and not self.queue.qsize():
                break
            self.take(self.queue.get_many_nowait(MAX_MESSAGES))
            self.finish(len(self.held))
            await asyncio.sleep(0)
        self.finish(len(self.held))
        assert not self.waiting(self.producers), "a producer was never woken"
        joining = asyncio.create_task(self.queue.join())
        await asyncio.sleep(0)
        assert joining.done(), "everything is done and join still waits"

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


async def run(program: Sequence[tuple[Action, int]]) -> None:
    world = World(InflightEventQueue(max_messages=MAX_MESSAGES, max_bytes=MAX_BYTES))
    for (kind, argument), turns_after in program:
        world.act(kind, argument)
        for _ in range(turns_after):
            await asyncio.sleep(0)
        world.check_limits()
        if turns_after == 20:
            world.check_nobody_waits_in_vain()
    await world.drain()
    world.check_history()


@given(st.lists(st.tuples(actions, turns), max_size=50))
@settings(max_examples=500, deadline=None, derandomize=True, database=None)
def test_nothing_is_lost_reordered_or_leaked(program: list[tuple[Action, int]]) -> None:
    asyncio.run(run(program))
