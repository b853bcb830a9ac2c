"""Freshness: may we still act as the leader, as far as the server has told us?"""

from __future__ import annotations


class Freshness:
    """Remembers the last moment at which the server is known to have counted us in.

    A leader that was frozen or cut off must not publish. Before each request it asks here.

    1. Two things vouch for the line: a frame that the server *sent* at some moment, and a watchdog that
       saw at some moment that our walsender holds the lock. Either is enough.
    2. The line is fresh if the later of the two lies within `limit_s`.
    3. A frame vouches for the moment it was sent, not for the moment we read it: after a freeze the
       socket still holds frames of before. Its send time is the server's clock moved to ours by the
       smallest difference seen on this connection (the least delayed frame). A server clock that jumps
       back only makes frames look old; then the watchdog has to vouch.
    4. The watchdog vouches for the moment before its question was sent, not for the answer's arrival.
    """

    __slots__ = ("_clock_difference_s", "_limit_s", "_vouched_at")

    def __init__(self, *, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._vouched_at = now
        self._clock_difference_s: float | None = None

    def frame_sent(self, server_time_s: float, *, now: float) -> None:
        """A frame with this server time was read now."""
        difference = now - server_time_s
        if self._clock_difference_s is None or difference < self._clock_difference_s:
            self._clock_difference_s = difference
        self.lock_seen(self.on_our_clock(server_time_s))

    def on_our_clock(self, server_time_s: float) -> float:
        """The moment at which the server's clock showed this, as far as this connection has shown."""
        return server_time_s + (self._clock_difference_s or 0.0)

    def lock_seen(self, asked_at: float) -> None:
        """The watchdog asked at this moment and saw our lock."""
        if asked_at > self._vouched_at:
            self._vouched_at = asked_at

    def age_s(self, now: float) -> float:
        """Seconds since the last moment for which something vouches."""
        return max(0.0, now - self._vouched_at)

    def is_fresh(self, now: float) -> bool:
        """Whether publishing is still allowed."""
        return now - self._vouched_at <= self._limit_s
