"""The ops port, asked as browsers, probes and scrapers do."""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDictProxy

from penstock.ops import access, audience, server
from penstock.ops.access import Access
from penstock.ops.server import OpsServer
from penstock.ops.status_command import NoAnswer, ask
from penstock.postgres.leader.freshness import Freshness
from penstock.status.board import StatusBoard
from penstock.status.health import Fault, Health
from penstock.status.metrics import CaptureMetrics
from penstock.status.model import CaptureReading

TOKEN = "correct-horse-battery-staple"
PROTECTED = ("/", "/page.js", "/events", "/status", "/metrics", "/nothing")


class Port:
    """A service's ops port."""

    def __init__(self, access: Access) -> None:
        self.health = Health()
        self.board = StatusBoard("capture", self.health)
        self.ops = OpsServer(self.health, self.board.read, CaptureMetrics().exposition, access)
        self.url = ""

    def lead(self) -> None:
        now = time.monotonic()
        self.health.start_streaming(Freshness(limit_s=600, now=now), now)
        self.board.lead(lambda: CaptureReading(0.1, 0x200, 0x100, 1, 0, 0, 7))


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    # Only what a browser would keep, too: cookies of IP addresses.
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.CookieJar(unsafe=True), auto_decompress=False
    ) as session:
        yield session


@pytest.fixture
async def open_port() -> AsyncIterator[Port]:
    port = Port(Access())
    port.url = await port.ops.start("127.0.0.1", 0)
    yield port
    await port.ops.stop()


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Port]:
    """One that needs the token."""
    monkeypatch.setattr(server, "_WRONG_TOKEN_S", 0.05)
    port = Port(Access(TOKEN))
    port.url = await port.ops.start("127.0.0.1", 0)
    yield port
    await port.ops.stop()


async def answer(
    client: aiohttp.ClientSession, url: str, **headers: str
) -> tuple[int, CIMultiDictProxy[str], str]:
    async with client.get(url, headers=headers) as got:
        return got.status, got.headers, (await got.read()).decode()


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/", "/page.js", "/page.css", "/status", "/nothing"])
async def test_every_answer_has_security_headers(
    client: aiohttp.ClientSession, open_port: Port, port: Port, path: str
) -> None:
    for each in (open_port, port):
        _, headers, _ = await answer(client, each.url + path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"


async def test_no_inline_script_or_style(client: aiohttp.ClientSession, open_port: Port) -> None:
    _, _, page = await answer(client, open_port.url)
    assert re.findall(r"<script(?! src=)|<style|style=|\son\w+=|https?://", page) == []


@pytest.mark.parametrize("path", PROTECTED)
async def test_nothing_is_told_without_the_token(
    client: aiohttp.ClientSession, port: Port, path: str
) -> None:
    port.lead()
    status, headers, text = await answer(client, port.url + path)
    assert status == 401
    assert "Set-Cookie" not in headers
    assert "0/100" not in text
    assert "streaming" not in text


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize("given", ["Bearer wrong-token-wrong-token", "Basic eDp5", "Bearer", TOKEN])
async def test_a_wrong_token_is_refused(
    client: aiohttp.ClientSession, port: Port, path: str, given: str
) -> None:
    started = time.monotonic()
    status, _, _ = await answer(client, port.url + path, Authorization=given)
    assert status == 401
    assert time.monotonic() - started >= 0.05


async def test_no_token_in_an_address(client: aiohttp.ClientSession, port: Port) -> None:
    for query in (f"token={TOKEN}", f"access_token={TOKEN}", f"OPS_TOKEN={TOKEN}"):
        assert (await answer(client, f"{port.url}/status?{query}"))[0] == 401


@pytest.mark.parametrize("path", ["/", "/page.js", "/status", "/metrics"])
async def test_the_token_opens(client: aiohttp.ClientSession, port: Port, path: str) -> None:
    assert (await answer(client, port.url + path, Authorization=f"Bearer {TOKEN}"))[0] == 200


async def test_probes_need_none_and_metrics_only_unless_opened(
    client: aiohttp.ClientSession, port: Port
) -> None:
    port.lead()
    assert [(await answer(client, port.url + path))[0] for path in ("/livez", "/readyz")] == [200, 200]
    opened = Port(Access(TOKEN, metrics_open=True))
    url = await opened.ops.start("127.0.0.1", 0)
    assert (await answer(client, f"{url}/metrics"))[0] == 200
    assert (await answer(client, f"{url}/status"))[0] == 401
    await opened.ops.stop()


async def test_many_wrong_tokens_at_once_are_sent_away(
    client: aiohttp.ClientSession, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_WRONG_TOKEN_S", 0.5)
    asked = [answer(client, f"{port.url}/status", Authorization="Bearer wrong") for _ in range(30)]
    right = answer(client, f"{port.url}/status", Authorization=f"Bearer {TOKEN}")
    statuses = [got[0] for got in await asyncio.gather(*asked, right)]
    assert statuses[-1] == 200, "who has it is never locked out"
    assert set(statuses[:-1]) == {401, 429}
    assert statuses.count(401) == 20


async def login(
    client: aiohttp.ClientSession, port: Port, token: str, **headers: str
) -> aiohttp.ClientResponse:
    data = {"token": token}
    return await client.post(f"{port.url}/login", data=data, headers=headers, allow_redirects=False)


async def test_a_browser_logs_in_once(client: aiohttp.ClientSession, port: Port) -> None:
    _, _, form = await answer(client, port.url)
    assert 'action="/login"' in form
    assert 'type="password"' in form
    there = await login(client, port, f" {TOKEN}\n")
    assert (there.status, there.headers["Location"]) == (303, "/")
    cookie = there.headers["Set-Cookie"]
    assert all(flag in cookie for flag in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"))
    assert "Secure" not in cookie
    assert TOKEN not in cookie
    assert (await answer(client, f"{port.url}/status"))[0] == 200
    out = await client.post(f"{port.url}/logout", allow_redirects=False)
    assert out.status == 303
    assert (await answer(client, f"{port.url}/status"))[0] == 401


async def test_behind_tls_the_cookie_stays_there(client: aiohttp.ClientSession, port: Port) -> None:
    there = await login(client, port, TOKEN, **{"X-Forwarded-Proto": "https"})
    assert "Secure" in there.headers["Set-Cookie"]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], "ü"])
