"""Marker: sends manifests, one at a time, and holds the frontier back until they are accepted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from penstock.abandonable import DaemonThreads
from penstock.clock import awake_or_asleep
from penstock.errors import LineStale, SinkOutage
from penstock.kinesis.aws.outcome import Failed, MarkResult, Placed, Refused, Taken, Unsent
from penstock.kinesis.marked.manifest import encode, partition_key
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.gate import Flight, SendGate
from penstock.kinesis.write.mark_pace import MarkPace
from penstock.kinesis.write.marks import Marks, Signature
from penstock.kinesis.write.ports import MarkSink
from penstock.kinesis.write.sending import Sending
from penstock.status.health import Fault

_SAY_AGAIN_S = 5.0
_LOOK_EVERY_S = 0.1

_log = structlog.get_logger()


class AcceptedFrontier(Protocol):
    """Whoever knows up to where everything is accepted."""

    @property
    def frontier_lsn(self) -> int:
        """Everything before it is accepted."""


class Marker:
    """The frontier of a marked stream: Postgres is told of nothing that no accepted manifest speaks of.

    Records accepted, manifest accepted, Postgres told: in this order. A manifest that failed, or whose answer
    was lost, is replaced by one with the same `since` that says more.

    The first one says where the leadership begins, and goes out at once. While it isn't accepted no record
    should leave: no manifest would speak of it, and the next leadership would send it again.
    """

    def __init__(
        self,
        *,
        marks: Marks,
        signature: Signature,
        tracker: AcceptedFrontier,
        sink: MarkSink,
        sending: Sending,
        pace: MarkPace,
    ) -> None:
        self._marks = marks
        self._signature = signature
        self._tracker = tracker
        self._sink = sink
        self._freshness = sending.freshness
        self._gate = SendGate(sending.freshness)
        self._health = sending.health
        self._metrics = sending.metrics
        self._pace = pace
        self._backoff = sending.backoff
        self._outage_limit_s = sending.outage_limit_s
        self._threads = DaemonThreads(1, name="put-mark")
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._begun = asyncio.Event()
        self._under_way: asyncio.Future[MarkResult] | None = None
        self._flight: Flight | None = None
        self._after: str | None = None
        """The sequence number of the last manifest, unless one that named it was refused."""
        self._rests = True
        """Whether nothing has waited for a manifest when that was last looked at."""
        self._attempt = 0
        self._failing_since: float | None = None
        self._said_at = float("-inf")
        self._on_moved: list[Callable[[], None]] = []

    @property
    def frontier_lsn(self) -> int:
        """Everything before it is in an accepted manifest."""
        return self._marks.since_lsn

    @property
    def marked_records(self) -> int:
        """Records that accepted manifests speak of."""
        return self._marks.told_records

    @property
    def is_behind(self) -> bool:
        """Whether accepted records wait for a manifest."""
        return self._marks.is_waiting(self._tracker.frontier_lsn)

    def delivered_lsn(self) -> int:
        """Everything before it is where readers find it; past what a manifest says if no record is there."""
        return self.frontier_lsn if self.is_behind else self._tracker.frontier_lsn

    async def begun(self) -> None:
        """Wait until the first manifest is accepted."""
        await self._begun.wait()

    def on_moved(self, callback: Callable[[], None]) -> None:
        """Call this whenever more may be confirmed."""
        self._on_moved.append(callback)

    def accepted(self, events: Sequence[ChangeEvent], taken: Taken) -> None:
        """These events were accepted, and are marked in the tracker."""
        self._marks.accepted(events, taken, self._tracker.frontier_lsn)
        # Behind the first that waits, more of them change nothing about when a manifest is due.
        if self._rests and self.is_behind:
            self._wake.set()

    async def run(self) -> None:
        """Send manifests when they are due, until cancelled, or until none is accepted for too long."""
        while True:
            now = time.monotonic()
            self._rests = not self.is_behind
            complete_lsn = self._marks.complete_lsn(self._tracker.frontier_lsn)
            due_at = self._pace.due_at(at_rest=self._rests, passed_bytes=complete_lsn - self._marks.since_lsn)
            if due_at <= now:
                async with self._turn:
                    await self._send()
                continue
            self._wake.clear()
            # A commit may come long after its last record, and moves the frontier by itself.
            try:
                async with asyncio.timeout(min(due_at - now, _LOOK_EVERY_S)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def catch_up(self) -> None:
        """Send what is to be said of all of the frontier, whatever the pace."""
        async with self._turn:
            while self._marks.complete_lsn(self._tracker.frontier_lsn) > self._marks.since_lsn:
                if not await self._send():
                    await asyncio.sleep(self._backoff(self._attempt))

    async def close(self, *, until: float | None = None) -> None:
        """Wait for a manifest that has left, and let none out any more."""
        await self.finish(until=until)
        self._threads.dismiss()

    async def finish(self, *, until: float | None) -> None:
        """Let nothing more out, and wait for a manifest that has left: for its time-out, or `until` then."""
        self._gate.close()
        if self._under_way is not None and self._flight is not None and self._flight.has_left:
            left_s = None if until is None else max(0.0, until - time.monotonic())
            await asyncio.wait([self._under_way], timeout=left_s)

    async def _send(self) -> bool:
        """One manifest, of everything up to the frontier; whether it was accepted."""
        data = encode(self._signature.manifest(self._marks.draft(self._tracker.frontier_lsn)))
        self._flight = Flight(self._gate, time.monotonic())
        key = partition_key(self._signature.slot)
        self._under_way = self._threads.submit(
            self._sink.put_mark, data, key, self._after, self._flight.may_leave
        )
        # Not awaited itself: a cancellation must leave it to `close`. A resolver knows no time-out.
        try:
            done, _ = await asyncio.wait([self._under_way], timeout=self._outage_limit_s)
        except asyncio.CancelledError:
            # Whether it was accepted nobody knows; another may still be sent before the end.
            self._marks.take_back()
            raise
        if not done:
            self._marks.take_back()
            raise SinkOutage(f"a manifest is under way for {self._outage_limit_s:.0f} s")
        result, self._under_way = self._under_way.result(), None
        now = time.monotonic()
        if isinstance(result, Placed):
            self._placed(result, len(data), now)
            return True
        self._marks.take_back()
        self._failed(result, now)
        return False

    def _placed(self, result: Placed, size_bytes: int, now: float) -> None:
        self._marks.settle()
        self._begun.set()
        self._after = result.sequence
        self._attempt, self._failing_since = 0, None
        self._pace.sent(now, size_bytes)
        self._metrics.manifests.inc()
        self._health.clear_fault(Fault.MARKS)
        for callback in self._on_moved:
            callback()

    def _failed(self, result: Refused | Failed | Unsent, now: float) -> None:
        self._pace.failed(now, self._backoff(self._attempt))
        self._attempt += 1
        if isinstance(result, Unsent):
            if not self._freshness.is_fresh(awake_or_asleep()):
                age_s = self._freshness.age_s(awake_or_asleep())
                raise LineStale(f"no sign of leadership for {age_s:.1f} s")
            return
        self._metrics.manifest_errors.labels(result.code).inc()
        if isinstance(result, Refused):
            # It may be the number: a stream that was created again doesn't know it. Order is a courtesy to
            # readers, who hold back a manifest that comes too early.
            self._after = None
        # A manifest is small and plain: if it is refused, the fault isn't its own.
        if isinstance(result, Refused) or result.stream_fault:
            self._health.set_fault(Fault.MARKS, f"manifests are refused: {result.code}: {result.message}")
        if now - self._said_at >= _SAY_AGAIN_S:
            self._said_at = now
            _log.warning("manifest_failed", code=result.code, message=result.message, attempt=self._attempt)
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._outage_limit_s:
            raise SinkOutage(
                f"Kinesis accepted no manifest for {now - self._failing_since:.0f} s;"
                " the slot is given up until it answers"
            )
