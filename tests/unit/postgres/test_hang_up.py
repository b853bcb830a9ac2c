"""Hanging up on a busy connection: libpq reads to the end, and never waits for one that doesn't come."""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Iterator
from typing import cast

import psycopg
import pytest
from psycopg import AsyncConnection

from penstock.postgres.connection import hang_up


class Busy:
    """A connection on which somebody waits for an answer, as far as hanging up knows it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.lock = asyncio.Lock()
        self.closed = False
        self.reads = 0

    @property
    def pgconn(self) -> Busy:
        return self

    @property
    def socket(self) -> int:
        return self._line.fileno()

    def consume_input(self) -> None:
        """As libpq does: nothing to read is no error, the end is one."""
        self.reads += 1
        try:
            if self._line.recv(1):
                return
        except BlockingIOError:
            return
        except OSError as error:
            self.closed = True
            raise psycopg.OperationalError(str(error)) from error
        self.closed = True
        raise psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def hung_up(line: socket.socket) -> Busy:
    busy = Busy(line)
    async with busy.lock:
        hang_up(cast(AsyncConnection, busy))
    return busy


async def test_answers_that_are_there_are_read_and_then_the_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.sendall(b"abc")
    assert select.select([ours], [], [], 5)[0], "they have come"
    busy = await hung_up(ours)
    assert busy.closed
    assert busy.reads == 4


async def test_a_line_that_the_server_has_reset_is_known_for_dead(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """It can't be shut down any more. Whoever is cancelled next must not ask the server to cancel a query."""
    ours, theirs = pair
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    assert select.select([ours], [], [], 5)[0], "it has come"
    busy = await hung_up(ours)
    assert busy.closed
    assert busy.reads == 1


async def test_one_that_has_no_end_is_read_once() -> None:
    with socket.socket() as unconnected:
        unconnected.setblocking(False)
        assert (await hung_up(unconnected)).reads == 1
