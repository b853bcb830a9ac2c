"""HTTP for signed requests: kept-alive connections, direct or through a proxy; no retries, no redirects."""

from __future__ import annotations

import base64
import http.client
import os
import select
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from botocore.awsrequest import AWSRequest
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3.util.ssltransport import SSLTransport

from penstock.kinesis.aws.timed_socket import TimedSocket, remaining
from penstock.settings.errors import SettingsError

_LONGEST_HEAD: Final = 65536
_FORGET_UNSENT: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER. Closing a connection, by us or by our death, throws away what the kernel has not sent.

Otherwise it would go on delivering a request that we gave up, minutes later, behind another leader's.
"""

_Connection: TypeAlias = Any
"""An http.client.HTTPConnection whose socket is a TimedSocket."""


class HttpAnswer(NamedTuple):
    """What the service answered."""

    status: int
    error_type: str
    """The `x-amzn-ErrorType` header, if there is one."""
    body: bytes


def open_transport(
    url: str, *, connect_timeout_s: float, read_timeout_s: float, ca_bundle: str | None
) -> Transport:
    """The transport for an endpoint: direct, or through the proxy that the environment names.

    SettingsError if that can't be one.
    """
    scheme = urlsplit(url).scheme
    proxy: str | None = get_environ_proxies(url).get(scheme)
    if proxy is not None and not _is_proxy(proxy):
        names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
        variable = next((name for name in names if os.environ.get(name)), names[-1])
        # What stands before the last @ are a user and a password.
        _, at, place = proxy.rpartition("@")
        raise SettingsError(
            f"{variable}='{'…' + at if at else ''}{place}': must be http://host:port or https://host:port"
        )
    return Transport(
        url,
        connect_timeout_s=connect_timeout_s,
        read_timeout_s=read_timeout_s,
        ca_bundle=ca_bundle,
        proxy=proxy,
    )


class Transport:
    """http.client on a pool of connections: a third of the CPU that botocore's own session takes.

    Blocking, and used from several threads. Two deadlines: one until the connection is up (the resolver, TCP,
    a proxy's tunnel, TLS), one from the request's first byte to the last byte of the answer. (The resolver
    itself knows no time-out.)
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        ca_bundle: str | None = None,
        proxy: str | None = None,
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "an endpoint has a host"
        self.url = url
        self._host = parts.hostname
        self._port = _port(parts)
        self._proxy = None if proxy is None else _split_proxy(proxy)
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._certificates = get_cert_path(ca_bundle or True)
        self._tls = self._tls_context() if parts.scheme == "https" else None
        # A proxy that sees the request has to be told whom it is for; through a tunnel it sees nothing.
        by_proxy = self._proxy is not None and self._tls is None
        self._target = url if by_proxy else parts.path or "/"
        self._headers = self._proxy_headers() if by_proxy else {}
        self._idle: deque[_Connection] = deque()

    def send(self, request: AWSRequest, *, may_send: Callable[[], bool] = lambda: True) -> HttpAnswer | None:
        """Send on an idle connection that is still alive, or on a new one.

        `may_send` is asked when the connection is up, directly before the request's first byte leaves. If it
        says no, nothing is sent, and the answer is None. Raises OSError or HTTPException if no answer comes.
        """
        connection = self._take() or self._connect(time.monotonic() + self._connect_timeout_s)
        headers = {**dict(request.headers.items()), **self._headers}
        if not may_send():
            self._idle.append(connection)
            return None
        connection.sock.deadline = time.monotonic() + self._read_timeout_s
        try:
            connection.request(request.method, self._target, request.data, headers)
            response = connection.getresponse()
            error_type = response.headers.get("x-amzn-ErrorType", "")
            answer = HttpAnswer(response.status, error_type, response.read())
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> _Connection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not _readable(connection):
                return connection
            # An idle connection with something to read was closed by the other side.
            connection.close()

    def _connect(self, deadline: float) -> _Connection:
        # The class decides whether the Host header names the port, and the Host header is signed.
        connection: _Connection = (
            http.client.HTTPConnection(self._host, self._port)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, context=self._tls)
        )
        connection.sock = TimedSocket(self._reach(deadline))
        return connection

    def _reach(self, deadline: float) -> socket.socket:
        """A socket at whose other end the endpoint is, or the proxy that speaks for it."""
        if self._proxy is None:
            return _dial(self._host, self._port, deadline, self._tls)
        assert self._proxy.hostname is not None, "a proxy has a host"
        to_proxy = self._tls_context() if self._proxy.scheme == "https" else None
        plain = _dial(self._proxy.hostname, _port(self._proxy), deadline, to_proxy)
        if self._tls is None:
            return plain
        try:
            self._tunnel(plain, deadline)
            plain.settimeout(remaining(deadline))
            if to_proxy is None:
                return self._tls.wrap_socket(plain, server_hostname=self._host)
            inner: Any = SSLTransport(plain, self._tls, server_hostname=self._host)
        except BaseException:
            plain.close()
            raise
        twice_wrapped: socket.socket = inner
        return twice_wrapped

    def _tunnel(self, plain: socket.socket, deadline: float) -> None:
        """Ask the proxy for a tunnel to the endpoint."""
        place = f"{self._host}:{self._port}"
        headers = {"Host": place, **self._proxy_headers()}
        lines = [f"CONNECT {place} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        plain.settimeout(remaining(deadline))
        plain.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            plain.settimeout(remaining(deadline))
            # Byte by byte: what follows the head belongs to the endpoint.
            byte = plain.recv(1)
            head += byte
            if not byte or len(head) > _LONGEST_HEAD:
                raise http.client.HTTPException("the proxy answered CONNECT with something else than HTTP")
        status = head.split(b"\r\n", 1)[0].split(b" ", 2)
        if len(status) < 2 or status[1] != b"200":
            said = b" ".join(status[1:]).decode("latin-1")[:100]
            raise http.client.HTTPException(f"the proxy refuses a tunnel to {place}: {said}")

    def _proxy_headers(self) -> dict[str, str]:
        assert self._proxy is not None
        if not self._proxy.username:
            return {}
        pair = f"{unquote(self._proxy.username)}:{unquote(self._proxy.password or '')}"
        return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}

    def _tls_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._certificates)


def _split_proxy(proxy: str) -> SplitResult:
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _is_proxy(proxy: str) -> bool:
    try:
        parts = _split_proxy(proxy)
        (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and _port(parts) > 0
    except ValueError:
        return False


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _dial(host: str, port: int, deadline: float, tls: ssl.SSLContext | None) -> socket.socket:
    """A connected socket to the first of the host's addresses that answers."""
    failure: OSError = TimeoutError("the host has no address")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} can't be the name of a host") from None
    for family, kind, protocol, _, address in found:
        plain = socket.socket(family, kind, protocol)
        try:
            plain.settimeout(remaining(deadline))
            plain.connect(address)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET_UNSENT)
            plain.settimeout(remaining(deadline))
            return plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            plain.close()
            failure = error
    raise failure


def _readable(connection: _Connection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
