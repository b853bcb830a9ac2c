"""A thread with an event loop of its own, so that a test server runs beside sync and async tests alike."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_CALL_S = 30.0
_ROUNDS = 3
_ROUND_S = 0.01


class LoopThread:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(_CALL_S)

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop and wait for its result."""

        async def called() -> T:
            return function()

        return self.run(called())

    def close(self) -> None:
        """Cancel what still runs, then end the loop and the thread."""
        self.run(_cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CALL_S)
        self.loop.close()


async def _cancel_others() -> None:
    """More than once: a connection that was being made has its task only now."""
    for _ in range(_ROUNDS):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(_ROUND_S)


def bind(port: int = 0) -> socket.socket:
    """A socket bound to 127.0.0.1 that does not listen: it keeps the port, and connections are refused."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def reset(transport: asyncio.BaseTransport) -> None:
    """End a connection the way a broken line does: with a reset, and without sending what is left."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() != -1:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
