"""An HTTP server that does as little as possible: one function answers, in a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

Answer = Callable[[bytes, bytes], bytes]
"""A request's head, in small letters, and its body; the body of the answer."""

_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:head_end]).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            end = head_end + 4 + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[head_end + 4 : end])
            del self._buffer[:end]
            answer = self._answer(head, body)
            self._transport.write(_HEAD % len(answer) + answer)


async def serve(answer: Answer) -> None:
    """Listen on any port, print it, and end with the parent."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answer), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    # The parent's end of the pipe closes however it ends.
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    server.close()


class AnsweringProcess:
    """A module that serves, as a child process."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command: Sequence[str] = (sys.executable, "-m", module, *arguments)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it: from now on connections are refused."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
