"""LoopProbe: how late the event loop does what it was asked to do at a certain time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 0.01


class LoopProbe:
    """Asks the loop for a wake-up every 10 ms while there is work, and notes how late each one comes.

    Late means that the loop was in another callback, or that its thread waited for the interpreter's lock or
    for a core. Up to a millisecond is the selector's own rounding. Without work it asks for nothing: a
    process at rest should sleep.
    """

    def __init__(self, *, is_busy: Callable[[], bool], note: Callable[[float], None]) -> None:
        self._is_busy = is_busy
        self._note = note
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """There is work; does nothing if the probe runs already."""
        if self._timer is None:
            self._ask_again()

    def stop(self) -> None:
        """Take back the wake-up that is asked for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask_again(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + _INTERVAL_S
        self._timer = loop.call_at(due, self._woken, loop, due)

    def _woken(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._note(loop.time() - due)
        self._timer = None
        if self._is_busy():
            self._ask_again()
