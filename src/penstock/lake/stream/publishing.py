"""TaskPublisher: the changes of some keys, in order, into a stream. Runs where Spark's tasks do, and blocks.

It sends one request at a time and lets capture's own PublishPlan decide what is sent again, and behind what:
so the last occurrence of each change stands behind the last of all older ones of its key, also when requests
half fail. Whatever can't be delivered ends the task: a flush speaks of all its changes, or of none.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from penstock.kinesis.aws.backoff import full_jitter
from penstock.kinesis.aws.outcome import Accepted, Answered, Failed, Outcome, Refused, Result, Taken, judge
from penstock.kinesis.write.batcher import MicroBatcher
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.plan import PublishPlan, Request
from penstock.kinesis.write.ports import RecordSink
from penstock.kinesis.write.tally import Records, Tally
from penstock.lake.errors import StorageFailed

_BATCH_RECORDS: Final = 500
_BATCH_BYTES: Final = 900_000
_HELD: Final = 5_000
_HELD_BYTES: Final = 16 << 20
"""About so many events wait in memory at most, and about so many bytes of them; a record may have 10 MiB."""
_REFUSAL_PATIENCE_S: Final = 5.0
PATIENCE_S: Final = 60.0
"""So long nothing may be accepted."""


class TaskPublisher:
    """Used once, by one thread."""

    def __init__(self, stream: str, sink: RecordSink) -> None:
        self._stream = stream
        self._sink = sink
        self._tally = Tally()
        self._plan = PublishPlan(
            batcher=MicroBatcher(max_records=_BATCH_RECORDS, max_bytes=_BATCH_BYTES, max_delay_s=0.0),
            max_requests=1,
            backoff=partial(full_jitter, rng=random.Random()),  # noqa: S311 - spreads retries
            refusal_patience_s=_REFUSAL_PATIENCE_S,
        )
        self._held_bytes = 0
        self._accepted_at = 0.0
        self._failure = ""

    def publish(self, events: Iterable[ChangeEvent]) -> Tally:
        """Send all of them, those of a key in their order; where they are. StorageFailed if one can't be."""
        self._accepted_at = time.monotonic()
        for chunk, size_bytes in _chunks(events):
            self._plan.add(chunk, time.monotonic())
            self._held_bytes += size_bytes
            while self._plan.held >= _HELD or self._held_bytes >= _HELD_BYTES:
                self._send_one()
        while self._plan.held:
            self._send_one()
        return self._tally

    def _send_one(self) -> None:
        now = time.monotonic()
        if now - self._accepted_at > PATIENCE_S:
            raise StorageFailed(
                f"stream {self._stream} has accepted nothing for {PATIENCE_S:.0f} s: {self._failure}"
            )
        request = self._plan.next_request(now)
        if request is None:
            wake_at = self._plan.wake_at()
            assert wake_at is not None, "what is held waits for a time"
            time.sleep(max(0.0, wake_at - now))
            return
        self._settle(request, self._sink.put_records(request.events, lambda: True))

    def _settle(self, request: Request, result: Result) -> None:
        now = time.monotonic()
        match result:
            case Accepted(taken):
                self._plan.accept(request)
                self._count(request.events, taken, now)
            case Answered(entries):
                outcomes = judge([event.partition_key for event in request.events], entries)
                pairs = zip(entries, outcomes, strict=True)
                taken = Taken.of([entry for entry, outcome in pairs if outcome is Outcome.ACCEPTED])
                settled = self._plan.settle(request, outcomes, now)
                self._failure = ", ".join(sorted({entry.code for entry in entries if entry.code}))
                self._count(settled.accepted, taken, now)
                self._refuse(settled.undeliverable, self._failure)
            case Refused(code, message):
                self._refuse(self._plan.refuse(request, now).undeliverable, f"{code}: {message}")
            case Failed(code, message, stream_fault):
                self._failure = f"{code}: {message}"
                if stream_fault:
                    raise StorageFailed(f"stream {self._stream}: {self._failure}")
                self._plan.fail(request, now)
            case _:
                raise AssertionError("nobody forbids a request")

    def _count(self, events: Sequence[ChangeEvent], taken: Taken, now: float) -> None:
        self._tally.add(Records.of(events, taken))
        self._held_bytes -= sum(event.record_size_bytes for event in events)
        if events:
            self._accepted_at = now

    def _refuse(self, events: Sequence[ChangeEvent], why: str) -> None:
        for event in events:
            raise StorageFailed(
                f"stream {self._stream} refuses a change of {event.relation} at {event.offset}: {why}"
            )


def _chunks(events: Iterable[ChangeEvent]) -> Iterator[tuple[list[ChangeEvent], int]]:
    """About as many as go into a request, and their bytes."""
    chunk: list[ChangeEvent] = []
    size_bytes = 0
    for event in events:
        chunk.append(event)
        size_bytes += event.record_size_bytes
        if len(chunk) == _BATCH_RECORDS or size_bytes >= _BATCH_BYTES:
            yield chunk, size_bytes
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk, size_bytes
