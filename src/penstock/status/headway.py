"""Headway: does what is pending get less, over all leaderships of this process?"""

from __future__ import annotations

from typing import Final

STALLED_AFTER_S: Final = 30.0


class Headway:
    """How long something has been pending without anything getting done. Time is an argument.

    The problem. The frontier alone tells too little and too much: it stands still for minutes while one
    large transaction is published at full speed, and a leadership that begins again sends what was sent
    before, which looks like work. And one record that is never accepted stops the frontier while everything
    else flows.

    State: the highest frontier seen, the most entries that were done behind one frontier since then, and
    the moment since which something is pending without headway.

    1. Headway is a frontier above all before; or, behind whatever frontier, more entries done in a row than
       in any leadership since the frontier last moved. So work that is merely repeated is no headway.
    2. A leadership that ends and begins again is no headway, and does not restart the clock.
    3. Nothing pending ends the wait: at once if this leadership had something pending before, otherwise
       when it has had nothing for STALLED_AFTER_S (at its start nothing has been read yet).
    4. While another leads, nobody waits here.
    """

    def __init__(self) -> None:
        self._frontier = -1
        self._done = 0
        self._since: float | None = None
        self._had_pending = False
        self._idle_since: float | None = None

    def begin(self) -> None:
        """A leadership begins."""
        self._had_pending = False
        self._idle_since = None

    def rest(self) -> None:
        """Another leads: what is pending is that one's affair."""
        self._since = None

    def forget_positions(self) -> None:
        """The server has another history: its LSNs can't be compared with those before."""
        self._frontier = -1
        self._done = 0

    def note(self, frontier_lsn: int, done: int, pending: int, now: float) -> bool:
        """A sample: the frontier, the entries done since it moved, those pending. Is it headway?"""
        moved = frontier_lsn > self._frontier or done > self._done
        if frontier_lsn > self._frontier:
            self._frontier, self._done = frontier_lsn, done
        elif moved:
            self._done = done
        if pending:
            self._had_pending = True
            self._idle_since = None
            self._since = now if moved or self._since is None else self._since
        elif moved or self._had_pending or self._is_idle_for_long(now):
            self._since = None
        return moved

    def stalled_s(self, now: float) -> float:
        """Seconds since which something is pending without headway; 0 if there is nothing of the kind."""
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def _is_idle_for_long(self, now: float) -> bool:
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= STALLED_AFTER_S
