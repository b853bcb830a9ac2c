"""KinesisPublisher with a sink in memory: what it asks before it sends, and what it does with answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from penstock.capture.ack import AckTracker
from penstock.capture.queue import InflightEventQueue
from penstock.decoding.wal2json import Wal2Json
from penstock.errors import KeyRecovered, LineStale, SinkOutage
from penstock.kinesis.aws.outcome import Failed, Refused, Result, Unsent
from penstock.kinesis.write import publisher as publisher_module
from penstock.kinesis.write.batcher import MicroBatcher
from penstock.kinesis.write.client import KEYS_IGNORED
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.plan import PublishPlan
from penstock.kinesis.write.publisher import KinesisPublisher
from penstock.kinesis.write.sending import Sending
from penstock.kinesis.write.undeliverable import UndeliverablePolicy
from penstock.postgres.leader.freshness import Freshness
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics
from tests.kinesis_answers import accepted, answered
from tests.memory_store import MemoryStore

OUT_OF_REACH = Failed("ConnectTimeout", "no answer", stream_fault=False)
DENIED = Failed("AccessDeniedException", "no right", stream_fault=True)


class Sink:
    """Takes requests in memory; `answer` decides what becomes of each."""

    def __init__(self, answer: Callable[[Sequence[ChangeEvent]], Result]) -> None:
        self._answer = answer
        self.requests: list[list[int]] = []
        self.probed: Failed | None = None

    def put_records(self, events: Sequence[ChangeEvent], may_send: Callable[[], bool]) -> Result:
        if not may_send():
            return Unsent()
        self.requests.append([event.ack_id for event in events])
        return self._answer(events)

    def probe(self) -> Failed | None:
        return self.probed

    def complaint(self) -> str | None:
        return None

    def credentials_expire_at(self) -> float | None:
        return None

    def close(self) -> None:
        pass


class Parts(NamedTuple):
    publisher: KinesisPublisher
    queue: InflightEventQueue
    tracker: AckTracker
    health: Health
    metrics: CaptureMetrics

    async def put(self, *keys: str) -> list[int]:
        events = [self.event(key) for key in keys]
        await self.queue.put_many(events)
        return [event.ack_id for event in events]

    def event(self, key: str) -> ChangeEvent:
        number = self.tracker.register(self.tracker.last_registered_lsn + 1)
        return ChangeEvent(number, b"{}", key, 10, number, 0, time.monotonic())


def parts(
    sink: Sink, *, vouched_s_ago: float = 0.0, outage_limit_s: float = 60.0, store: MemoryStore | None = None
) -> Parts:
    queue, tracker, health = InflightEventQueue(max_messages=100, max_bytes=10_000), AckTracker(), Health()
    metrics = CaptureMetrics()

    def soon(attempt: int) -> float:
        return 0.001

    publisher = KinesisPublisher(
        queue=queue,
        tracker=tracker,
        plan=PublishPlan(
            batcher=MicroBatcher(max_records=10, max_bytes=10_000, max_delay_s=0.001),
            max_requests=2,
            backoff=soon,
        ),
        sink=sink,
        undeliverable=UndeliverablePolicy(
            store=store, slot="slot", summary=Wal2Json().summary, health=health, metrics=metrics, backoff=soon
        ),
        sending=Sending(
            Freshness(limit_s=5.0, now=time.monotonic() - vouched_s_ago),
            health,
            metrics,
            backoff=soon,
            outage_limit_s=outage_limit_s,
        ),
        look_every_s=0.05,
    )
    return Parts(publisher, queue, tracker, health, metrics)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.001)


async def run_until(made: Parts, condition: Callable[[], bool]) -> None:
    running = asyncio.create_task(made.publisher.run())
    try:
        await until(lambda: condition() or running.done())
    finally:
        running.cancel()
        await asyncio.wait([running])
        await made.publisher.close()
    if not running.cancelled():
        running.result()


async def test_what_is_accepted_is_marked_and_its_bytes_are_given_back() -> None:
    made = parts(Sink(accepted))
    await made.put("a", "b", "a")

    await run_until(made, lambda: made.tracker.pending_count == 0)

    assert (made.tracker.frontier_lsn, made.queue.bytes_inflight) == (3, 0)


async def test_nothing_is_sent_on_a_line_that_nobody_vouches_for() -> None:
    sink = Sink(accepted)
    made = parts(sink, vouched_s_ago=5.1)
    await made.put("a")

    with pytest.raises(ExceptionGroup) as caught:
        await run_until(made, lambda: False)

    assert caught.group_contains(LineStale)
    assert sink.requests == []


async def test_a_failed_record_is_sent_again_and_later_ones_of_its_key_after_it() -> None:
    answers = iter([answered(["Throttled", None, None])])
    sink = Sink(lambda events: next(answers, accepted(events)))
    made = parts(sink)
    await made.put("a", "b", "a")

    await run_until(made, lambda: made.tracker.pending_count == 0)

    assert sink.requests == [[1, 2, 3], [1], [3]]


async def test_a_refusing_stream_makes_it_unready_until_it_accepts() -> None:
    answers = iter([DENIED, DENIED])
    made = parts(Sink(lambda events: next(answers, accepted(events))))
    await made.put("a")
    seen = []

    def look() -> bool:
        seen.append(tuple(made.health.readiness(0.0).reasons))
        return made.tracker.pending_count == 0

    await run_until(made, look)

    assert any("AccessDeniedException" in reason for reasons in seen for reason in reasons)
    assert not any("AccessDeniedException" in reason for reason in made.health.readiness(0.0).reasons)


async def test_an_outage_gives_up_only_when_no_request_is_under_way() -> None:
    released = threading.Event()
    under_way = threading.Event()

    def hang(events: Sequence[ChangeEvent]) -> Result:
        under_way.set()
        released.wait(5)
        return OUT_OF_REACH

    sink = Sink(hang)
    made = parts(sink, outage_limit_s=0.05)
    await made.put("a")
    running = asyncio.create_task(made.publisher.run())
    await asyncio.to_thread(under_way.wait, 5)

    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done, "the slot was given up with a request under way"
    released.set()

    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(running, 5)
    assert caught.group_contains(SinkOutage)
    assert len(sink.requests) == 1
    await made.publisher.close()


async def test_there_is_no_room_while_every_request_is_under_way_and_the_next_is_full() -> None:
    released = threading.Event()

    def hang(events: Sequence[ChangeEvent]) -> Result:
        released.wait(5)
        return accepted(events)

    sink = Sink(hang)
    made = parts(sink)
    running = asyncio.create_task(made.publisher.run())
    await made.put("a")
    await until(lambda: len(sink.requests) == 1)
    await made.put("b")
    await until(lambda: len(sink.requests) == 2)
    async with asyncio.timeout(5):
        await made.publisher.room()

    await made.put(*"0123456789")
    await until(lambda: not made.queue.qsize())
    room = asyncio.create_task(made.publisher.room())
    await asyncio.sleep(0)
    assert not room.done()

    released.set()
    async with asyncio.timeout(5):
        await room
    running.cancel()
    await asyncio.wait([running])
    await made.publisher.close()


async def test_each_record_is_measured_on_its_way_through_the_batcher() -> None:
    made = parts(Sink(accepted))
    await made.put("a", "b", "a")

    await run_until(made, lambda: made.tracker.pending_count == 0)

    assert made.metrics.registry.get_sample_value("penstock_batcher_wait_seconds_count") == 3


async def test_refused_records_are_quarantined_one_at_a_time() -> None:
    """A service that refuses everything must not send every key to the quarantine."""
    store = MemoryStore()

    made = parts(Sink(lambda events: Refused("ValidationException", "no")), store=store)
    await made.put("a", "b", "c", "d")

    await run_until(made, lambda: "stream" in str(made.health.readiness(0.0).reasons))

    assert len(store.stored) == 1
    assert made.tracker.frontier_lsn == 0


async def test_each_poison_record_is_quarantined_and_a_pointer_takes_its_place() -> None:
    store = MemoryStore()
    taken: list[bytes] = []
    sizes: list[int] = []

    def refuse_poison(events: Sequence[ChangeEvent]) -> Result:
        if any(event.partition_key.startswith("bad") and not event.is_pointer for event in events):
            return Refused("ValidationException", "no")
        taken.extend(event.payload for event in events)
        sizes.extend(event.record_size_bytes for event in events if event.is_pointer)
        return accepted(events)

    made = parts(Sink(refuse_poison), store=store)
    await made.put("bad1", "good", "bad2", "bad1")

    await run_until(made, lambda: made.tracker.pending_count == 0)

    assert len(store.stored) == 3
    assert sorted(payload[:13] for payload in taken) == [b'{"action":"Q"'] * 3 + [b"{}"]
    pointers = [payload for payload in taken if payload.startswith(b'{"action":"Q"')]
    assert sizes == [len(payload) + len("bad1") for payload in pointers], "manifests tell of what is there"
    assert made.queue.bytes_inflight == 0


@pytest.mark.parametrize("too_large", [False, True], ids=["refused before", "never sent before"])
async def test_a_pointer_that_is_refused_among_others_is_tried_again(too_large: bool) -> None:
    """It is not the record's fault: a pointer to a pointer would be refused as well."""
    store = MemoryStore()
    refuses_pointers = True
    taken: list[ChangeEvent] = []

    def answer(events: Sequence[ChangeEvent]) -> Result:
        codes = [
            "ValidationException"
            if event.partition_key == "bad" and (refuses_pointers or not event.is_pointer)
            else None
            for event in events
        ]
        taken.extend(event for event, code in zip(events, codes, strict=True) if code is None)
        return answered(codes) if any(codes) else accepted(events)

    sink = Sink(answer)
    made = parts(sink, store=store)
    event = made.event("bad")
    if too_large:
        event.is_pointer = True
    await made.queue.put_many([event])
    await made.put("good")
    running = asyncio.create_task(made.publisher.run())
    await until(lambda: sum(event.ack_id in request for request in sink.requests) > 5)
    assert "ValidationException" in str(made.health.readiness(0.0).reasons)
    assert len(store.stored) == (0 if too_large else 1)
    refuses_pointers = False
    await until(lambda: made.tracker.pending_count == 0)
    running.cancel()
    await asyncio.wait([running])
    await made.publisher.close()
    assert [each.partition_key for each in taken] == ["good", "bad"]
    assert "ValidationException" not in str(made.health.readiness(0.0).reasons)


