"""InflightEventQueue: what was read and is not yet durable, bounded by count and by bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock.kinesis.write.event import ChangeEvent


class InflightEventQueue:
    """A first-in, first-out queue with two limits that are given back at different times.

    A message slot is taken from `put` to `get`, because it bounds what waits here. Bytes are taken from
    `put` to `task_done`, because an event that is being sent still takes memory. So a slow destination stops
    the reader even when this queue is empty.

    Producers enter in the order of their calls, and so do consumers: whoever can't go on at once stands in
    line, and only the first of a line waits for room or for events. A batch of `put_many` keeps its turn
    until its last event is in. A blocked producer reserves its bytes first and then waits for a slot; when it
    is cancelled, the bytes are given back and the event that it was waiting with is not in the queue.

    An event has to come back with the `record_size_bytes` that it was put with, or that `resize` gave it.
    """

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        if max_messages <= 0:
            raise ValueError(f"max_messages must be > 0, not {max_messages}")
        if max_bytes <= 0:
            raise ValueError(f"max_bytes must be > 0, not {max_bytes}")
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes_inflight = 0
        self._events: deque[ChangeEvent] = deque()
        self._unfinished = 0
        self._finished = asyncio.Event()
        self._finished.set()
        self._producers = _Line()
        self._consumers = _Line()
        self._wakeup: Callable[[], None] | None = None

    @property
    def bytes_inflight(self) -> int:
        """Bytes reserved: waiting here, being processed, or held by a producer that waits for a slot."""
        return self._bytes_inflight

    @property
    def max_bytes(self) -> int:
        """The byte budget."""
        return self._max_bytes

    @property
    def max_messages(self) -> int:
        """How many events may wait here."""
        return self._max_messages

    def qsize(self) -> int:
        """How many events wait here."""
        return len(self._events)

    def set_wakeup(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` whenever events have been added; it must be quick and must not raise.

        It serves a consumer that waits for several things at once. It isn't called for events that are
        already here: set it first, then look.
        """
        self._wakeup = callback

    async def put(self, event: ChangeEvent) -> None:
        """Add an event; waits for bytes and for a slot. ValueError if it exceeds the whole byte budget."""
        await self.put_many((event,))

    async def put_many(self, events: Sequence[ChangeEvent]) -> None:
        """Add events in order, each as soon as it fits; doesn't wait at all when all of them do.

        ValueError, and none is added, if one exceeds the whole byte budget. When it is cancelled half-way,
        the events before the one it waited with are in the queue.
        """
        if not events:
            return
        size = sum([event.record_size_bytes for event in events])
        if size > self._max_bytes:
            self._refuse_impossible(events)
        if (
            self._producers.is_empty
            and self._bytes_inflight + size <= self._max_bytes
            and len(self._events) + len(events) <= self._max_messages
        ):
            self._bytes_inflight += size
            self._add(events)
        else:
            await self._put_in_turn(events)

    async def get(self) -> ChangeEvent:
        """Take the oldest event; its bytes stay reserved until `task_done`."""
        return (await self.get_many(1))[0]

    async def get_many(self, max_events: int) -> list[ChangeEvent]:
        """Take up to `max_events`, oldest first; waits until there is at least one."""
        if max_events < 1:
            raise ValueError(f"max_events must be > 0, not {max_events}")
        if not self._events or not self._consumers.is_empty:
            async with self._consumers as line:
                while not self._events:
                    await line.wait()
        return self.get_many_nowait(max_events)

    def get_many_nowait(self, max_events: int) -> list[ChangeEvent]:
        """Take up to `max_events` of what is here, perhaps none; doesn't stand in line."""
        take = self._events.popleft
        taken = [take() for _ in range(min(max_events, len(self._events)))]
        self._producers.wake_first()
        return taken

    async def task_done(self, event: ChangeEvent) -> None:
        """Give back the bytes of an event that `get` returned. ValueError if called too often."""
        self.tasks_done((event,))

    def tasks_done(self, events: Sequence[ChangeEvent]) -> None:
        """Give back the bytes of a batch; ValueError, and nothing is given back, if it is one too many."""
        if len(events) > self._unfinished:
            raise ValueError("task_done() called too many times")
        self._unfinished -= len(events)
        self._release_bytes(sum([event.record_size_bytes for event in events]))
        if not self._unfinished:
            self._finished.set()

    def resize(self, event: ChangeEvent, size_bytes: int) -> None:
        """An event that `get` returned has another size now; a larger one may exceed the budget by that."""
        freed = event.record_size_bytes - size_bytes
        event.record_size_bytes = size_bytes
        self._release_bytes(freed)

    async def join(self) -> None:
        """Wait until every event that was added is done."""
        await self._finished.wait()

    async def _put_in_turn(self, events: Sequence[ChangeEvent]) -> None:
        async with self._producers as line:
            for event in events:
                await self._reserve(event.record_size_bytes, line)
                self._add((event,))

    async def _reserve(self, size: int, line: _Line) -> None:
        while self._bytes_inflight + size > self._max_bytes:
            await line.wait()
        self._bytes_inflight += size
        try:
            while len(self._events) >= self._max_messages:
                await line.wait()
        except BaseException:
            self._release_bytes(size)
            raise

    def _add(self, events: Sequence[ChangeEvent]) -> None:
        self._events.extend(events)
        self._unfinished += len(events)
        self._finished.clear()
        self._consumers.wake_first()
        if self._wakeup is not None:
            self._wakeup()

    def _release_bytes(self, size: int) -> None:
        self._bytes_inflight = max(0, self._bytes_inflight - size)
        self._producers.wake_first()

    def _refuse_impossible(self, events: Sequence[ChangeEvent]) -> None:
        for event in events:
            if event.record_size_bytes > self._max_bytes:
                size = event.record_size_bytes
                raise ValueError(f"an event of {size} bytes can never enter a queue of {self._max_bytes}")


class _Line:
    """Tasks in the order of their arrival; `async with` returns when it is one's turn.

    The first in line waits, with `wait`, for somebody to call `wake_first`, and then looks again. The others
    wait for their turn. Nobody may go past a line that isn't empty: a task that was woken counts as waiting
    until it has run, otherwise a newcomer could take what it was woken for.
    """

    __slots__ = ("_first", "_length", "_turn")

    def __init__(self) -> None:
        self._length = 0
        self._turn = asyncio.Lock()
        self._first: asyncio.Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._length

    async def __aenter__(self) -> _Line:
        self._length += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._length -= 1
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._length -= 1
        self._turn.release()

    async def wait(self) -> None:
        self._first = asyncio.get_running_loop().create_future()
        try:
            await self._first
        finally:
            self._first = None

    def wake_first(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)
