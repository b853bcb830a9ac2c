"""Audience: the open pages, and what they are told while time goes by."""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import msgspec

from penstock.ops.bulletin import Bulletin
from penstock.status.history import INTERVAL_S, History
from penstock.status.model import Status

MOST_PAGES: Final = 20
_TICK_S: Final = 1.0
_MOST_WAITING: Final = 60
"""A page that leaves this many events unread is disconnected; it comes back by itself."""
_ENOUGH_BITS: Final = 13

_Queue = asyncio.Queue[bytes | None]


class Audience:
    """Keeps the history, and tells every open page what is new, once a second; idle while nobody listens."""

    def __init__(self, status: Callable[[], Status], *, has_login: bool) -> None:
        """`has_login`: whether a page can log out."""
        self._status = status
        self._has_login = has_login
        self._history = History()
        self._bulletin = Bulletin()
        self._pages: dict[_Queue, float] = {}
        """Each with the time at which its session ends, in Unix seconds."""

    @property
    def is_full(self) -> bool:
        """Whether another page would be one too many."""
        return len(self._pages) >= MOST_PAGES

    async def run(self) -> None:
        """Watch and tell, until cancelled."""
        next_point = 0.0
        while True:
            now, at = time.monotonic(), time.time()
            self._end_sessions(at)
            if self._pages or now >= next_point:
                status = self._status()
                point = None
                if now >= next_point:
                    next_point = now + INTERVAL_S
                    point = self._history.take(status, at)
                if self._pages:
                    news = self._bulletin.news(status, at, now) or {}
                    if point is not None:
                        news["point"] = point
                    self._tell(_event("news", {"at": round(at), **news}))
            await asyncio.sleep(_TICK_S)

    async def listen(self, ends_at: float = math.inf) -> AsyncGenerator[bytes, None]:
        """The events for one page: first all that is known, then what is new; ends when we do.

        `ends_at`: when its session ends, in Unix seconds; it is hung up on within a second.
        """
        queue: _Queue = asyncio.Queue(_MOST_WAITING)
        at = time.time()
        if not self._pages:
            self._bulletin.restart(self._status(), at, time.monotonic())
        queue.put_nowait(_event("all", {"at": round(at), **self._bulletin.all, **self._beside()}))
        self._pages[queue] = ends_at
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._pages.pop(queue, None)

    def _beside(self) -> dict[str, Any]:
        return {"history": self._history.points, "login": self._has_login}

    def dismiss(self) -> None:
        """Hang up on everybody."""
        for queue in list(self._pages):
            self._hang_up(queue)

    def _end_sessions(self, at: float) -> None:
        for queue in [queue for queue, ends_at in self._pages.items() if ends_at <= at]:
            self._hang_up(queue)

    def _tell(self, event: bytes) -> None:
        for queue in list(self._pages):
            if queue.full():
                self._hang_up(queue)
            else:
                queue.put_nowait(event)

    def _hang_up(self, queue: _Queue) -> None:
        self._pages.pop(queue, None)
        while queue.full():
            queue.get_nowait()
        queue.put_nowait(None)


class Squeezer:
    """gzip for a stream that is read while it is written: what goes in can be read at once."""

    def __init__(self) -> None:
        # A smaller window than usual: 20 pages should not take 5 MB.
        self._deflate = zlib.compressobj(6, zlib.DEFLATED, 16 + _ENOUGH_BITS, 6)

    def squeeze(self, data: bytes) -> bytes:
        """The bytes to send."""
        return self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def _event(name: str, content: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(content))
