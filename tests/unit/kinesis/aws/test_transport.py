"""Transport against real servers: what is asked when, and what bounds a request."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSRequest

from penstock.kinesis.aws.transport import HttpAnswer, Transport
from tests.servers.web_proxy import WebProxy, make_certificate

CONNECT_S = 2.0
READ_S = 0.5


class Server(ThreadingHTTPServer):
    """Answers everything; the TLS handshake of a connection is as slow as `handshake_s` says."""

    daemon_threads = True

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tls = tls
        self.handshake_s = 0.0
        self.received_at: list[float] = []

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.server_port}/"

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is not None:
            time.sleep(self.handshake_s)
            with contextlib.suppress(OSError), self.tls.wrap_socket(request, server_side=True) as wrapped:
                super().finish_request(wrapped, client_address)
        else:
            super().finish_request(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received_at.append(time.monotonic())
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        """Silence: the default writes to stderr."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture(params=["http", "https"])
def server(request: pytest.FixtureRequest, certificate: Path) -> Iterator[Server]:
    with Server(server_side(certificate) if request.param == "https" else None) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def post(url: str) -> AWSRequest:
    return AWSRequest(method="POST", url=url, data=b"body", headers={"X": "y"})


def transport(server: Server, certificate: Path, proxy: str | None = None) -> Transport:
    return Transport(
        server.url,
        connect_timeout_s=CONNECT_S,
        read_timeout_s=READ_S,
        ca_bundle=str(certificate),
        proxy=proxy,
    )


def test_what_may_not_be_sent_is_not_sent(server: Server, certificate: Path) -> None:
    way = transport(server, certificate)

    assert way.send(post(server.url), may_send=lambda: False) is None
    assert way.send(post(server.url), may_send=lambda: True) == HttpAnswer(200, "", b"{}")

    assert len(server.received_at) == 1
    way.close()


@pytest.mark.parametrize("server", ["https"], indirect=True)
def test_the_question_comes_when_the_connection_is_up(server: Server, certificate: Path) -> None:
    """A handshake may take longer than leadership lasts."""
    server.handshake_s = 0.5
    way, asked_at, started = transport(server, certificate), [], time.monotonic()

    def may_send() -> bool:
        asked_at.append(time.monotonic())
        return True

    way.send(post(server.url), may_send=may_send)

    (asked,) = asked_at
    assert asked - started >= server.handshake_s
    assert 0 <= server.received_at[0] - asked < 0.3
    way.close()


def test_a_proxy_of_the_environment_stands_between(server: Server, certificate: Path) -> None:
    with WebProxy() as proxy:
        way = transport(server, certificate, f"http://us%3Aer:pass@127.0.0.1:{proxy.port}")
        assert way.send(post(server.url)) == way.send(post(server.url)) == HttpAnswer(200, "", b"{}")
        way.close()

    (head,) = proxy.heads
    assert head.startswith(b"CONNECT 127.0.0.1" if server.tls else f"POST {server.url}".encode())
    assert b"Proxy-Authorization: Basic dXM6ZXI6cGFzcw==" in head


@pytest.mark.parametrize("server", ["https"], indirect=True)
def test_a_proxy_behind_tls_of_its_own(server: Server, certificate: Path) -> None:
    with WebProxy(tls=server_side(certificate)) as proxy:
        way = transport(server, certificate, f"https://127.0.0.1:{proxy.port}")
        assert way.send(post(server.url)) == way.send(post(server.url)) == HttpAnswer(200, "", b"{}")
        way.close()


def test_a_trickling_proxy_does_not_stretch_the_deadline(server: Server, certificate: Path) -> None:
    with WebProxy() as proxy:
        way = transport(server, certificate, f"127.0.0.1:{proxy.port}")
        assert way.send(post(server.url)) is not None
        proxy.trickle_s = READ_S / 5
        way.close()
        started = time.monotonic()
        with pytest.raises(OSError, match=r"time|deadline"):
            # Each byte comes well within a socket's time-out; all of them take many seconds.
            way.send(post(server.url))
        limit_s = READ_S if server.tls is None else CONNECT_S
        assert time.monotonic() - started < limit_s + 1.0
        way.close()


@pytest.mark.parametrize("server", ["https"], indirect=True)
def test_a_proxy_that_refuses_or_dawdles(server: Server, certificate: Path) -> None:
    with WebProxy() as proxy:
        proxy.refuse_tunnels = True
        way = transport(server, certificate, f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(HTTPException, match=r"refuses a tunnel to 127\.0\.0\.1:.*: 407"):
            way.send(post(server.url))
        proxy.tunnel_delay_s = 20.0
        hasty = Transport(
            server.url,
            connect_timeout_s=0.3,
            read_timeout_s=READ_S,
            ca_bundle=str(certificate),
            proxy=f"http://127.0.0.1:{proxy.port}",
        )
        with pytest.raises(TimeoutError):
            hasty.send(post(server.url))
    assert server.received_at == []
