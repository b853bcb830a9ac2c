"""What the fault proxy saw and did, for assertions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.servers.kinesis_rules import Refusal


@dataclass(frozen=True)
class LoggedRecord:
    """A record of a PutRecords request and its fate.

    `outcome` is "accepted", the error code of the record or of the whole request, or "cut" if no answer was
    sent. A record that was cut and forwarded is in the stream; the client can't know.
    """

    key: str
    data: bytes
    forwarded: bool
    outcome: str


@dataclass(frozen=True)
class LoggedRequest:
    """A request that the proxy is done with; times are monotonic seconds.

    `outcome` is "ok", "partial" (some records failed), an error code, or "cut".
    """

    operation: str
    arrived_at: float
    done_at: float
    outcome: str
    records: tuple[LoggedRecord, ...]

    @property
    def forwarded(self) -> bool:
        """Whether any of its records reached Kinesis."""
        return any(record.forwarded for record in self.records)


class RequestLog:
    """The log and its counters: written by the proxy's thread, read by any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[LoggedRequest] = []
        self._violations: list[Refusal] = []
        self._arrived = 0
        self._held: Counter[str] = Counter()

    @property
    def requests(self) -> tuple[LoggedRequest, ...]:
        """Every request that the proxy is done with, oldest first."""
        with self._changed:
            return tuple(self._requests)

    @property
    def puts(self) -> tuple[LoggedRequest, ...]:
        """The PutRecords among `requests`."""
        return tuple(request for request in self.requests if request.operation == "PutRecords")

    @property
    def violations(self) -> tuple[Refusal, ...]:
        """What the strict checks have refused."""
        with self._changed:
            return tuple(self._violations)

    @property
    def arrived(self) -> int:
        """Requests read so far, whether done or not."""
        return self._arrived

    @property
    def held(self) -> int:
        """Requests that wait for `release()` now."""
        return self._held.total()

    @property
    def held_puts(self) -> int:
        """The PutRecords among them."""
        return self._held["PutRecords"]

    @property
    def counts(self) -> Counter[str]:
        """How many PutRecords ended with each outcome."""
        return Counter(request.outcome for request in self.puts)

    @property
    def record_counts(self) -> Counter[str]:
        """How many records ended with each outcome."""
        return Counter(record.outcome for request in self.puts for record in request.records)

    def wait_for(self, condition: Callable[[RequestLog], bool], timeout: float = 30.0) -> None:
        """Wait until a condition on this log holds; TimeoutError otherwise."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout):
                raise TimeoutError(
                    f"after {timeout} s: {self._arrived} arrived, {self.held} held, {self.counts}"
                )

    def note_arrival(self) -> None:
        """A request was read."""
        with self._changed:
            self._arrived += 1
            self._changed.notify_all()

    def note_held(self, operation: str, change: int) -> None:
        """A request begins (1) or ends (-1) to wait for `release()`."""
        with self._changed:
            self._held[operation] += change
            self._changed.notify_all()

    def note_violation(self, refusal: Refusal) -> None:
        """A request broke Kinesis' rules."""
        with self._changed:
            self._violations.append(refusal)

    def note_done(self, request: LoggedRequest) -> None:
        """The proxy is done with a request."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
