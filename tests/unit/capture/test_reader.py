"""The reader: what it waits for, and what it does with frames that can't go on as they are."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from penstock.capture.ack import AckTracker
from penstock.capture.intake import Intake
from penstock.capture.queue import InflightEventQueue
from penstock.capture.reader import Reader
from penstock.decoding.wal2json import Wal2Json
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.partition_key import Fallback, PartitionKeys
from penstock.model.key_indexes import KeyIndexes
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.stream_position import History
from penstock.postgres.leader.answering import Answering
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.stream.feedback import Feedback
from penstock.postgres.stream.walk import FrameWalk

WINDOW = 4
MAX_EVENT_BYTES = 500


class Line:
    """Gives the runs of frames that the test has put, one a read; then nothing comes any more."""

    def __init__(self, *runs: Sequence[bytes]) -> None:
        self._runs = list(runs)
        self.reads = 0

    async def read(self) -> list[memoryview]:
        self.reads += 1
        if not self._runs:
            await asyncio.Event().wait()
        return [memoryview(frame) for frame in self._runs.pop(0)]

    def send_status(self, *, write: int, flush: int, reply_requested: bool = False) -> None:
        pass


class Site:
    """A reader over such a line."""

    def __init__(self, line: Line, *, by_primary_key: bool = False, prefix: MarkPrefix | None = None) -> None:
        self.line = line
        self.tracker = AckTracker()
        self.queue = InflightEventQueue(max_messages=100, max_bytes=100_000)
        self.sink_has_room = asyncio.Event()
        self.sink_has_room.set()
        self.asked: list[str] = []
        self.replaced: list[int] = []
        keys = PartitionKeys(Wal2Json(), by_primary_key=by_primary_key, fallback=Fallback.LSN, static="")
        walk = FrameWalk(Wal2Json(), confirmed_lsn=0)
        feedback = Feedback(line=line, tracker=self.tracker, received_lsn=lambda: 0, heartbeat_s=1.0)
        self.reader = Reader(
            source=line,
            intake=Intake(
                tracker=self.tracker,
                walk=walk,
                keys=keys,
                publish_transactions=False,
                max_event_bytes=MAX_EVENT_BYTES,
                window=WINDOW,
                prefix=prefix,
            ),
            queue=self.queue,
            keys=keys,
            key_indexes=self._key_indexes,
            stand_in=self._replace,
            answering=Answering(walk, feedback, Freshness(limit_s=5.0, now=0.0)),
            sink_room=self._sink_room,
        )

    async def _key_indexes(self, relation: Relation) -> KeyIndexes:
        self.asked.append(str(relation))
        return KeyIndexes()

    async def _replace(self, event: ChangeEvent) -> ChangeEvent:
        self.replaced.append(event.record_size_bytes)
        return ChangeEvent(event.ack_id, b"pointer", "key", 10, 0, 0, 0.0)

    async def _sink_room(self) -> None:
        await self.sink_has_room.wait()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reader.run())
        try:
            yield
        finally:
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])

    def queued(self) -> list[ChangeEvent]:
        return list(self.queue.get_many_nowait(100))

    def publish(self, events: Sequence[ChangeEvent]) -> None:
        self.tracker.mark_published_ids(event.ack_id for event in events)
        self.reader.window_moved()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def frame(text: str) -> bytes:
    return struct.pack("!cqqq", b"w", 0, 0, 0) + text.encode()


def transaction(lsn: int, *values: str, table: str = "t") -> list[bytes]:
    ends = f'"lsn":"{format_lsn(lsn)}","nextlsn":"{format_lsn(lsn + 8)}"'
    rows = [
        f'{{"action":"I","schema":"public","table":"{table}",'
        f'"columns":[{{"name":"id","type":"text","value":"{value}"}}],"pk":[{{"name":"id","type":"text"}}]}}'
        for value in values
    ]
    return [frame(text) for text in (f'{{"action":"B",{ends}}}', *rows, f'{{"action":"C",{ends}}}')]


async def test_it_reads_nothing_while_the_sink_has_no_room() -> None:
    site = Site(Line())
    site.sink_has_room.clear()
    async with site.reading():
        await settle()
        assert site.line.reads == 0
        site.sink_has_room.set()
        await settle()
        assert site.line.reads == 1


async def test_a_full_window_holds_what_was_read_until_something_is_published() -> None:
    site = Site(Line(transaction(100, *"abcdefgh")))
    async with site.reading():
        await settle()
        first = site.queued()
        assert len(first) == WINDOW
        assert site.line.reads == 1, "nothing more is read"

        site.reader.window_moved()
        await settle()
        assert site.queued() == [], "a word without room moves nothing"

        site.publish(first)
        await settle()
        second = site.queued()
        assert len(second) == WINDOW
        site.publish(second)
        await settle()
        assert site.line.reads == 2
    payloads = [bytes(event.payload) for event in (*first, *second)]
    assert [payload.partition(b'"value":"')[2][:1] for payload in payloads] == [
        b"%c" % v for v in b"abcdefgh"
    ]


async def test_an_event_that_is_too_large_is_replaced_in_its_place() -> None:
    site = Site(Line(transaction(100, "a", "b" * MAX_EVENT_BYTES, "c")))
    async with site.reading():
        await settle()
        events = site.queued()
    assert [event.payload == b"pointer" for event in events] == [False, True, False]
    assert [event.ack_id for event in events] == sorted(event.ack_id for event in events)
    assert len(site.replaced) == 1
    assert site.replaced[0] > MAX_EVENT_BYTES


async def test_events_that_take_no_prefix_are_replaced_in_their_places() -> None:
    """A type's name with a quote in it breaks wal2json's JSON."""
    begin, *rows, commit = transaction(100, "a", "b", "c", "d")
    broken = [row.replace(b'"type":"text","value"', b'"type":""T"","value"') for row in rows]
    line = Line([begin, rows[0], broken[1], broken[2], rows[3], commit])
    site = Site(line, prefix=MarkPrefix(History(1, {}), "0123456789ab"))
    async with site.reading():
        await settle()
        events = site.queued()
    assert [event.payload == b"pointer" for event in events] == [False, True, True, False]
    assert [event.ack_id for event in events] == [1, 2, 3, 4]


async def test_a_relation_is_asked_for_once_and_holds_nothing_back() -> None:
    site = Site(
        Line(transaction(100, "a"), transaction(200, "b"), transaction(300, "c", table="u")),
        by_primary_key=True,
    )
    async with site.reading():
        await settle()
        assert len(site.queued()) == 3
        assert site.line.reads == 4
    assert site.asked == ["public.t", "public.u"]
