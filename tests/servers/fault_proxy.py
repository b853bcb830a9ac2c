"""An HTTP proxy before the Kinesis emulator: it keeps Kinesis' rules, and breaks what it is told to break."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Self

import aiohttp
from aiohttp import web

from penstock.local.kinesis import SECRET_ACCESS_KEY
from tests.servers.exchange import PUT_RECORDS, Call, Reply, amend_summary, forward, refuse
from tests.servers.faults import UNAVAILABLE, Fault, Faults
from tests.servers.kinesis_rules import Refusal, check_limits, check_signature
from tests.servers.loop_thread import LoopThread, bind, reset
from tests.servers.request_log import LoggedRequest, RequestLog

_CONTENT_TYPE = "application/x-amz-json-1.1"


class FaultProxy:
    """Forwards Kinesis' JSON calls to `upstream_url`; every method may be called from any thread.

    A strict proxy (the default) answers a request that breaks a documented limit, or that is not signed with
    `secret_key`, as Kinesis does, and notes it in `log.violations`. In an async test, wait on the log through
    `asyncio.to_thread`.
    """

    def __init__(
        self,
        upstream_url: str,
        *,
        seed: int = 0,
        strict: bool = True,
        max_record_bytes: int = 1024 * 1024,
        secret_key: str = SECRET_ACCESS_KEY,
    ) -> None:
        self.log = RequestLog()
        self._upstream_url = upstream_url
        self._strict = strict
        self._max_record_bytes = max_record_bytes
        self._secret_key = secret_key
        self._faults = Faults(seed)
        self._faults_lock = threading.Lock()
        self._bugs: list[Exception] = []
        self._thread = LoopThread("fault-proxy")
        self._passing = self._thread.call(asyncio.Event)
        self._socket = bind()
        self._port: int = self._socket.getsockname()[1]
        self._http: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._session: aiohttp.ClientSession | None = None

    def __enter__(self) -> Self:
        self.release()
        self.restore()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()  # a test that failed during a hold must not wait for its handlers
        self.outage()
        self._socket.close()
        self._thread.run(self._close())
        self._thread.close()
        if self._bugs:
            raise self._bugs[0]

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self._port}"

    def inject(
        self,
        fault: Fault,
        *,
        times: int | None = None,
        probability: float = 1.0,
        operation: str | None = PUT_RECORDS,
        after: int = 0,
    ) -> None:
        """Switch a fault on for the next `times` requests of an operation (None: any), or until `clear()`.

        `after`: so many of these requests are let pass first.
        """
        with self._faults_lock:
            self._faults.switch_on(
                fault, times=times, probability=probability, operation=operation, after=after
            )

    def clear(self, fault: Fault | None = None) -> None:
        """Switch one fault off, or all."""
        with self._faults_lock:
            self._faults.switch_off(fault)

    def hold(self) -> None:
        """Read requests, and forward them only at `release()`, even if the client has left by then."""
        self._thread.call(self._passing.clear)

    def release(self) -> None:
        """Forward what was held, and hold no more."""
        self._thread.call(self._passing.set)

    def outage(self) -> None:
        """Reset every connection and refuse new ones."""
        self._thread.call(self._stop_listening)

    def restore(self) -> None:
        """Take connections (again), on the same port."""
        self._thread.run(self._listen())

    async def _listen(self) -> None:
        if self._session is None:
            # A kept connection that the emulator closes just then would look like a fault.
            connector = aiohttp.TCPConnector(force_close=True)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=120)
            )
            self._http = web.Server(self._handle, access_log=None)
        if self._listener is None and self._http is not None:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(self._http, sock=self._socket)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._socket = bind(self._port)
        for connection in self._http.connections if self._http is not None else ():
            if connection.transport is not None:
                reset(connection.transport)

    async def _close(self) -> None:
        if self._http is not None:
            await self._http.shutdown(0)
        if self._session is not None:
            await self._session.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        arrived_at = time.monotonic()
        body = await request.content.read()
        call = Call.read({name.lower(): value for name, value in request.headers.items()}, body)
        self.log.note_arrival()
        try:
            reply = await self._exchange(request, call)
        except Exception as bug:
            # A defect of ours must not pass for one of the faults that a test asked for.
            self._bugs.append(bug)
            raise
        if request.transport is None or request.transport.is_closing():
            reply = reply.unheard()
        done_at = time.monotonic()
        self.log.note_done(LoggedRequest(call.operation, arrived_at, done_at, reply.outcome, reply.records))
        return web.Response(status=reply.status, body=reply.body, content_type=_CONTENT_TYPE)

    async def _exchange(self, request: web.BaseRequest, call: Call) -> Reply:
        refusal = self._check(request, call) if self._strict else None
        if refusal is not None:
            self.log.note_violation(refusal)
            return refuse(call, refusal)
        with self._faults_lock:
            plan = self._faults.plan(call.operation, call.records)
        await asyncio.sleep(plan.delay_before_s)
        await self._wait_while_held(call.operation)
        if plan.cut_before:
            _cut(request)
            return refuse(call, UNAVAILABLE)  # nobody hears it
        if plan.refusal is not None:
            return refuse(call, plan.refusal)
        assert self._session is not None
        reply = await forward(self._session, self._upstream_url, call, plan.failing)
        reply = amend_summary(reply, plan.summary)
        await asyncio.sleep(plan.delay_after_s)
        if plan.cut_after:
            _cut(request)
        return reply

    def _check(self, request: web.BaseRequest, call: Call) -> Refusal | None:
        return (
            check_signature(request.method, request.path, call.headers, call.body, self._secret_key)
            or call.unreadable
            or (check_limits(call.records, self._max_record_bytes) if call.operation == PUT_RECORDS else None)
        )

    async def _wait_while_held(self, operation: str) -> None:
        if self._passing.is_set():
            return
        self.log.note_held(operation, 1)
        try:
            await self._passing.wait()
        finally:
            self.log.note_held(operation, -1)


def _cut(request: web.BaseRequest) -> None:
    if request.transport is not None:
        reset(request.transport)
