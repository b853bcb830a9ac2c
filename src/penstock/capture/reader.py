"""The reader: frames from the stream into the queue, as fast as the queue allows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock.capture.intake import Batch, Intake
from penstock.capture.queue import InflightEventQueue
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.partition_key import KeyedRelation, PartitionKeys
from penstock.model.key_indexes import KeyIndexes
from penstock.model.relation import Relation
from penstock.postgres.leader.answering import Answering
from penstock.postgres.stream.replication import FrameSource


class Reader:
    """Drives the Intake. While the queue or the window is full, or the sink is behind, it does not read;
    feedback goes on.
    """

    def __init__(
        self,
        *,
        source: FrameSource,
        intake: Intake,
        queue: InflightEventQueue,
        keys: PartitionKeys,
        key_indexes: Callable[[Relation], Awaitable[KeyIndexes]],
        stand_in: Callable[[ChangeEvent], Awaitable[ChangeEvent]],
        answering: Answering,
        sink_room: Callable[[], Awaitable[None]],
    ) -> None:
        self._source = source
        self._intake = intake
        self._queue = queue
        self._keys = keys
        self._key_indexes = key_indexes
        self._stand_in = stand_in
        self._answering = answering
        self._sink_room = sink_room
        self._room = asyncio.Event()

    def window_moved(self) -> None:
        """The AckTracker has drained entries: the window may have room again."""
        self._room.set()

    async def run(self) -> None:
        """Read until cancelled or until the line is lost."""
        while True:
            await self._sink_room()
            frames = await self._source.read()
            now = time.monotonic()
            start = 0
            while start < len(frames):
                taken = self._intake.take(frames, start, now)
                self._answering.after_take()
                await self._hand_over(taken)
                start = taken.next_frame
                if start < len(frames) and taken.unknown is None and taken.unfit is None:
                    await self._wait_for_window()

    async def _hand_over(self, taken: Batch) -> None:
        if taken.has_faults:
            await self._put_with_faults(taken.events)
        elif taken.events:
            await self._queue.put_many(taken.events)
        if taken.unfit is not None:
            await self._queue.put(await self._stand_in(taken.unfit))
        if taken.unknown is not None:
            await self._learn(taken.unknown)

    async def _put_with_faults(self, events: Sequence[ChangeEvent]) -> None:
        """In their order, with stand-ins for those that can't be sent."""
        sound: list[ChangeEvent] = []
        for event in events:
            if event.fault is None:
                sound.append(event)
                continue
            await self._queue.put_many(sound)
            sound = []
            await self._queue.put(await self._stand_in(event))
        await self._queue.put_many(sound)

    async def _learn(self, keyed: KeyedRelation) -> None:
        self._keys.learn(keyed, await self._key_indexes(keyed.relation))

    async def _wait_for_window(self) -> None:
        while self._intake.window_is_full:
            self._room.clear()
            await self._room.wait()
