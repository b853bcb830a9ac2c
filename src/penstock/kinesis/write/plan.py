"""PublishPlan: what to send next, so that the last word on every key is the newest, whatever fails."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

import msgspec

from penstock.kinesis.aws.outcome import Outcome
from penstock.kinesis.write.batcher import MicroBatcher, Stay
from penstock.kinesis.write.event import ChangeEvent


class Request(msgspec.Struct, eq=False):
    """Events for one PutRecords call, and how often they have failed in a row."""

    events: list[ChangeEvent]
    attempt: int = 0
    refused_at: float | None = None
    """When Kinesis first refused this event alone, if it did."""


class Settled(NamedTuple):
    """What a request's outcomes mean for its events; those to be sent again are kept by the plan."""

    accepted: list[ChangeEvent]
    undeliverable: list[ChangeEvent]


class FailingKeys(NamedTuple):
    """Keys of which Kinesis has accepted nothing for long, though it answers."""

    keys: int
    """How many."""
    since: float
    """The one that fails for longest, since when."""


class _Failing(NamedTuple):
    """A key that fails by itself."""

    since: float
    """Nothing of it was accepted since then."""
    window: int
    """How many events of it may be in the next request."""

    def twice(self) -> _Failing:
        """After a request that was accepted. It fails no more; what waits still goes out step by step."""
        return _Failing(float("inf"), 2 * self.window)


