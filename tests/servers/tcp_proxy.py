"""A TCP proxy that can break the line between Penstock and Postgres."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Self

from tests.servers.loop_thread import LoopThread, bind, reset

_CHUNK = 65536


@dataclass(eq=False)
class _Line:
    """One client's way to the target: its sockets, and the task that moves its bytes."""

    ends: list[asyncio.StreamWriter]
    mover: asyncio.Task[None]


class TcpProxy:
    """Passes bytes both ways until told to cut, freeze or refuse; control calls may come from any thread.

    A frozen line is half-open: both peers keep their sockets and hear nothing. One thing differs from a real
    partition: the peers' kernels still acknowledge what they get, so `tcp_user_timeout` and TCP keepalives
    see a healthy line.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = target_host, target_port
        self._thread = LoopThread("tcp-proxy")
        self._flowing = self._thread.call(asyncio.Event)
        self._lines: set[_Line] = set()
        self._server: asyncio.Server | None = None
        self._socket = bind()
        self.port: int = self._socket.getsockname()[1]
        self.accepted = 0
        """Connections taken so far."""
        self.cuts = 0
        """Connections that `cut()` or `refuse()` has reset."""
        self.bytes_up = 0
        """Bytes passed to the target."""
        self.bytes_down = 0
        """Bytes passed back to clients."""
        self.freeze_after: int | None = None
        """Freeze, once, when so many bytes were passed back."""

    def __enter__(self) -> Self:
        self.thaw()
        self.accept()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.refuse()
        self._socket.close()
        self._thread.close()

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return self._thread.call(lambda: len(self._lines))

    def cut(self) -> None:
        """Reset every connection now; new ones are taken."""
        self._thread.call(self._reset_all)

    def freeze(self) -> None:
        """Stop moving bytes, in both directions; new connections are taken and then hang."""
        self._thread.call(self._flowing.clear)

    def thaw(self) -> None:
        """Move bytes again, those that waited first."""
        self._thread.call(self._flowing.set)

    def refuse(self) -> None:
        """Reset every connection and refuse new ones."""
        self._thread.call(self._stop_listening)

    def accept(self) -> None:
        """Take connections (again), on the same port."""
        self._thread.run(self._listen())

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._take, sock=self._socket, limit=_CHUNK)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._socket = bind(self.port)
        self._reset_all()

    def _reset_all(self) -> None:
        self.cuts += len(self._lines)
        for line in self._lines:
            for end in line.ends:
                reset(end.transport)
            line.mover.cancel()
        self._lines.clear()

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        ends = [writer]
        line = _Line(ends, asyncio.get_running_loop().create_task(self._move(reader, ends)))
        self._lines.add(line)
        line.mover.add_done_callback(lambda _: self._lines.discard(line))

    async def _move(self, reader: asyncio.StreamReader, ends: list[asyncio.StreamWriter]) -> None:
        try:
            await self._flowing.wait()
            back, forth = await asyncio.open_connection(*self._target, limit=_CHUNK)
            ends.append(forth)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, forth, up=True))
                pumps.create_task(self._pump(back, ends[0], up=False))
        except* OSError:
            for end in ends:
                reset(end.transport)
        finally:
            for end in ends:
                end.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, up: bool) -> None:
        """Move bytes one way until the source ends; a frozen line passes on neither bytes nor ends."""
        while True:
            try:
                chunk = await source.read(_CHUNK)
            except OSError:
                await self._flowing.wait()
                raise
            await self._flowing.wait()
            if not chunk:
                break
            # Counted first: who has got them may ask.
            if up:
                self.bytes_up += len(chunk)
            else:
                self.bytes_down += len(chunk)
            sink.write(chunk)
            await sink.drain()
            if not up and self.freeze_after is not None and self.bytes_down >= self.freeze_after:
                self.freeze_after = None
                self._flowing.clear()
        with contextlib.suppress(OSError):
            sink.write_eof()
