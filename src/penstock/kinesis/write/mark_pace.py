"""MarkPace: when the next manifest is due."""

from __future__ import annotations


class MarkPace:
    """When the next manifest is due. Time is an argument.

    1. Where records wait for one: `interval_s` behind the last, and so much later that manifests take no more
       than `bytes_per_s`.
    2. Where none do: every `rest_s`, whether the frontier has moved or not, so that a reader that comes late
       finds one within the stream's retention.
    3. A failed one is tried again after its backoff.
    """

    def __init__(
        self, *, interval_s: float, rest_s: float = 10.0, bytes_per_s: float = 50_000.0, now: float
    ) -> None:
        self._interval_s = interval_s
        self._rest_s = rest_s
        self._bytes_per_s = bytes_per_s
        self._last = now - rest_s
        self._next_at = now

    def due_at(self, *, at_rest: bool) -> float:
        """When to send the next one; `at_rest`: whether no record waits for it."""
        return max(self._next_at, self._last + self._rest_s) if at_rest else self._next_at

    def sent(self, now: float, size_bytes: int) -> None:
        """One was accepted."""
        self._last = now
        self._next_at = now + max(self._interval_s, size_bytes / self._bytes_per_s)

    def failed(self, now: float, backoff_s: float) -> None:
        """One was not."""
        self._next_at = now + backoff_s
