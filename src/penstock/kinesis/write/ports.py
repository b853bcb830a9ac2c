"""What the publisher needs of others: where events come from and go, and who hears that they are durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.kinesis.aws.outcome import Failed, MarkResult, Result
from penstock.kinesis.write.event import ChangeEvent


class EventQueue(Protocol):
    """Events that wait to be published, within a budget that counts them until they are done."""

    @property
    def max_messages(self) -> int:
        """How many events it may hold, those that were taken included."""

    @property
    def max_bytes(self) -> int:
        """How many bytes it may hold."""

    @property
    def bytes_inflight(self) -> int:
        """What is in the budget now."""

    def qsize(self) -> int:
        """How many events wait."""

    def get_many_nowait(self, limit: int) -> list[ChangeEvent]:
        """Take up to so many events."""

    def resize(self, event: ChangeEvent, size_bytes: int) -> None:
        """An event that was taken has another size now."""

    def tasks_done(self, events: Sequence[ChangeEvent]) -> None:
        """These events are out of the budget."""

    def set_wakeup(self, wakeup: Callable[[], None] | None) -> None:
        """Call this whenever events come."""


class Acknowledgements(Protocol):
    """Whoever keeps the frontier."""

    def mark_published_ids(self, ack_ids: Sequence[int]) -> int | None:
        """These entries are durable; the new frontier, if it has moved."""


class RecordSink(Protocol):
    """Where batches go: blocking calls, made from worker threads."""

    def put_records(self, events: Sequence[ChangeEvent], may_send: Callable[[], bool]) -> Result:
        """Send the events in one request; never raises for what the network or the service does.

        `may_send` is asked once all is ready, directly before the request leaves; if it says no, nothing is
        sent and the result is Unsent.
        """

    def probe(self) -> Failed | None:
        """Ask whether the destination answers, and is what we need; None if so."""

    def complaint(self) -> str | None:
        """What works still, and will not for long; asks nobody."""

    def credentials_expire_at(self) -> float | None:
        """When what we send with expires, as time.time() tells time; None: never, or unknown. Asks nobody."""

    def close(self) -> None:
        """Close idle connections."""


class MarkSink(Protocol):
    """Where manifests go: blocking calls, made from worker threads."""

    def put_mark(self, data: bytes, key: str, after: str | None, may_send: Callable[[], bool]) -> MarkResult:
        """Send one record, to stand behind the one with the sequence number `after`; otherwise as above."""


class CaptureSink(RecordSink, MarkSink, Protocol):
    """All that a capture needs of its destination."""