async def test_a_wrong_login_is_said(client: aiohttp.ClientSession, port: Port, token: str) -> None:
    refused = await login(client, port, token)
    assert refused.status == 401
    assert "Set-Cookie" not in refused.headers
    text = await refused.text()
    assert '<p id="wrong">' in text
    assert '<p id="wrong" hidden>' in (await answer(client, port.url))[2]


async def test_a_web_page_whose_name_leads_here_reads_nothing(
    client: aiohttp.ClientSession, open_port: Port
) -> None:
    for path in ("/", "/status", "/metrics", "/events"):
        status, _, text = await answer(client, open_port.url + path, Host="evil.example:8088")
        assert status == 421
        assert "slot" not in text
    assert (await answer(client, f"{open_port.url}/livez", Host="evil.example"))[0] == 200


async def test_status_command_sends_the_token(port: Port) -> None:
    port.lead()
    assert (await asyncio.to_thread(ask, port.url, TOKEN)).phase == "streaming"
    for wrong in (None, "wrong"):
        with pytest.raises(NoAnswer, match=r"wants another OPS_TOKEN\. Fix: set OPS_TOKEN"):
            await asyncio.to_thread(ask, port.url, wrong)


class Page:
    """Reads /events as a browser does."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._text = ""

    async def event(self) -> tuple[str, dict[str, Any]]:
        while "\n\n" not in self._text:
            chunk = await asyncio.wait_for(self._response.content.readany(), 5)
            if not chunk:
                raise EOFError
            encoded = self._response.headers.get("Content-Encoding") == "gzip"
            self._text += (self._inflate.decompress(chunk) if encoded else chunk).decode()
        event, _, self._text = self._text.partition("\n\n")
        name, data = event.split("\n")
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    async def to_the_end(self) -> None:
        while True:
            await self.event()


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_page_is_told_all_and_then_what_is_new(
    client: aiohttp.ClientSession, open_port: Port, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience, "_TICK_S", 0.05)
    open_port.lead()
    async with client.get(f"{open_port.url}/events", headers={"Accept-Encoding": encoding}) as response:
        page = Page(response)
        name, told = await page.event()
        assert name == "all"
        assert (told["headline"], told["login"]) == ("streaming, ready", False)
        assert told["facts"]["frontier"] == "0/100, 256 B behind what was received (0/200)"
        open_port.health.set_fault(Fault.SINK, "it is down")
        while "headline" not in told or told["headline"] == "streaming, ready":
            name, told = await page.event()
        assert (name, told["ready"]) == ("news", False)
        assert told["troubles"][0][0] == "sink: it is down"
        assert "Kinesis can be reached" in told["troubles"][0][1]


async def test_an_open_page_does_not_hold_up_the_end(client: aiohttp.ClientSession, open_port: Port) -> None:
    async with client.get(f"{open_port.url}/events", headers={"Accept-Encoding": "identity"}) as response:
        page = Page(response)
        await page.event()
        started = time.monotonic()
        await open_port.ops.stop()
        assert time.monotonic() - started < 0.4
        with pytest.raises((EOFError, aiohttp.ClientError)):
            await page.to_the_end()


async def test_an_open_page_ends_with_its_session(
    client: aiohttp.ClientSession, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience, "_TICK_S", 0.05)
    monkeypatch.setattr(access, "SESSION_S", 2)
    await login(client, port, TOKEN)
    logged_in = time.time()
    shows = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        client.get(f"{port.url}/events") as seen,
        client.get(f"{port.url}/events", headers=shows) as shown,
    ):
        other = Page(shown)
        with pytest.raises(EOFError):
            async with asyncio.timeout(10):
                await Page(seen).to_the_end()
        assert time.time() - logged_in > 0.9
        assert (await answer(client, f"{port.url}/events"))[0] == 401
        while (await other.event())[1]["at"] < time.time() - 1:
            pass
        assert (await other.event())[0] == "news", "who shows the token itself has no session"


async def test_so_many_pages_and_no_more(
    client: aiohttp.ClientSession, open_port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audience, "MOST_PAGES", 2)
    first = await client.get(f"{open_port.url}/events")
    second = await client.get(f"{open_port.url}/events")
    assert (await client.get(f"{open_port.url}/events")).status == 503
    first.close()
    second.close()
