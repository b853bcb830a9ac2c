"""Lateness: how long ago was the oldest change committed that is not delivered, over all leaderships?"""

from __future__ import annotations


class Lateness:
    """Remembers the oldest undelivered change while nobody here can look. Time is an argument.

    A leadership that ends with something undelivered leaves it to the next one, which at first has read
    nothing: what was late before is still late, and during an outage it gets later.

    1. What a leader finds undelivered counts.
    2. A leader that finds nothing ends it only when its frontier is above what was undelivered before.
    3. Another leads, or the server has another history: nothing is known.
    """

    def __init__(self) -> None:
        self._commit_lsn = 0
        self._committed_at: float | None = None

    def note(self, frontier_lsn: int, commit_lsn: int, committed_at: float | None) -> None:
        """What a leader finds; None: nothing is undelivered of what it has read."""
        if committed_at is not None or frontier_lsn > self._commit_lsn:
            self._commit_lsn, self._committed_at = commit_lsn, committed_at

    def forget(self) -> None:
        """Whatever was undelivered is another's affair, or never happened."""
        self._commit_lsn, self._committed_at = 0, None

    def behind_s(self, now: float) -> float:
        """Seconds since that commit; 0 if there is nothing undelivered. `now`: on the server's clock."""
        return 0.0 if self._committed_at is None else max(0.0, now - self._committed_at)
