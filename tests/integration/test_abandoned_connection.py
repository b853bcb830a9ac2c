"""A connection attempt that is given up is closed at once: a server that stops would wait for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from penstock.errors import ConnectionFailed
from penstock.postgres.connection import connect, connection_parameters


class SilentServer:
    """Takes a connection and never answers."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken.set()
        while await reader.read(1000):
            pass
        self.closed.set()
        writer.close()


@pytest.fixture
async def silent() -> AsyncIterator[tuple[SilentServer, dict[str, object]]]:
    server = SilentServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, family=socket.AF_INET)
    port = listening.sockets[0].getsockname()[1]
    given = connection_parameters(connect_timeout_s=1, silence_limit_s=10, role="test")
    yield server, {**given, "host": "127.0.0.1", "port": port, "user": "nobody", "sslmode": "disable"}
    listening.close()


async def test_one_that_is_cancelled(silent: tuple[SilentServer, dict[str, object]]) -> None:
    server, parameters = silent
    attempt = asyncio.create_task(connect({**parameters, "connect_timeout": 30}))
    await asyncio.wait_for(server.taken.wait(), 10)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError) as kept:
        await attempt
    await asyncio.wait_for(server.closed.wait(), 5)
    assert kept.value.__traceback__ is not None, "the traceback lives, and the connection doesn't"


async def test_one_that_takes_too_long(silent: tuple[SilentServer, dict[str, object]]) -> None:
    server, parameters = silent
    with pytest.raises(ConnectionFailed) as kept:
        await connect(parameters)
    await asyncio.wait_for(server.closed.wait(), 5)
    assert kept.value.__cause__ is not None
