"""Feedback: tells Postgres how far we are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Frontier(Protocol):
    """Whoever knows what may be confirmed."""

    @property
    def frontier_lsn(self) -> int:
        """The highest LSN that may be confirmed."""


class StatusLine(Protocol):
    """The way back to Postgres."""

    def send_status(self, *, write: int, flush: int, reply_requested: bool = False) -> None:
        """Send a status update without waiting."""


class Feedback:
    """Sends status updates: when the frontier moves, when the server asks, and as a heartbeat.

    `write` is the highest position heard of, `flush` the frontier. Reporting a stale `write` makes the
    server ask tens of thousands of times a second. `flush` never exceeds `write`: the server would believe
    a position in the future and skip data later.
    """

    def __init__(
        self,
        *,
        line: StatusLine,
        tracker: Frontier,
        received_lsn: Callable[[], int],
        heartbeat_s: float = 1.0,
    ) -> None:
        self._line = line
        self._tracker = tracker
        self._received_lsn = received_lsn
        self._heartbeat_s = heartbeat_s
        self._confirmed = 0

    @property
    def confirmed_lsn(self) -> int:
        """The highest LSN reported as flushed."""
        return self._confirmed

    def send_if_moved(self) -> None:
        """Report the frontier if it has moved since the last report."""
        if self._tracker.frontier_lsn > self._confirmed:
            self.send()

    def send(self, *, reply_requested: bool = False) -> None:
        """Report where we are, now."""
        received = self._received_lsn()
        self._confirmed = max(self._confirmed, min(self._tracker.frontier_lsn, received))
        self._line.send_status(write=received, flush=self._confirmed, reply_requested=reply_requested)

    async def run(self) -> None:
        """The heartbeat. It asks for an answer: on an idle line no frame would come otherwise."""
        while True:
            self.send(reply_requested=True)
            await asyncio.sleep(self._heartbeat_s)
