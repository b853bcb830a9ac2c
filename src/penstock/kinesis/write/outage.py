"""OutageClock: when does a sink that accepts nothing count as out?"""

from __future__ import annotations


class OutageClock:
    """Tells a sink that is out from one that fails some records. Time is an argument.

    1. A sink that *judges* records, accepts some or says of single ones why not, is there. A standby would
       hear the same of it, so a key may fail for as long as it likes.
    2. It is out when it has judged nothing for `limit_s` and a request since then failed as a whole. Waiting
       for a backoff alone is no silence of the sink's.
    3. It is out, too, when a request is under way for so long: a resolver knows no time-out.
    4. While there is nothing to send, nobody can tell: the clock restarts.
    """

    def __init__(self, *, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._since = now
        self._has_failed = False

    def judged(self, now: float) -> None:
        """The sink said something of records."""
        self._since = now
        self._has_failed = False

    def failed(self) -> None:
        """A request as a whole brought nothing."""
        self._has_failed = True

    def rest(self, now: float) -> None:
        """There is nothing to send."""
        self.judged(now)

    def silent_s(self, now: float) -> float:
        """Seconds without a judgement."""
        return now - self._since

    def is_out(self, now: float, *, oldest_request: float | None) -> bool:
        """Whether the sink is out; `oldest_request`: since when the oldest one is under way."""
        if now < self._since + self._limit_s:
            return False
        return self._has_failed or (oldest_request is not None and now >= oldest_request + self._limit_s)

    def look_again_at(self, *, oldest_request: float | None) -> float | None:
        """From when on `is_out` is true if nothing happens; None if never."""
        due = self._since + self._limit_s
        if not self._has_failed:
            if oldest_request is None:
                return None
            due = max(due, oldest_request + self._limit_s)
        return due
