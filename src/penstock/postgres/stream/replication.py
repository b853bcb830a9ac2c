"""The replication stream: COPY BOTH by hand on psycopg.pq."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final, Protocol

import psycopg
from psycopg import AsyncConnection, pq, sql
from psycopg.errors import error_from_result

from penstock.errors import LineLost, PostgresError
from penstock.postgres.connection import one_line
from penstock.postgres.slot.state import stream_error, translate
from penstock.postgres.stream import protocol

_ENOUGH_BYTES: Final = 128 * 1024
"""What one `read` gathers before it returns; frames in hand are not yet in any budget."""


class FrameSource(Protocol):
    """Where frames come from."""

    async def read(self) -> list[memoryview]:
        """At least one frame; waits for it."""


class ReplicationStream:
    """Frames in, status updates out, on one connection and one event loop.

    The socket is watched only while somebody waits in `read`: a reader that pauses leaves the data with
    the server, and status updates go out all the same.
    """

    def __init__(self, connection: AsyncConnection, *, plugin: str) -> None:
        self._connection = connection
        self._plugin = plugin
        self._pgconn = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._readable: asyncio.Future[None] | None = None
        self._writing = False
        self._closed = False
        self._ended: PostgresError | None = None
        """Why the server has ended the stream; frames that came before it are still given out."""

    @classmethod
    async def start(
        cls, connection: AsyncConnection, *, slot: str, plugin: str, options: Mapping[str, str]
    ) -> ReplicationStream:
        """Enter COPY BOTH where the slot stands.

        The start position is always 0/0: the server knows what was confirmed, and any other value could
        skip data.
        """
        pairs = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in options.items()
        )
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL 0/0 ({})").format(sql.Identifier(slot), pairs)
        try:
            await connection.execute(command)
        except psycopg.Error as error:
            raise translate(error, slot=slot, plugin=plugin) from error
        return cls(connection, plugin=plugin)

    async def read(self) -> list[memoryview]:
        """The frames that are here, at least one; waits if there are none.

        Each look at the event loop costs as much as a few frames, so a busy socket is read several times
        between two looks. One look a call is due in any case: others want to run.
        """
        frames: list[memoryview] = []
        gathered = 0
        await asyncio.sleep(0)
        while True:
            if self._ended is not None:
                raise self._ended
            self._consume()
            drained = self._drain_into(frames)
            gathered += drained
            if frames and (not drained or gathered >= _ENOUGH_BYTES or self._ended is not None):
                return frames
            if not frames:
                await self._wait_readable()

    def send_status(self, *, write: int, flush: int, reply_requested: bool = False) -> None:
        """Queue a status update and push it towards the socket; never blocks."""
        if self._closed or self._ended is not None:
            return  # whoever reads hears of it
        update = protocol.status_update(
            write=write, flush=flush, now_unix_s=time.time(), reply_requested=reply_requested
        )
        try:
            self._pgconn.put_copy_data(update)
            self._flush()
        except psycopg.Error as error:
            # The socket may hold what the server said before it hung up: that tells more.
            raise self.last_words() or LineLost(f"can't send a status update: {one_line(error)}") from error

    def close(self) -> None:
        """Leave COPY BOTH by closing the connection, which also frees the lock and the slot."""
        if self._closed:
            return
        self._closed = True
        if self._pgconn.status == pq.ConnStatus.OK:
            self._loop.remove_reader(self._pgconn.socket)
            self._loop.remove_writer(self._pgconn.socket)
        if self._readable is not None and not self._readable.done():
            self._readable.set_exception(LineLost("the replication connection was closed"))
        self._pgconn.finish()

    def _consume(self) -> None:
        if self._closed:
            raise LineLost("the replication connection was closed")
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise LineLost(f"the replication connection broke: {one_line(error)}") from error

    def _drain_into(self, frames: list[memoryview]) -> int:
        """Append the frames that libpq holds; returns their bytes."""
        get_copy_data = self._pgconn.get_copy_data
        drained = 0
        try:
            while True:
                size, data = get_copy_data(1)
                if size <= 0:
                    break
                frames.append(data)
                drained += size
        except psycopg.Error as error:
            raise LineLost(f"the replication connection broke: {one_line(error)}") from error
        if size < 0:
            self._ended = self._end_of_stream()
            if not frames:
                raise self._ended
        return drained

    def last_words(self) -> PostgresError | None:
        """What the server said before it ended the session, if that is here. Frames before it are lost.

        A reader that pauses leaves them in the socket, and the reason behind them.
        """
        if self._closed or self._ended is not None:
            return self._ended
        size = 1
        try:
            while size > 0:
                self._pgconn.consume_input()
                size = self._pgconn.get_copy_data(1)[0]
                while size > 0 and (more := self._pgconn.get_copy_data(1)[0]) != 0:
                    size = more
        except psycopg.Error:
            return None
        return self._end_of_stream() if size < 0 else None

    def _end_of_stream(self) -> PostgresError:
        """COPY has ended: the result behind it holds the server's reason."""
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            # No reason is one, too: a server that shuts down lets its walsenders end in peace.
            return LineLost("the server ended the stream without an error: it is shutting down")
        error = error_from_result(result, self._connection.info.encoding)
        return stream_error(error, plugin=self._plugin)

    async def _wait_readable(self) -> None:
        if self._closed:
            raise LineLost("the replication connection was closed")
        socket = self._pgconn.socket
        future = self._readable = self._loop.create_future()
        self._loop.add_reader(socket, _resolve, future)
        try:
            await future
        finally:
            self._readable = None
            if not self._closed:
                self._loop.remove_reader(socket)

    def _flush(self) -> None:
        pending = self._pgconn.flush()
        if pending and not self._writing:
            self._writing = True
            self._loop.add_writer(self._pgconn.socket, self._flush_more)
        elif not pending and self._writing:
            self._writing = False
            self._loop.remove_writer(self._pgconn.socket)

    def _flush_more(self) -> None:
        try:
            self._flush()
        except psycopg.Error:
            # The reader meets the same broken socket and reports it.
            self._writing = False
            self._loop.remove_writer(self._pgconn.socket)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
