from __future__ import annotations

import asyncio

from penstock.capture.ack import AckTracker
from penstock.capture.intake import Intake
from penstock.capture.queue import InflightEventQueue
from penstock.capture.reader import Reader
from penstock.decoding.wal2json import Wal2Json
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.partition_key import Fallback, PartitionKeys
from penstock.model.key_indexes import KeyIndexes
from penstock.postgres.leader.answering import Answering
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.stream.feedback import Feedback
from penstock.postgres.stream.walk import FrameWalk


class SilentLine:
    """A line on which nothing comes; says whether somebody listens."""

    def __init__(self) -> None:
        self.is_read = asyncio.Event()

    async def read(self) -> list[memoryview]:
        self.is_read.set()
        await asyncio.Event().wait()
        return []

    def send_status(self, *, write: int, flush: int, reply_requested: bool = False) -> None:
        raise AssertionError("nobody asked for a status")


async def no_indexes(schema: str, table: str) -> KeyIndexes:
    return KeyIndexes()


async def same(event: ChangeEvent) -> ChangeEvent:
    return event


async def test_it_reads_nothing_while_the_sink_has_no_room() -> None:
    line, tracker, room = SilentLine(), AckTracker(), asyncio.Event()
    keys = PartitionKeys(Wal2Json(), by_primary_key=False, fallback=Fallback.LSN, static="")
    walk = FrameWalk(Wal2Json(), confirmed_lsn=0)
    intake = Intake(
        tracker=tracker,
        walk=walk,
        keys=keys,
        publish_transactions=False,
        max_event_bytes=1_000,
        window=10,
    )

    async def wait_for_room() -> None:
        await room.wait()

    reader = Reader(
        source=line,
        intake=intake,
        queue=InflightEventQueue(max_messages=10, max_bytes=1_000),
        keys=keys,
        key_indexes=no_indexes,
        stand_in=same,
        answering=Answering(
            walk,
            Feedback(line=line, tracker=tracker, received_lsn=lambda: 0, heartbeat_s=1.0),
            Freshness(limit_s=5.0, now=0.0),
        ),
        sink_room=wait_for_room,
    )
    reading = asyncio.create_task(reader.run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not line.is_read.is_set()

    room.set()

    async with asyncio.timeout(5):
        await line.is_read.wait()
    reading.cancel()
    await asyncio.wait([reading])
