"""The ops port: /livez, /readyz, /metrics, /status, and the page."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from importlib.resources import files
from typing import Final

import msgspec
import structlog
from aiohttp import web

from penstock.clock import awake_or_asleep
from penstock.errors import PenstockError
from penstock.ops.access import LOGIN, SESSION_S, Access
from penstock.ops.address import url_of
from penstock.ops.audience import Audience, Squeezer
from penstock.status.health import Health
from penstock.status.model import Status

_SECURITY_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_MOST_BODY_BYTES: Final = 16 * 1024
_WRONG_TOKEN_S: Final = 0.5
"""Who gives a wrong token waits so long for the answer."""
_MOST_WRONG: Final = 20
_END_S: Final = 0.5
_WRONG_MARK: Final = b'<p id="wrong" hidden>'

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_log = structlog.get_logger()


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
        self,
        health: Health,
        status: Callable[[], Status],
        exposition: Callable[[Status], bytes],
        access: Access | None = None,
    ) -> None:
        """`exposition` makes a status into the text for Prometheus."""
        self._health = health
        self._status = status
        self._exposition = exposition
        self._access = access or Access()
        self._audience = Audience(status, has_login=self._access.needs_token)
        self._telling: asyncio.Task[None] | None = None
        self._wrong = 0
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; returns the URL. OpsPortTaken names the variables if that isn't possible."""
        app = web.Application(middlewares=[self._guard], client_max_size=_MOST_BODY_BYTES)
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/status", self._tell_status),
                web.get("/", self._page),
                web.get("/page.css", self._page),
                web.get("/page.js", self._page),
                web.get("/events", self._events),
                web.post(LOGIN, self._login),
                web.post("/logout", self._logout),
            ]
        )
        app.on_response_prepare.append(_secure)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.stop()
            raise _taken(host, port, error) from error
        self._telling = asyncio.create_task(self._audience.run(), name="page")
        bound_port = self._runner.addresses[0][1]
        return url_of(host, bound_port)

    async def stop(self) -> None:
        """Stop listening, and disconnect open pages."""
        if self._telling is not None:
            self._telling.cancel()
        self._audience.dismiss()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        access = self._access
        if access.is_for_all(request.path):
            return await handler(request)
        if not access.knows_host(request.host):
            return web.Response(status=421, text="this port answers to localhost and 127.0.0.1 only\n")
        if not access.needs_token or access.is_for_login(request.path) or self._has_cookie(request):
            return await handler(request)
        given = request.headers.get("Authorization")
        if given is not None and access.bears_token(given):
            return await handler(request)
        if given is not None:
            return await self._refuse(request)
        return _login_page(wrong=False) if request.path == "/" else _unauthorized()

    def _has_cookie(self, request: web.Request) -> bool:
        value = request.cookies.get(self._access.cookie_name)
        return value is not None and self._access.is_cookie(value, time.time())

    def _ends_at(self, request: web.Request) -> float:
        """Until when it may be answered, in Unix seconds: who shows the token itself has no session."""
        access, value = self._access, request.cookies.get(self._access.cookie_name)
        ends_at = None if value is None else access.cookie_ends_at(value)
        is_shown = access.bears_token(request.headers.get("Authorization", ""))
        return math.inf if ends_at is None or is_shown else ends_at

    async def _refuse(self, request: web.Request) -> web.Response:
        """A wrong token: said in the log, and after a while to whoever gave it."""
        if self._wrong >= _MOST_WRONG:
            return web.Response(status=429, text="too many wrong tokens\n")
        self._wrong += 1
        try:
            _log.warning("wrong_ops_token", remote=request.remote, path=request.path)
            await asyncio.sleep(_WRONG_TOKEN_S)
        finally:
            self._wrong -= 1
        return _login_page(wrong=True) if request.path == LOGIN else _unauthorized()

    async def _login(self, request: web.Request) -> web.Response:
        given = (await request.post()).get("token")
        if self._access.needs_token and not (isinstance(given, str) and self._access.is_token(given.strip())):
            return await self._refuse(request)
        there = web.Response(status=303, headers={"Location": "/"})
        if self._access.needs_token:
            there.set_cookie(
                self._access.cookie_name,
                self._access.new_cookie(time.time()),
                max_age=SESSION_S,
                httponly=True,
                samesite="Strict",
                secure=request.headers.get("X-Forwarded-Proto") == "https",
            )
        return there

    async def _logout(self, request: web.Request) -> web.Response:
        there = web.Response(status=303, headers={"Location": "/"})
        there.del_cookie(self._access.cookie_name)
        return there

    async def _page(self, request: web.Request) -> web.Response:
        return _file({"/": "index.html"}.get(request.path, request.path.strip("/")))

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._audience.is_full:
            return web.Response(status=503, text="too many pages are open\n")
        squeezer = Squeezer() if "gzip" in request.headers.get("Accept-Encoding", "") else None
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        if squeezer is not None:
            answer.headers["Content-Encoding"] = "gzip"
        await answer.prepare(request)
        with suppress(ConnectionError):
            async with aclosing(self._audience.listen(self._ends_at(request))) as events:
                async for event in events:
                    await answer.write(event if squeezer is None else squeezer.squeeze(event))
        return answer

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


async def _secure(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_SECURITY_HEADERS)


def _unauthorized() -> web.Response:
    return web.Response(
        status=401,
        text="OPS_TOKEN is missing or wrong; send it as Authorization: Bearer\n",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _login_page(*, wrong: bool) -> web.Response:
    page = _file("login.html")
    page.set_status(401)
    if wrong and isinstance(page.body, bytes):
        page.body = page.body.replace(_WRONG_MARK, b'<p id="wrong">')
    return page


def _file(name: str) -> web.Response:
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript"}[name.rpartition(".")[2]]
    body = (files("penstock.ops") / "page" / name).read_bytes()
    return web.Response(body=body, content_type=kind, charset="utf-8")


def _taken(host: str, port: int, error: OSError) -> OpsPortTaken:
    return OpsPortTaken(
        f"OPS_HOST='{host}', OPS_PORT='{port}': can't listen there ({error.strerror});"
        " set OPS_PORT to a free port"
    )
