"""Pace: how many a second, lately?"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

_APART_S: Final = 1.0


class _Counted(NamedTuple):
    at: float
    so_far: int


class Pace:
    """Compares a counter with what it was some seconds ago. Time is an argument.

    1. A count is compared with the newest one that is at least `over_s` old; before there is one, with the
       oldest that there is.
    2. Nothing is known until a second has passed, after a gap of three times `over_s`, and when the counter
       or the clock began again.
    3. Counts are kept at least a second apart, so their number is bounded.
    """

    def __init__(self, over_s: float) -> None:
        self._over_s = over_s
        self._counted: deque[_Counted] = deque()

    def note(self, count: int | None, now: float) -> float | None:
        """The pace up to this count. None for a count: nobody counts."""
        counted = self._counted
        if count is None:
            counted.clear()
            return None
        if counted and (count < counted[-1].so_far or now < counted[-1].at):
            counted.clear()
        while counted and now - counted[0].at >= 3 * self._over_s:
            counted.popleft()
        while len(counted) > 1 and now - counted[1].at >= self._over_s:
            counted.popleft()
        passed_s = now - counted[0].at if counted else 0.0
        pace = (count - counted[0].so_far) / passed_s if passed_s >= _APART_S else None
        if not counted or now - counted[-1].at >= _APART_S:
            counted.append(_Counted(now, count))
        return pace

    def forget(self) -> None:
        """Somebody else counts from now on."""
        self._counted.clear()
