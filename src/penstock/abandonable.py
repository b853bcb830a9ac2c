"""Blocking calls in threads that nobody has to wait for.

A call into a resolver, a credential provider or a socket may hang for longer than anybody wants to wait. The
threads of `concurrent.futures`, and so those of `asyncio.to_thread`, are joined when the loop and again when
the interpreter ends: one call that hangs would hold up the whole process. The threads here are daemons.
Whoever waits may be cancelled at any time, and the call then goes on without anybody's interest in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_daemon_thread(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a blocking call in a thread of its own; a cancellation returns at once and leaves it behind."""
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    job = _Job(partial(call, *args, **kwargs), future)
    threading.Thread(target=job.run, name=f"abandonable {_name(call)}", daemon=True).start()
    return await future


class DaemonThreads:
    """A few threads that live as long as this object, for calls that come by the thousand a second."""

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started = 0
        self._under_way = 0

    def submit(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Run a blocking call as soon as a thread is free; to be called on the event loop."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        future.add_done_callback(self._ended)
        if self._under_way > self._started and self._started < self._count:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._jobs.put(_Job(partial(call, *args, **kwargs), future))
        return future

    def dismiss(self) -> None:
        """Let the threads end when what they do is done. Nothing may be submitted afterwards."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self._under_way -= 1

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # or the last call's arguments would live until the next call


class _Job:
    """One call, and the future of another thread's loop that waits for it."""

    __slots__ = ("_call", "_future", "_loop")

    def __init__(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self._call = call
        self._future = future
        self._loop = future.get_loop()

    def run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:
            self._tell(self._future.set_exception, error)
        else:
            self._tell(self._future.set_result, result)

    def _tell(self, setter: Callable[[Any], None], value: object) -> None:
        # A closed loop: everybody has gone.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._unless_abandoned, setter, value)

    def _unless_abandoned(self, setter: Callable[[Any], None], value: object) -> None:
        if not self._future.done():
            setter(value)


def _name(call: Callable[..., Any]) -> str:
    return getattr(call, "__name__", type(call).__name__)
