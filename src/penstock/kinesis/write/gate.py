"""SendGate: the last question before a request leaves the process."""

from __future__ import annotations

import threading
from typing import Protocol

from penstock.clock import awake_or_asleep


class Vouched(Protocol):
    """Whoever knows whether we still lead."""

    def is_fresh(self, now: float) -> bool:
        """Whether publishing is still allowed."""

    def age_s(self, now: float) -> float:
        """Seconds since the last sign of leadership."""


class Flight:
    """One request, sent by a thread."""

    __slots__ = ("_gate", "has_left", "started_at")

    def __init__(self, gate: SendGate, now: float) -> None:
        self._gate = gate
        self.started_at = now
        self.has_left = False
        """Whether its bytes were let out: from then on Kinesis may carry it out."""

    def may_leave(self) -> bool:
        """Asked by the transport, in its thread, when the connection is up and all is signed."""
        return self._gate.let_out(self)


class SendGate:
    """Lets requests out while the line is fresh and nobody has closed the gate.

    A resolver, a handshake or a thread that gets no time may delay a request for long. So permission is
    asked at the last moment, not when the request starts. Once `close` has returned nothing more leaves, and
    what has left is known: only that must end before another may lead.
    """

    def __init__(self, freshness: Vouched) -> None:
        self._freshness = freshness
        self._lock = threading.Lock()
        self._is_open = True

    def let_out(self, flight: Flight) -> bool:
        """Whether this request may leave now; if so, it counts as gone."""
        with self._lock:
            flight.has_left = self._is_open and self._freshness.is_fresh(awake_or_asleep())
            return flight.has_left

    def close(self) -> None:
        """Let nothing out."""
        with self._lock:
            self._is_open = False

    def open(self) -> None:
        """Let requests out again."""
        with self._lock:
            self._is_open = True