async def test_one_failing_key_neither_stops_the_others_nor_fills_the_limits() -> None:
    """It stands still for longer than an outage; what waits behind it is left with Postgres."""
    failing = True

    def answer(events: Sequence[ChangeEvent]) -> Result:
        codes = ["InternalFailure" if failing and event.partition_key == "bad" else None for event in events]
        return answered(codes) if any(codes) else accepted(events)

    sink = Sink(answer)
    made = parts(sink, outage_limit_s=0.2)
    running = asyncio.create_task(made.publisher.run())
    await made.put("bad")
    async with asyncio.timeout(20):
        for _ in range(40):
            await made.put(*["bad"] * 10, "a", "b")
            await asyncio.sleep(0.01)
        (last,) = await made.put("a")
    await until(lambda: any(last in request for request in sink.requests))
    assert made.queue.bytes_inflight < 5_000
    assert made.tracker.frontier_lsn == 0

    failing = False
    await asyncio.wait([running])

    error = running.exception()
    assert isinstance(error, ExceptionGroup)
    assert isinstance(error.exceptions[0], KeyRecovered)
    await made.publisher.close()


async def test_keys_that_fail_for_long_are_a_fault_until_they_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "_KEYS_EVERY_S", 0.01)
    failing = {"bad", "worse"}

    def answer(events: Sequence[ChangeEvent]) -> Result:
        codes = ["KMSThrottlingException" if event.partition_key in failing else None for event in events]
        return answered(codes) if any(codes) else accepted(events)

    def reasons() -> str:
        return " ".join(made.health.readiness(0.0).reasons)

    made = parts(Sink(answer), outage_limit_s=0.5)
    running = asyncio.create_task(made.publisher.run())
    await made.put("bad", "good", "worse")
    await until(lambda: "keys: Kinesis fails 2 partition keys for" in reasons())
    assert "(KMSThrottlingException)" in reasons()
    failing.remove("worse")
    await until(lambda: "keys: Kinesis fails 1 partition key for" in reasons())
    failing.clear()
    await until(lambda: "keys: " not in reasons())

    assert made.tracker.pending_count == 0
    running.cancel()
    await asyncio.wait([running])
    await made.publisher.close()


