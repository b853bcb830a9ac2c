"""The ops port: /livez, /readyz, /metrics, /status."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import msgspec
from aiohttp import web

from penstock.clock import awake_or_asleep
from penstock.errors import PenstockError
from penstock.status.health import Health
from penstock.status.model import Status


class OpsPortTaken(PenstockError):
    """The ops port can't be bound."""


def check_port(host: str, port: int) -> None:
    """OpsPortTaken if somebody else listens there. Whatever else may be wrong shows when we do."""
    try:
        for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            socket.create_server(address[:2], family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _taken(host, port, error) from error


class OpsServer:
    """Answers probes and scrapes on the process's own event loop: a loop that hangs fails its liveness."""

    def __init__(
        self, health: Health, status: Callable[[], Status], exposition: Callable[[Status], bytes]
    ) -> None:
        """`exposition` makes a status into the text for Prometheus."""
        self._health = health
        self._status = status
        self._exposition = exposition
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; returns the URL. OpsPortTaken names the variables if that isn't possible."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/status", self._tell_status),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.stop()
            raise _taken(host, port, error) from error
        bound_port = self._runner.addresses[0][1]
        return f"http://{host}:{bound_port}"

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True, "phase": self._health.phase})

    async def _readyz(self, request: web.Request) -> web.Response:
        readiness = self._health.readiness(awake_or_asleep())
        return web.json_response(readiness._asdict(), status=200 if readiness.ready else 503)

    async def _tell_status(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._status()), content_type="application/json")

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._exposition(self._status()),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def _taken(host: str, port: int, error: OSError) -> OpsPortTaken:
    return OpsPortTaken(
        f"OPS_HOST='{host}', OPS_PORT='{port}': can't listen there ({error.strerror});"
        " set OPS_PORT to a free port"
    )
