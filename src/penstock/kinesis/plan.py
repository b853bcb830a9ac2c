"""PublishPlan: what to send next, so that the last word on every key is the newest, whatever fails."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from penstock.capture.event import ChangeEvent
from penstock.kinesis.batcher import MicroBatcher, Stay
from penstock.kinesis.outcome import Outcome


class Request(msgspec.Struct, eq=False):
    """Events for one PutRecords call, and how often they have failed in a row."""

    events: list[ChangeEvent]
    attempt: int = 0


class Settled(NamedTuple):
    """What a request's outcomes mean for its events; those to be sent again are kept by the plan."""

    accepted: list[ChangeEvent]
    undeliverable: list[ChangeEvent]


class PublishPlan:
    """Chooses requests from a stream of events. Knows no clock, no socket and no chance.

    A key is *busy* from the moment an event of it is in a request until that request's outcome leaves
    nothing of the key to send again. Newer events of a busy key wait in its *lane*.

    1. At most `max_requests` requests are under way, and a key is in at most one of them.
    2. Within a request a key's events stand in order.
    3. If an event fails, it and every later event of its key in that request are sent again, in order, in
       one later request, before anything newer of that key. Events of other keys are not held up.
    4. A failed request waits for its backoff; the number of attempts is not bounded.
    5. A request refused for one record's sake is split until that record stands alone.
    6. An undeliverable event keeps its key busy until `replace` gives it another form, which goes first.
    7. An event with a fault, or one for which `park` was called, blocks its key for the life of this plan. It
       and everything behind it in its key is *abandoned*: handed back by `take_abandoned` so that it costs no
       memory. Their ack_ids stay unmarked, so Postgres keeps them and sends them again after a restart.

    So at any moment, and also if the process dies there, every event of a key that is newer than its
    oldest unaccepted one is unmarked and will come again after it.
    """

    def __init__(self, *, batcher: MicroBatcher, max_requests: int, backoff: Callable[[int], float]) -> None:
        self._batcher = batcher
        self._max_requests = max_requests
        self._backoff = backoff
        self._lanes: dict[str, deque[ChangeEvent] | None] = {}
        """Busy keys and keys with waiting events; None saves a deque where nothing waits."""
        self._ready_lanes: deque[str] = deque()
        """Keys that are no longer busy and have waiting events."""
        self._retries: list[tuple[float, int, Request]] = []
        self._order = itertools.count()
        self._parked: set[str] = set()
        """Keys that are blocked for good; they are in `_lanes` too."""
        self._abandoned: list[ChangeEvent] = []
        self._under_way = 0
        self._held = 0

    @property
    def held(self) -> int:
        """Events that the plan is responsible for."""
        return self._held

    @property
    def under_way(self) -> int:
        """Requests handed out and not settled."""
        return self._under_way

    @property
    def parked(self) -> int:
        """Keys that are blocked for good."""
        return len(self._parked)

    @property
    def is_active(self) -> bool:
        """Whether there is anything that could be sent, now or later, without somebody's help."""
        return bool(self._under_way or self._retries or self._ready_lanes or len(self._batcher))

    def is_behind(self, *, coming: int) -> bool:
        """Whether still more events would only wait: no request is free, and the next is full with those
        that are `coming`.
        """
        return self._under_way >= self._max_requests and self._batcher.is_full(coming=coming)

    def add(self, events: Sequence[ChangeEvent], now: float) -> None:
        """Take responsibility for events, oldest first."""
        self._batcher.add(events, now)
        self._held += len(events)

    def next_request(self, now: float) -> Request | None:
        """The request to send now, or None."""
        if self._under_way >= self._max_requests:
            return None
        if self._retries and self._retries[0][0] <= now:
            request = heapq.heappop(self._retries)[2]
        elif self._ready_lanes or self._batcher.is_due(now, idle=self._under_way == 0):
            events = self._gather(now)
            if not events:
                return None
            request = Request(events)
        else:
            return None
        self._under_way += 1
        return request

    def wake_at(self) -> float | None:
        """When `next_request` may have something that it has not now, if nothing else happens."""
        if self._under_way >= self._max_requests:
            return None
        due_at = self._batcher.due_at()
        retry_at = self._retries[0][0] if self._retries else None
        return min((time for time in (due_at, retry_at) if time is not None), default=None)

    def accept(self, request: Request) -> None:
        """All of the request was accepted: the ordinary case, and the quick one."""
        self._under_way -= 1
        self._held -= len(request.events)
        for key in {event.partition_key for event in request.events}:
            self._release(key)

    def settle(self, request: Request, outcomes: Sequence[Outcome], now: float) -> Settled:
        """An answer came with an outcome for each event of the request."""
        self._under_way -= 1
        accepted, undeliverable, again = [], [], []
        stuck: set[str] = set()
        for event, outcome in zip(request.events, outcomes, strict=True):
            if outcome is Outcome.ACCEPTED:
                accepted.append(event)
            elif outcome is Outcome.UNDELIVERABLE:
                undeliverable.append(event)
                stuck.add(event.partition_key)
            else:
                again.append(event)
        self._held -= len(accepted)
        still_busy = stuck | {event.partition_key for event in again}
        for key in {event.partition_key for event in accepted} - still_busy:
            self._release(key)
        self._put_back([event for event in again if event.partition_key in stuck])
        retry = [event for event in again if event.partition_key not in stuck]
        if retry:
            # A request that gets on is not failing: only failures in a row make the wait longer.
            self._retry(retry, 0 if accepted else request.attempt, now)
        return Settled(accepted, undeliverable)

    def fail(self, request: Request, now: float) -> None:
        """Nothing is known of the request: all of it again, after a backoff."""
        self._under_way -= 1
        self._retry(request.events, request.attempt, now)

    def refuse(self, request: Request, now: float) -> Settled:
        """The request was refused for what one of its records is: find which."""
        if len(request.events) == 1:
            return self.settle(request, [Outcome.UNDELIVERABLE], now)
        self._under_way -= 1
        keys = list(dict.fromkeys(event.partition_key for event in request.events))
        if len(keys) == 1:
            middle = len(request.events) // 2
            self._put_back(request.events[middle:])
            self._push(now, Request(request.events[:middle], request.attempt))
        else:
            first = set(keys[: len(keys) // 2])
            for half in (True, False):
                events = [event for event in request.events if (event.partition_key in first) is half]
                self._push(now, Request(events, request.attempt))
        return Settled([], [])

    def replace(self, event: ChangeEvent, now: float) -> None:
        """An undeliverable event has a deliverable form now: it goes before all else of its key."""
        self._push(now, Request([event]))

    def park(self, event: ChangeEvent) -> None:
        """An undeliverable event will never have another form: give up its key."""
        key = event.partition_key
        self._parked.add(key)
        self._abandon(event)
        for waiting in self._lanes[key] or ():
            self._abandon(waiting)
        self._lanes[key] = None

    def take_abandoned(self) -> list[ChangeEvent]:
        """The events that the plan has given up since the last call; it holds them no more."""
        abandoned, self._abandoned = self._abandoned, []
        return abandoned

    def take_stays(self) -> list[Stay]:
        """How long events were in the batcher that have left it since the last call."""
        return self._batcher.take_stays()

    def _gather(self, now: float) -> list[ChangeEvent]:
        batch: list[ChangeEvent] = []
        size = 0
        while self._ready_lanes:
            key = self._ready_lanes[0]
            lane = self._lanes[key]
            assert lane, "a ready lane has events"
            if lane[0].fault is not None:
                self._ready_lanes.popleft()
                self.park(lane.popleft())
                continue
            if not self._batcher.has_room(batch, size, lane[0]):
                break
            size = self._take_from_lane(lane, batch, size)
            self._ready_lanes.popleft()
            if not lane:
                self._lanes[key] = None
        self._batcher.fill(batch, size, busy=self._lanes, divert=self._divert, now=now)
        for event in batch:
            self._lanes.setdefault(event.partition_key)
        return batch

    def _take_from_lane(self, lane: deque[ChangeEvent], batch: list[ChangeEvent], size: int) -> int:
        while lane and lane[0].fault is None and self._batcher.has_room(batch, size, lane[0]):
            event = lane.popleft()
            batch.append(event)
            size += event.record_size_bytes
        return size

    def _divert(self, event: ChangeEvent) -> None:
        """The event can't be sent now: it waits behind its key, or, at the head of its key, parks it."""
        key = event.partition_key
        if key in self._parked:
            self._abandon(event)
        elif key not in self._lanes:
            self._lanes[key] = None
            self.park(event)
        elif (lane := self._lanes[key]) is None:
            self._lanes[key] = deque((event,))
        else:
            lane.append(event)

    def _abandon(self, event: ChangeEvent) -> None:
        self._held -= 1
        self._abandoned.append(event)

    def _release(self, key: str) -> None:
        if self._lanes[key] is None:
            del self._lanes[key]
        else:
            self._ready_lanes.append(key)

    def _put_back(self, events: Sequence[ChangeEvent]) -> None:
        """Events of busy keys return to the front of their lanes."""
        for event in reversed(events):
            lane = self._lanes[event.partition_key]
            if lane is None:
                self._lanes[event.partition_key] = deque((event,))
            else:
                lane.appendleft(event)

    def _retry(self, events: list[ChangeEvent], attempt: int, now: float) -> None:
        self._push(now + self._backoff(attempt), Request(events, attempt + 1))

    def _push(self, not_before: float, request: Request) -> None:
        heapq.heappush(self._retries, (not_before, next(self._order), request))
