"""MicroBatcher: events in order, cut into requests by records, by bytes and by delay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from penstock.kinesis.write.event import ChangeEvent


class Stay(NamedTuple):
    """Events that came to the batcher together and left it together."""

    records: int
    seconds: float


class MicroBatcher:
    """Gathers events for the next request.

    1. Idle means send now: with no request under way, whatever is here is due.
    2. Busy means gather: with requests under way, a batch is due when it is full by records or by bytes.
    3. Never later than the bound: it is due as soon as its oldest event is `max_delay_s` old, counted from
       the moment the reader took it from the socket.
    4. Nothing is reordered. An event whose key is busy elsewhere is diverted, in order, and not taken; so is
       one with a fault, once it stands at the head of a batch (before that, its key may be in the batch).
    5. A single event larger than `max_bytes` travels alone; whether Kinesis allows it is not decided here.
    6. It keeps account of how long each event was here, from `add` until `fill` took or diverted it.
    """

    def __init__(self, *, max_records: int, max_bytes: int, max_delay_s: float) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_delay_s = max_delay_s
        self._events: deque[ChangeEvent] = deque()
        self._bytes = 0
        self._arrivals: deque[tuple[float, int]] = deque()
        """When the events came, and how many of each arrival are still here."""
        self._stays: list[Stay] = []

    def __len__(self) -> int:
        return len(self._events)

    def is_full(self, *, coming: int = 0) -> bool:
        """Whether a whole request is here, by bytes or by records; `coming` more may count as here."""
        return len(self._events) + coming >= self._max_records or self._bytes >= self._max_bytes

    def add(self, events: Sequence[ChangeEvent], now: float) -> None:
        """Append events, oldest first."""
        if not events:
            return
        self._events.extend(events)
        self._arrivals.append((now, len(events)))
        self._bytes += sum([event.record_size_bytes for event in events])

    def due_at(self) -> float | None:
        """When the oldest event reaches the delay bound; None if there is none."""
        return self._events[0].received_at + self._max_delay_s if self._events else None

    def is_due(self, now: float, *, idle: bool) -> bool:
        """Whether a batch should leave now."""
        if not self._events:
            return False
        return idle or self.is_full() or now >= self._events[0].received_at + self._max_delay_s

    def has_room(self, batch: Sequence[ChangeEvent], batch_bytes: int, event: ChangeEvent) -> bool:
        """Whether the batch may take one more event."""
        if not batch:
            return True
        return len(batch) < self._max_records and batch_bytes + event.record_size_bytes <= self._max_bytes

    def fill(
        self,
        batch: list[ChangeEvent],
        batch_bytes: int,
        *,
        busy: Container[str],
        divert: Callable[[ChangeEvent], None],
        now: float,
    ) -> int:
        """Move events into `batch` up to the limits; those with a busy key go to `divert` instead.

        Returns the batch's size in bytes.
        """
        events, max_records, max_bytes = self._events, self._max_records, self._max_bytes
        before, removed = len(events), 0
        while events and len(batch) < max_records:
            event = events[0]
            size = event.record_size_bytes
            if event.partition_key in busy:
                divert(event)
            elif batch and (batch_bytes + size > max_bytes or event.fault is not None):
                break
            elif event.fault is not None:
                divert(event)
            else:
                batch.append(event)
                batch_bytes += size
            events.popleft()
            removed += size
        self._bytes -= removed
        self._account(before - len(events), now)
        return batch_bytes

    def take_stays(self) -> list[Stay]:
        """How long those were here that have left since the last call."""
        stays, self._stays = self._stays, []
        return stays

    def _account(self, left: int, now: float) -> None:
        while left:
            came_at, records = self._arrivals[0]
            gone = min(left, records)
            self._stays.append(Stay(gone, now - came_at))
            if gone == records:
                self._arrivals.popleft()
            else:
                self._arrivals[0] = (came_at, records - gone)
            left -= gone
