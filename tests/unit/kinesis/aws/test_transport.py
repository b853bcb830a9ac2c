"""Transport against real servers: what is asked when, and what bounds a request."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
from botocore.awsrequest import AWSRequest

from penstock.kinesis.aws.transport import HttpAnswer, Transport, open_transport
from penstock.settings.errors import SettingsError
from tests.servers.loop_thread import bind
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


class StuckServer:
    """Takes one connection, and reads nothing of its request before it is told to.

    It speaks for an endpoint with or without TLS, and for a proxy that tunnels.
    """

    def __init__(self, tls: ssl.SSLContext | None, *, tunnels: bool) -> None:
        self._tls = tls
        self._tunnels = tunnels
        self._socket = bind()
        # Small: most of a request then waits in the sender's kernel.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self.goes_on = threading.Event()
        self.received = 0
        self._thread = threading.Thread(target=self._serve, name="stuck-server")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.read_on()
        self._socket.close()

    def read_on(self) -> int:
        """Read what is left, until the connection ends; returns how many bytes of a request have come."""
        self.goes_on.set()
        self._thread.join()
        return self.received

    def _serve(self) -> None:
        line, _ = self._socket.accept()
        line.settimeout(20)
        if self._tunnels:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += line.recv(1)
            line.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if self._tls is not None:
            line = self._tls.wrap_socket(line, server_side=True)
        with line, contextlib.suppress(OSError):
            assert self.goes_on.wait(20)
            while data := line.recv(65536):
                self.received += len(data)


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


@pytest.mark.parametrize(
    ("variable", "proxy", "shown"),
    [
        ("HTTPS_PROXY", "http://:3128", "http://:3128"),
        ("https_proxy", "http://proxy:none", "http://proxy:none"),
        ("https_proxy", "proxy:70000", "proxy:70000"),
        ("https_proxy", "http://[::1", "http://[::1"),
        ("HTTPS_PROXY", "socks5://proxy:1080", "socks5://proxy:1080"),
        ("HTTPS_PROXY", f"http://{'a' * 64}:1", f"http://{'a' * 64}:1"),
        ("HTTPS_PROXY", "http://user:secr@t@:3128", "…@:3128"),
    ],
)
def test_what_can_be_no_proxy_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str, shown: str
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, proxy)
    with pytest.raises(SettingsError) as raised:
        open_transport("https://kinesis.test/", connect_timeout_s=1, read_timeout_s=1, ca_bundle=None)
    assert raised.value.lines == [f"{variable}='{shown}': must be http://host:port or https://host:port"]


@pytest.mark.parametrize("proxy", ["proxy:3128", "http://user:p@proxy", "https://[::1]:3128/"])
def test_what_can_be_a_proxy_is_taken(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    for name in ("https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    open_transport("https://kinesis.test/", connect_timeout_s=1, read_timeout_s=1, ca_bundle=None).close()


def test_a_host_that_can_have_no_name_is_a_failure_of_the_network() -> None:
    way = Transport(f"http://{'a' * 64}.test/", connect_timeout_s=1, read_timeout_s=1)
    with pytest.raises(OSError, match="can't be the name of a host"):
        way.send(post(way.url))


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


LARGE = b"x" * 300_000
"""More than a server takes that doesn't read, and less than the kernel takes from us."""


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
def test_a_request_that_was_given_up_is_not_delivered_by_the_kernel(
    certificate: Path, scheme: str, proxied: bool
) -> None:
    """The server reads on when another may lead."""
    tls = server_side(certificate) if scheme == "https" else None
    with StuckServer(tls, tunnels=proxied and tls is not None) as stuck:
        url = f"{scheme}://127.0.0.1:{stuck.port}/"
        way = Transport(
            url,
            connect_timeout_s=CONNECT_S,
            read_timeout_s=0.2,
            ca_bundle=str(certificate),
            proxy=f"http://127.0.0.1:{stuck.port}" if proxied else None,
        )
        with pytest.raises(TimeoutError):
            way.send(AWSRequest(method="POST", url=url, data=LARGE, headers={}))
        way.close()
        assert stuck.read_on() < len(LARGE)


SEND = """
import sys
from botocore.awsrequest import AWSRequest
from penstock.kinesis.aws.transport import Transport
way = Transport(sys.argv[1], connect_timeout_s=5, read_timeout_s=20)
request = AWSRequest(method="POST", url=sys.argv[1], data=b"x" * int(sys.argv[2]), headers={})
way.send(request, may_send=lambda: bool(print("now", flush=True)) or True)
"""


def test_a_request_of_a_process_that_was_killed_is_not_delivered_by_the_kernel() -> None:
    with StuckServer(None, tunnels=False) as stuck:
        command = [sys.executable, "-c", SEND, f"http://127.0.0.1:{stuck.port}/", str(len(LARGE))]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
            assert sender.stdout is not None
            assert sender.stdout.readline() == b"now\n"
            time.sleep(0.2)
            sender.send_signal(signal.SIGKILL)
        assert stuck.read_on() < len(LARGE)
