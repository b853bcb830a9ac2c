"""MarkPace: when the next manifest is due."""

from __future__ import annotations

from typing import Final

MUCH_WAL_BYTES: Final = 1 << 20
"""Worth a manifest by itself: Postgres keeps it until one speaks of it."""


class MarkPace:
    """When the next manifest is due. Time is an argument.

    1. Where records wait for one: `interval_s` behind the last, and so much later that manifests take no more
       than `bytes_per_s`.
    2. Where none do, but the frontier has passed MUCH_WAL_BYTES (others write, or what is filtered): `idle_s`
       behind the last.
    3. Where neither is so: every `rest_s`, whether the frontier has moved or not, so that a reader that comes
       late finds one within the stream's retention.
    4. A failed one is tried again after its backoff.
    """

    def __init__(
        self,
        *,
        interval_s: float,
        idle_s: float = 1.0,
        rest_s: float = 10.0,
        bytes_per_s: float = 50_000.0,
        now: float,
    ) -> None:
        self._interval_s = interval_s
        self._idle_s = idle_s
        self._rest_s = rest_s
        self._bytes_per_s = bytes_per_s
        self._last = now - rest_s
        self._next_at = now

    def due_at(self, *, at_rest: bool, passed_bytes: int = 0) -> float:
        """When to send the next one.

        `at_rest`: whether no record waits for it. `passed_bytes`: how far the frontier is ahead of the last.
        """
        if not at_rest:
            return self._next_at
        pause_s = self._idle_s if passed_bytes >= MUCH_WAL_BYTES else self._rest_s
        return max(self._next_at, self._last + pause_s)

    def sent(self, now: float, size_bytes: int) -> None:
        """One was accepted."""
        self._last = now
        self._next_at = now + max(self._interval_s, size_bytes / self._bytes_per_s)

    def failed(self, now: float, backoff_s: float) -> None:
        """One was not."""
        self._next_at = now + backoff_s
