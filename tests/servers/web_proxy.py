"""A web proxy: CONNECT tunnels and forwarded requests, slow or trickling if asked for."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.servers.loop_thread import LoopThread, bind

_CHUNK = 65536
_SELF_SIGNED = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
)


class WebProxy:
    """Speaks for clients; control attributes may be set from any thread.

    `tunnel_delay_s`: before a CONNECT is answered. `trickle_s`: between two bytes of an answer.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.tunnel_delay_s = 0.0
        self.trickle_s = 0.0
        self.refuse_tunnels = False
        self.heads: list[bytes] = []
        """The head of every request to the proxy itself."""
        self._serving: set[asyncio.Task[None] | None] = set()
        """While neither side's socket is watched, nothing else holds a connection's task."""
        self._tls = tls
        self._thread = LoopThread("web-proxy")
        self._socket = bind()
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        self._server = self._thread.run(self._listen())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.call(self._server.close)
        self._thread.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, sock=self._socket, ssl=self._tls)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(task := asyncio.current_task())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            method, target, _ = head.split(b" ", 2)
            if method == b"CONNECT":
                await self._tunnel(target.decode(), reader, writer)
            else:
                await self._forward(head, target.decode(), reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()
            self._serving.discard(task)

    async def _tunnel(self, place: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.tunnel_delay_s)
        if self.refuse_tunnels:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return
        host, _, port = place.rpartition(":")
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\nVia: us\r\n\r\n")
        await self._both_ways(reader, writer, up_reader, up_writer)

    async def _forward(
        self, head: bytes, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parts = urlsplit(target)
        up_reader, up_writer = await asyncio.open_connection(parts.hostname, parts.port)
        up_writer.write(head.replace(target.encode(), (parts.path or "/").encode(), 1))
        await self._both_ways(reader, writer, up_reader, up_writer)

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        up = asyncio.create_task(_copy(reader, up_writer))
        try:
            while data := await up_reader.read(1 if self.trickle_s else _CHUNK):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(self.trickle_s)
        finally:
            up.cancel()
            up_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()


def make_certificate(directory: Path) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key, in one file."""
    path = directory / "server.pem"
    subprocess.run(
        [*_SELF_SIGNED, "-keyout", str(path), "-out", str(path.with_suffix(".crt"))],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + path.with_suffix(".crt").read_text())
    return path