class PublishPlan:
    """Chooses requests from a stream of events. Knows no clock, no socket and no chance.

    A key is *busy* from the moment an event of it is in a request until that request's outcome leaves
    nothing of the key to send again. Newer events of a busy key wait in its *lane*.

    1. At most `max_requests` requests are under way, and a key is in at most one of them.
    2. Within a request a key's events stand in order.
    3. If an event fails, it and every later event of its key in that request are sent again, in order, before
       anything newer of that key: the failed one alone, then twice as many each time. A shard that is at its
       limit would spend it on records that it has already taken. Events of other keys are not held up.
    4. A failed request waits for its backoff; the number of attempts is not bounded.
    5. A request refused for one record's sake is split until that record stands alone. Refused alone it is
       tried again for `refusal_patience_s`: a service may err for a while. Then it is undeliverable.
    6. An undeliverable event keeps its key busy until `replace` gives it another form, which goes first.
    7. An event with a fault, or one for which `park` was called, blocks its key for the life of this plan. It
       and everything behind it in its key is *abandoned*: handed back by `take_abandoned` so that it costs no
       memory. Their ack_ids stay unmarked, so Postgres keeps them and sends them again after a restart.
    8. `spill` abandons what waits behind events that fail for long, now and from now on, so that one bad key
       doesn't take all the memory. The failing events themselves are still tried. Once they are accepted,
       `has_recovered` says that only a new plan, fed from Postgres again, can go on with that key.

    So at any moment, and also if the process dies there, every event of a key that is newer than its
    oldest unaccepted one is unmarked and will come again after it.
    """

    def __init__(
        self,
        *,
        batcher: MicroBatcher,
        max_requests: int,
        backoff: Callable[[int], float],
        refusal_patience_s: float = 0.0,
    ) -> None:
        self._batcher = batcher
        self.max_requests = max_requests
        self._backoff = backoff
        self._refusal_patience_s = refusal_patience_s
        self._lanes: dict[str, deque[ChangeEvent] | None] = {}
        """Busy keys and keys with waiting events; None saves a deque where nothing waits."""
        self._ready_lanes: deque[str] = deque()
        """Keys that are no longer busy and have waiting events."""
        self._retries: list[tuple[float, int, Request]] = []
        self._order = itertools.count()
        self._parked: set[str] = set()
        """Keys that are blocked for good; they are in `_lanes` too."""
        self._failing: dict[str, _Failing] = {}
        """Keys with an event that failed by itself, until nothing of them waits any more."""
        self._spilled: set[str] = set()
        """Keys of which everything newer is abandoned; they are in `_lanes` too."""
        self._has_recovered = False
        self._abandoned: list[ChangeEvent] = []
        self._under_way = 0
        """Requests handed out and not settled."""
        self._held = 0

    @property
    def held(self) -> int:
        """Events that the plan is responsible for."""
        return self._held

    @property
    def parked(self) -> int:
        """Keys that are blocked for good."""
        return len(self._parked)

    @property
    def has_recovered(self) -> bool:
        """Whether a key that was spilled could go on, if its events were here."""
        return self._has_recovered

    @property
    def is_active(self) -> bool:
        """Whether there is anything that could be sent, now or later, without somebody's help."""
        return bool(self._under_way or self._retries or self._ready_lanes or len(self._batcher))

    def is_behind(self, *, coming: int) -> bool:
        """Whether still more events would only wait: no request is free, and the next is full with those
        that are `coming`.
        """
        return self._under_way >= self.max_requests and self._batcher.is_full(coming=coming)

    def add(self, events: Sequence[ChangeEvent], now: float) -> None:
        """Take responsibility for events, oldest first."""
        self._batcher.add(events, now)
        self._held += len(events)

    def next_request(self, now: float) -> Request | None:
        """The request to send now, or None."""
        if self._under_way >= self.max_requests:
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
        if self._under_way >= self.max_requests:
            return None
        due_at = self._batcher.due_at()
        retry_at = self._retries[0][0] if self._retries else None
        return min((time for time in (due_at, retry_at) if time is not None), default=None)

    def accept(self, request: Request) -> None:
        """All of the request was accepted: the ordinary case, and the quick one."""
        self._under_way -= 1
        self._held -= len(request.events)
        self._release({event.partition_key for event in request.events})

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
        gets_on = {event.partition_key for event in accepted}
        failed: dict[str, ChangeEvent] = {}
        for event in again:
            if event.partition_key not in stuck:
                failed.setdefault(event.partition_key, event)
        self._release(gets_on - stuck - failed.keys())
        self._put_back([event for event in again if failed.get(event.partition_key) is not event])
        for key in failed:
            before = None if key in gets_on else self._failing.get(key)
            self._failing[key] = _Failing(now if before is None else min(now, before.since), window=1)
        if failed:
            # A request that gets on is not failing: only failures in a row make the wait longer.
            attempt = 0 if accepted else request.attempt
            self._retry(Request(list(failed.values()), attempt, request.refused_at), now)
        return Settled(accepted, undeliverable)

    def fail(self, request: Request, now: float) -> None:
        """Nothing is known of the request: all of it again, after a backoff."""
        self._under_way -= 1
        self._retry(request, now)

    def refuse(self, request: Request, now: float) -> Settled:
        """The request was refused for what one of its records is: find which."""
        if len(request.events) == 1:
            return self._refuse_alone(request, now)
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

    def _refuse_alone(self, request: Request, now: float) -> Settled:
        (event,) = request.events
        since = now if request.refused_at is None else request.refused_at
        if now - since >= self._refusal_patience_s:
            return self.settle(request, [Outcome.UNDELIVERABLE], now)
        self._under_way -= 1
        self._failing.setdefault(event.partition_key, _Failing(since, window=1))
        self._retry(Request(request.events, request.attempt, since), now)
        return Settled([], [])

    def spill(self, *, failing_since: float) -> int:
        """Give up what waits behind events that have failed, each by itself, since then or longer.

        Returns how many keys were not given up before.
        """
        before = len(self._spilled)
        for key, failing in self._failing.items():
            if failing.since <= failing_since:
                self._spilled.add(key)
                self._abandon_lane(key)
        return len(self._spilled) - before

    def failing_keys(self, *, since: float) -> FailingKeys | None:
        """The keys that have failed, each by itself, since then or longer; None if there are none."""
        moments = [failing.since for failing in self._failing.values() if failing.since <= since]
        return FailingKeys(len(moments), min(moments)) if moments else None

    def replace(self, event: ChangeEvent, now: float) -> None:
        """An undeliverable event has a deliverable form now: it goes before all else of its key."""
        self._push(now, Request([event]))

    def park(self, event: ChangeEvent) -> None:
        """An undeliverable event will never have another form: give up its key."""
        key = event.partition_key
        self._parked.add(key)
        self._failing.pop(key, None)
        self._abandon(event)
        self._abandon_lane(key)

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
            failing = self._failing.get(key)
            size = self._take_from_lane(lane, batch, size, failing.window if failing else len(lane))
            self._ready_lanes.popleft()
            if not lane:
                self._lanes[key] = None
        self._batcher.fill(batch, size, busy=self._lanes, divert=self._divert, now=now)
        for event in batch:
            self._lanes.setdefault(event.partition_key)
        return batch

    def _take_from_lane(
        self, lane: deque[ChangeEvent], batch: list[ChangeEvent], size: int, window: int
    ) -> int:
        while lane and window and lane[0].fault is None and self._batcher.has_room(batch, size, lane[0]):
            event = lane.popleft()
            batch.append(event)
            size += event.record_size_bytes
            window -= 1
        return size

    def _divert(self, event: ChangeEvent) -> None:
        """The event can't be sent now: it waits behind its key, or, at the head of its key, parks it."""
        key = event.partition_key
        if key in self._parked or key in self._spilled:
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

    def _abandon_lane(self, key: str) -> None:
        for waiting in self._lanes[key] or ():
            self._abandon(waiting)
        self._lanes[key] = None

    def _release(self, keys: Set[str]) -> None:
        """All that was sent of these keys has been accepted."""
        for key in keys:
            if self._lanes[key] is not None:
                self._ready_lanes.append(key)
                if key in self._failing:
                    self._failing[key] = self._failing[key].twice()
            elif key in self._spilled:
                self._failing.pop(key, None)
                self._has_recovered = True
            else:
                del self._lanes[key]
                self._failing.pop(key, None)

    def _put_back(self, events: Sequence[ChangeEvent]) -> None:
        """Events of busy keys return to the front of their lanes."""
        for event in reversed(events):
            lane = self._lanes[event.partition_key]
            if lane is None:
                self._lanes[event.partition_key] = deque((event,))
            else:
                lane.appendleft(event)

    def _retry(self, request: Request, now: float) -> None:
        again = Request(request.events, request.attempt + 1, request.refused_at)
        self._push(now + self._backoff(request.attempt), again)

    def _push(self, not_before: float, request: Request) -> None:
        heapq.heappush(self._retries, (not_before, next(self._order), request))
