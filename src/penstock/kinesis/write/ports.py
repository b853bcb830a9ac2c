"""What the publisher needs of capture: where events come from, and who hears that they are durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

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

    def tasks_done(self, events: Sequence[ChangeEvent]) -> None:
        """These events are out of the budget."""

    def set_wakeup(self, wakeup: Callable[[], None] | None) -> None:
        """Call this whenever events come."""


class Acknowledgements(Protocol):
    """Whoever keeps the frontier."""

    def mark_published_ids(self, ack_ids: Sequence[int]) -> int | None:
        """These entries are durable; the new frontier, if it has moved."""
