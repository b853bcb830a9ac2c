"""KinesisPublisher: drives the PublishPlan with real requests."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from penstock.abandonable import DaemonThreads, in_daemon_thread
from penstock.clock import awake_or_asleep
from penstock.errors import KeyRecovered, LineStale, PenstockError, SinkOutage
from penstock.kinesis.aws.outcome import (
    Accepted,
    Answered,
    Entry,
    Failed,
    Outcome,
    Refused,
    Result,
    Taken,
    Unsent,
    judge,
    throttling_shards,
)
from penstock.kinesis.write.client import KEYS_IGNORED
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.gate import Flight, SendGate
from penstock.kinesis.write.outage import OutageClock
from penstock.kinesis.write.plan import PublishPlan, Request, Settled
from penstock.kinesis.write.ports import Acknowledgements, EventQueue, RecordSink
from penstock.kinesis.write.sending import Sending
from penstock.kinesis.write.undeliverable import REFUSED, UndeliverablePolicy
from penstock.status.health import Fault
from penstock.status.loop_probe import LoopProbe

_SAY_AGAIN_S = 5.0
_KEYS_EVERY_S = 0.25
_MUCH = 0.5
"""A share of the in-flight limits: from here on it matters what waits behind a failing key."""

_Callback = Callable[[], None]
OnAccepted = Callable[[Sequence[ChangeEvent], Taken], None]

_log = structlog.get_logger()


class KinesisPublisher:
    """Takes events from the queue, sends them, and marks exactly those that are durable.

    Requests run in worker threads. Everything else, including what an answer means, happens on the event
    loop, so that plan, tracker and queue need no locks.
    """

    def __init__(
        self,
        *,
        queue: EventQueue,
        tracker: Acknowledgements,
        plan: PublishPlan,
        sink: RecordSink,
        undeliverable: UndeliverablePolicy,
        sending: Sending,
        on_accepted: OnAccepted | None = None,
        look_every_s: float = 60.0,
    ) -> None:
        """`on_accepted`: hears of events that were accepted and marked, and where they are."""
        self._on_accepted = on_accepted
        self._queue = queue
        self._tracker = tracker
        self._plan = plan
        self._sink = sink
        self._undeliverable = undeliverable
        self._freshness = sending.freshness
        self._gate = SendGate(sending.freshness)
        self._health = sending.health
        self._metrics = sending.metrics
        self._outage_limit_s = sending.outage_limit_s
        self._look_every_s = look_every_s
        self._threads = DaemonThreads(plan.max_requests, name="put-records")
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._looked = asyncio.Event()
        self._probe = LoopProbe(is_busy=lambda: plan.is_active, note=sending.metrics.loop_late.observe)
        self._flights: dict[asyncio.Future[Result], Flight] = {}
        self._failure: BaseException | None = None
        self._finishing = False
        """No request may begin any more."""
        self._ending: PenstockError | None = None
        """Why nothing more is sent; raised when all that has left is answered."""
        self._clock = OutageClock(limit_s=sending.outage_limit_s, now=time.monotonic())
        self._said_at = float("-inf")
        self._record_code = ""
        """Kinesis' last word for a single record that it failed."""
        self._on_marked: list[_Callback] = []
        self._refused_events: deque[ChangeEvent] = deque()
        """Refused by Kinesis, and waiting for their turn to be quarantined."""
        self._refused_at_first: set[int] = set()
        """The ack_ids of records that Kinesis refused alone, and that are tried again."""
        self._pointer: ChangeEvent | None = None
        """The one whose turn it is, until its pointer is accepted."""

    def on_marked(self, callback: _Callback) -> None:
        """Call this after events have been marked in the AckTracker."""
        self._on_marked.append(callback)

    async def run(self) -> None:
        """Publish until cancelled, or until the line is stale or the sink is out for too long."""
        self._queue.set_wakeup(self._wake.set)
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._look_at_the_stream(), name="stream")
            self._tasks.create_task(self._look_at_keys(), name="keys")
            while True:
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                now = time.monotonic()
                self._refill(now)
                self._relieve(now)
                is_ending = self._finishing or self._is_ending(now)
                while not is_ending and (request := self._plan.next_request(time.monotonic())):
                    self._dispatch(request, time.monotonic())
                self._tidy()
                await self._sleep(until_answered=is_ending)

    async def drained(self) -> None:
        """Wait until everything that can be sent has been accepted."""
        self._drained.clear()
        self._wake.set()
        await self._drained.wait()

    async def room(self) -> None:
        """Wait while more events would only wait themselves.

        The reader and the requests share one interpreter: a reader that runs ahead takes from the requests
        the time that they need to end.
        """
        while self._plan.is_behind(coming=self._queue.qsize()):
            self._looked.clear()
            await self._looked.wait()

    async def finish(self, *, until: float) -> None:
        """Let no more requests leave, and wait for those that have; what they achieve counts."""
        self._finishing = True
        self._gate.close()
        await self._answered(until)

    async def close(self, *, until: float | None = None) -> None:
        """Wait for requests that have left; their time-out bounds it, and `until`.

        A later leadership must not meet them. A request that has not left by now, whatever holds it up, never
        will. What they achieve counts no more.
        """
        self._queue.set_wakeup(None)
        self._failure = asyncio.CancelledError()
        self._health.clear_fault(Fault.KEYS)
        self._probe.stop()
        self._gate.close()
        await self._answered(until)
        self._threads.dismiss()

    async def _answered(self, until: float | None) -> None:
        if gone := self._gone():
            left_s = None if until is None else max(0.0, until - time.monotonic())
            await asyncio.wait(gone, timeout=left_s)

    def _refill(self, now: float) -> None:
        """What the plan holds is bounded like the queue; a full plan leaves events in the queue."""
        room = self._queue.max_messages - self._plan.held
        if room > 0 and self._queue.qsize():
            if not self._plan.is_active:
                self._clock.rest(now)
            self._plan.add(self._queue.get_many_nowait(room), now)
            self._probe.start()

    def _relieve(self, now: float) -> None:
        """One failing key must not fill what is bounded for all, and then look like an outage.

        What waits behind it is left with Postgres, while the rest of the stream flows on. When the key works
        again, its changes come with a new leadership.
        """
        if self._plan.has_recovered:
            self._ending = KeyRecovered(
                "Kinesis takes a key's records again that it had failed for long; they are read again"
            )
        held = self._plan.held + self._queue.qsize()
        if (
            held >= _MUCH * self._queue.max_messages
            or self._queue.bytes_inflight >= _MUCH * self._queue.max_bytes
        ):
            spilled = self._plan.spill(failing_since=now - self._outage_limit_s)
            if spilled:
                _log.warning(
                    "keys_left_behind",
                    keys=spilled,
                    note="Kinesis fails them for long; what waits behind them stays in Postgres",
                )

    async def _look_at_keys(self) -> None:
        while True:
            await asyncio.sleep(_KEYS_EVERY_S)
            self._note_failing_keys(time.monotonic())

    def _note_failing_keys(self, now: float) -> None:
        """A key that fails for as long as an outage may last holds the frontier, though the rest flows."""
        failing = self._plan.failing_keys(since=now - self._outage_limit_s)
        if failing is None:
            self._health.clear_fault(Fault.KEYS)
            return
        keys = f"{failing.keys:,} partition key{'s' * (failing.keys > 1)}"
        self._health.set_fault(
            Fault.KEYS,
            f"Kinesis fails {keys} for {now - failing.since:.0f} s ({self._record_code}): what waits for them"
            " can't be confirmed, while the rest flows. Fix: look for records_failed in the log: a hot shard,"
            " an encryption key, the service",
        )

    async def _look_at_the_stream(self) -> None:
        """A stream can be changed under us; what PutRecords doesn't tell has to be asked for."""
        while True:
            await asyncio.sleep(self._look_every_s)
            failed = await in_daemon_thread(self._sink.probe)
            if failed is not None and failed.code == KEYS_IGNORED.code:
                sentence = f"{failed.code}: {failed.message}"
                self._ending = SinkOutage(sentence)
                self._health.set_fault(Fault.SINK, sentence)
                self._wake.set()
            if complaint := self._sink.complaint():
                _log.warning("sink_complains", detail=complaint)

    def _dispatch(self, request: Request, now: float) -> None:
        if request.attempt == 0:
            self._metrics.batch_wait_seconds.observe(now - request.events[0].received_at)
        flight = Flight(self._gate, now)
        future = self._threads.submit(self._send, request, flight)
        self._flights[future] = flight
        future.add_done_callback(lambda done: self._finish(request, done))

    def _send(self, request: Request, flight: Flight) -> Result:
        started = time.monotonic()
        result = self._sink.put_records(request.events, flight.may_leave)
        self._metrics.put_records_seconds.observe(time.monotonic() - started)
        return result

    def _oldest_request(self) -> float | None:
        return min((flight.started_at for flight in self._flights.values()), default=None)

    def _gone(self) -> list[asyncio.Future[Result]]:
        """Requests that have left and are not answered."""
        return [future for future, flight in self._flights.items() if flight.has_left]

    def _finish(self, request: Request, done: asyncio.Future[Result]) -> None:
        del self._flights[done]
        if self._failure is not None or done.cancelled():
            return
        try:
            self._apply(request, done.result(), time.monotonic())
        except BaseException as error:
            self._failure = error
        self._wake.set()

    def _apply(self, request: Request, result: Result, now: float) -> None:
        match result:
            case Accepted(taken):
                self._plan.accept(request)
                self._accepted(request.events, taken, now)
            case Answered(entries):
                self._answered_for_each(request, entries, now)
            case Refused(code, message):
                self._refused(request, code, message, now)
            case Unsent():
                self._plan.fail(request, now)
                age_s = self._freshness.age_s(awake_or_asleep())
                if not self._freshness.is_fresh(awake_or_asleep()):
                    raise LineStale(f"no sign of leadership for {age_s:.1f} s")
            case Failed(code, message, stream_fault):
                self._clock.failed()
                self._plan.fail(request, now)
                self._metrics.request_errors.labels(code).inc()
                if stream_fault:
                    self._health.set_fault(Fault.STREAM, f"{code}: {message}")
                self._say("stream_fault" if stream_fault else "request_failed", request, code, message, now)

    def _answered_for_each(self, request: Request, entries: Sequence[Entry], now: float) -> None:
        self._clock.judged(now)
        events = request.events
        outcomes = judge([event.partition_key for event in events], entries)
        fault = None
        for place, outcome in enumerate(outcomes):
            if outcome is Outcome.UNDELIVERABLE and events[place].is_pointer:
                # A pointer is small and plain: if it is refused, the fault isn't the record's.
                outcomes[place], fault = Outcome.RETRY, entries[place].code
        taken = [
            entry for entry, outcome in zip(entries, outcomes, strict=True) if outcome is Outcome.ACCEPTED
        ]
        self._settled(self._plan.settle(request, outcomes, now), taken, now)
        if fault is not None:
            self._health.set_fault(Fault.STREAM, f"{fault}: for the pointer to a quarantined record")
        codes = [entry.code for entry in entries]
        self._metrics.count_record_errors(codes)
        self._metrics.shards.count_throttled(throttling_shards(entries))
        code = next(filter(None, codes), None)
        self._record_code = code or self._record_code
        if code is None:
            # Sent again behind the others, it ends in order; the metric tells how often that is needed.
            self._metrics.out_of_order.inc()
        self._say("records_failed", request, code or "OutOfOrder", "", now)

    def _refused(self, request: Request, code: str, message: str, now: float) -> None:
        self._metrics.request_errors.labels(code).inc()
        self._record_code = code
        self._say("request_refused", request, code, message, now)
        if len(request.events) == 1 and request.events[0].is_pointer:
            # As with one that is refused among others.
            self._clock.failed()
            self._health.set_fault(Fault.STREAM, f"{code}: {message}")
            self._plan.fail(request, now)
            return
        self._clock.judged(now)
        settled = self._plan.refuse(request, now)
        if len(request.events) == 1 and not settled.undeliverable:
            self._refused_at_first.add(request.events[0].ack_id)
            self._undeliverable.doubt(request.events[0], f"{code}: {message}")
        self._settled(settled, (), now)

    def _reprieve(self, events: list[ChangeEvent]) -> None:
        """Some of the refused ones may have been accepted after all."""
        before = len(self._refused_at_first)
        self._refused_at_first.difference_update([event.ack_id for event in events])
        if before and not self._refused_at_first and not self._plan.parked:
            self._health.clear_fault(Fault.BLOCKED)

    def _settled(self, settled: Settled, entries: Sequence[Entry], now: float) -> None:
        """`entries`: what Kinesis answered for those that are accepted."""
        if settled.accepted:
            self._accepted(settled.accepted, Taken.of(entries), now)
        for event in settled.undeliverable:
            self._refused_at_first.discard(event.ack_id)
            if self._undeliverable.blocks:
                self._undeliverable.block(event, REFUSED)
                self._plan.park(event)
            else:
                self._refused_events.append(event)
        self._quarantine_next()

    def _quarantine_next(self) -> None:
        """One at a time: only when its pointer was accepted is it sure that the fault was the record's.

        A service that refuses everything then costs one needless file, and not one for every key.
        """
        if self._pointer is None and self._refused_events:
            self._pointer = self._refused_events.popleft()
            self._tasks.create_task(self._quarantine(self._pointer), name="quarantine")

    async def _quarantine(self, event: ChangeEvent) -> None:
        await self._undeliverable.quarantine(event, REFUSED)
        self._queue.resize(event, event.measure())
        now = time.monotonic()
        if not self._plan.is_active:
            self._clock.rest(now)
        self._plan.replace(event, now)
        self._wake.set()

    def _accepted(self, events: list[ChangeEvent], taken: Taken, now: float) -> None:
        self._clock.judged(now)
        self._health.clear_fault(Fault.STREAM)
        if self._refused_at_first:
            self._reprieve(events)
        self._metrics.count_accepted(
            len(events), sum([event.record_size_bytes for event in events]), now - events[0].received_at
        )
        self._metrics.shards.count_accepted({shard: each.count for shard, each in taken.shards.items()})
        self._tracker.mark_published_ids([event.ack_id for event in events])
        if self._on_accepted is not None:
            self._on_accepted(events, taken)
        self._queue.tasks_done(events)
        if self._pointer is not None and self._pointer in events:
            self._pointer = None
            self._quarantine_next()
        for callback in self._on_marked:
            callback()

    def _is_ending(self, now: float) -> bool:
        """Whether nothing more is sent; raises the reason once all that has left is answered.

        The lock is given up only then: a request that is carried out late must not meet another leader's.
        """
        if not self._plan.is_active:
            self._clock.rest(now)
        is_out = self._clock.is_out(now, oldest_request=self._oldest_request())
        if self._ending is None and not is_out:
            self._gate.open()
            return False
        self._gate.close()
        if self._gone():
            return True
        raise self._ending or SinkOutage(
            f"Kinesis accepted nothing for {self._clock.silent_s(now):.0f} s;"
            " the slot is given up until it answers"
        )

    def _tidy(self) -> None:
        """After a look at the plan: account for what left it, and tell those who wait for it."""
        for records, seconds in self._plan.take_stays():
            self._metrics.batcher_wait.observe(seconds, records)
        if abandoned := self._plan.take_abandoned():
            self._queue.tasks_done(abandoned)
        self._looked.set()
        if not self._plan.is_active and not self._queue.qsize():
            self._drained.set()

    async def _sleep(self, *, until_answered: bool) -> None:
        due = [
            self._plan.wake_at(),
            self._clock.look_again_at(oldest_request=self._oldest_request()),
        ]
        wake_at = min((at for at in due if at is not None), default=None)
        if wake_at is None or until_answered:
            await self._wake.wait()
            return
        timer = asyncio.get_running_loop().call_at(wake_at, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _say(self, event: str, request: Request, code: str, message: str, now: float) -> None:
        """Retries are many; one line in a few seconds tells the story."""
        if now - self._said_at >= _SAY_AGAIN_S:
            self._said_at = now
            say = _log.error if event == "stream_fault" else _log.warning
            say(event, code=code, message=message, records=len(request.events), attempt=request.attempt)