async def test_failing_keys_are_no_fault_of_whoever_publishes_no_more() -> None:
    made = parts(Sink(lambda events: answered(["InternalFailure"] * len(events))), outage_limit_s=0.5)
    await made.put("bad")
    await run_until(made, lambda: any("keys: " in reason for reason in made.health.readiness(0.0).reasons))

    assert made.health.readiness(0.0).reasons == ["phase is starting"]


async def test_a_key_that_fails_alone_is_no_outage() -> None:
    """Kinesis answers for each record; giving up the slot would only bring the same again."""
    sink = Sink(lambda events: answered(["InternalFailure"] * len(events)))
    made = parts(sink, outage_limit_s=0.1)
    await made.put("bad")

    await run_until(made, lambda: len(sink.requests) > 200)

    assert len(sink.requests) > 200


async def test_a_request_that_has_not_left_is_not_waited_for() -> None:
    """It hangs in the resolver, say; once the publisher is closed it may never leave."""
    ask, asked = threading.Event(), threading.Event()
    let_out: list[bool] = []

    class SlowSink(Sink):
        def put_records(self, events: Sequence[ChangeEvent], may_send: Callable[[], bool]) -> Result:
            asked.set()
            ask.wait(20)
            let_out.append(may_send())
            return Unsent()

    made = parts(SlowSink(accepted))
    await made.put("a")
    started = time.monotonic()

    await run_until(made, asked.is_set)

    assert time.monotonic() - started < 10
    ask.set()
    await until(lambda: bool(let_out))
    assert let_out == [False]


