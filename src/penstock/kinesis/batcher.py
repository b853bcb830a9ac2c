"""MicroBatcher: events in order, cut into requests by records, by bytes and by delay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence

from penstock.capture.event import ChangeEvent


class MicroBatcher:
    """Gathers events for the next request.

    1. Idle means send now: with no request under way, whatever is here is due.
    2. Busy means gather: with requests under way, a batch is due when it is full by records or by bytes.
    3. Never later than the bound: it is due as soon as its oldest event is `max_delay_s` old, counted from
       the moment the reader took it from the socket.
    4. Nothing is reordered. An event whose key is busy elsewhere is diverted, in order, and not taken; so is
       one with a fault, once it stands at the head of a batch (before that, its key may be in the batch).
    5. A single event larger than `max_bytes` travels alone; whether Kinesis allows it is not decided here.
    """

    def __init__(self, *, max_records: int, max_bytes: int, max_delay_s: float) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_delay_s = max_delay_s
        self._events: deque[ChangeEvent] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Sequence[ChangeEvent]) -> None:
        """Append events, oldest first."""
        self._events.extend(events)
        self._bytes += sum([event.record_size_bytes for event in events])

    def due_at(self) -> float | None:
        """When the oldest event reaches the delay bound; None if there is none."""
        return self._events[0].received_at + self._max_delay_s if self._events else None

    def is_due(self, now: float, *, idle: bool) -> bool:
        """Whether a batch should leave now."""
        if not self._events:
            return False
        return (
            idle
            or len(self._events) >= self._max_records
            or self._bytes >= self._max_bytes
            or now >= self._events[0].received_at + self._max_delay_s
        )

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
    ) -> int:
        """Move events into `batch` up to the limits; those with a busy key go to `divert` instead.

        Returns the batch's size in bytes.
        """
        events, max_records, max_bytes = self._events, self._max_records, self._max_bytes
        removed = 0
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
        return batch_bytes