async def test_a_request_that_has_left_is_waited_for() -> None:
    left = threading.Event()
    answered: list[bool] = []

    def answer(events: Sequence[ChangeEvent]) -> Result:
        left.set()
        time.sleep(0.3)
        answered.append(True)
        return accepted(events)

    made = parts(Sink(answer))
    await made.put("a")

    await run_until(made, left.is_set)

    assert answered == [True]


async def test_what_has_left_is_waited_for_also_when_publishing_has_failed() -> None:
    """Its leadership keeps the lock until then."""
    left, may_answer = threading.Event(), threading.Event()

    def answer(events: Sequence[ChangeEvent]) -> Result:
        if events[0].partition_key == "bad":
            raise KeyError("a bug")
        left.set()
        may_answer.wait(20)
        return accepted(events)

    made = parts(Sink(answer))
    await made.put("slow")
    running = asyncio.create_task(made.publisher.run())
    await until(left.is_set)
    await made.put("bad")
    await asyncio.wait([running])
    assert isinstance(running.exception(), ExceptionGroup)

    finishing = asyncio.create_task(made.publisher.finish(until=time.monotonic() + 20))
    await asyncio.sleep(0.05)
    assert not finishing.done()
    may_answer.set()
    await finishing
    await made.publisher.close()


async def test_a_stream_that_begins_to_ignore_keys_gets_nothing_more() -> None:
    sink = Sink(accepted)
    made = parts(sink)
    await made.put("a")
    sink.probed = KEYS_IGNORED

    with pytest.raises(ExceptionGroup) as caught:
        await run_until(made, lambda: False)

    assert caught.group_contains(SinkOutage, match="ignores partition keys")
    assert "ignores partition keys" in made.health.readiness(time.monotonic()).reasons[0]


async def test_other_faults_of_a_probe_are_left_to_the_requests() -> None:
    sink = Sink(accepted)
    sink.probed = OUT_OF_REACH
    made = parts(sink)
    running = asyncio.create_task(made.publisher.run())
    await asyncio.sleep(0.2)
    await made.put("a")

    await until(lambda: made.tracker.pending_count == 0)

    running.cancel()
    await asyncio.wait([running])
    await made.publisher.close()
