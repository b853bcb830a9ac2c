"""HTTP for signed requests: kept-alive connections, no retries, no redirects."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import time
from collections import deque
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from botocore.awsrequest import AWSRequest
from botocore.httpsession import URLLib3Session, get_cert_path
from botocore.utils import get_environ_proxies


class HttpAnswer(NamedTuple):
    """What the service answered."""

    status: int
    error_type: str
    """The `x-amzn-ErrorType` header, if there is one."""
    body: bytes


class Transport(Protocol):
    """Sends one request and returns its answer; blocking, used from several threads."""

    def send(self, request: AWSRequest) -> HttpAnswer:
        """Raises OSError, HTTPException or botocore's HTTPClientError if there is no answer."""

    def close(self) -> None:
        """Close idle connections."""


def open_transport(
    url: str, *, connect_timeout_s: float, read_timeout_s: float, ca_bundle: str | None, max_connections: int
) -> Transport:
    """The transport for an endpoint: direct, or through the proxy that the environment names."""
    proxies = get_environ_proxies(url)
    if proxies:
        return _ProxiedTransport(
            URLLib3Session(
                timeout=(connect_timeout_s, read_timeout_s),
                max_pool_connections=max_connections,
                verify=ca_bundle or True,
                proxies=proxies,
            )
        )
    return DirectTransport(
        url, connect_timeout_s=connect_timeout_s, read_timeout_s=read_timeout_s, ca_bundle=ca_bundle
    )


class DirectTransport:
    """http.client on a pool of connections: a third of the CPU that botocore's own session takes.

    One deadline covers a request from the first look at the resolver to the last byte of the answer: a
    socket's own time-out would start anew with each byte of a trickling answer.
    """

    def __init__(
        self, url: str, *, connect_timeout_s: float, read_timeout_s: float, ca_bundle: str | None = None
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "an endpoint has a host"
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path or "/"
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._tls = (
            ssl.create_default_context(cafile=get_cert_path(ca_bundle or True))
            if parts.scheme == "https"
            else None
        )
        self._idle: deque[http.client.HTTPConnection] = deque()

    def send(self, request: AWSRequest) -> HttpAnswer:
        """Send on an idle connection that is still alive, or on a new one."""
        connection = self._take() or self._connect(time.monotonic() + self._connect_timeout_s)
        deadline = time.monotonic() + self._read_timeout_s
        try:
            connection.sock.settimeout(_remaining(deadline))
            connection.request(request.method, self._path, request.data, dict(request.headers.items()))
            connection.sock.settimeout(_remaining(deadline))
            response = connection.getresponse()
            error_type = response.headers.get("x-amzn-ErrorType", "")
            answer = HttpAnswer(response.status, error_type, _read_body(connection, response, deadline))
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

    def _take(self) -> http.client.HTTPConnection | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if not _readable(connection):
                return connection
            # An idle connection with something to read was closed by the other side.
            connection.close()

    def _connect(self, deadline: float) -> http.client.HTTPConnection:
        # The class decides whether the Host header names the port, and the Host header is signed.
        connection = (
            http.client.HTTPConnection(self._host, self._port)
            if self._tls is None
            else http.client.HTTPSConnection(self._host, self._port, context=self._tls)
        )
        connection.sock = self._dial(deadline)
        return connection

    def _dial(self, deadline: float) -> socket.socket:
        """A connected socket to the first of the host's addresses that answers."""
        failure: OSError = TimeoutError("the host has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM
        ):
            plain = socket.socket(family, kind, protocol)
            try:
                plain.settimeout(_remaining(deadline))
                plain.connect(address)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return (
                    plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=self._host)
                )
            except OSError as error:
                plain.close()
                failure = error
        raise failure


class _ProxiedTransport:
    def __init__(self, session: URLLib3Session) -> None:
        self._session = session

    def send(self, request: AWSRequest) -> HttpAnswer:
        response = self._session.send(request.prepare())
        return HttpAnswer(
            response.status_code, response.headers.get("x-amzn-ErrorType", ""), response.content
        )

    def close(self) -> None:
        self._session.close()


def _read_body(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float
) -> bytes:
    parts = []
    while response.length != 0 and not response.isclosed():
        # A connection that ends with its answer has no socket any more; only the response holds it.
        if connection.sock is not None:
            connection.sock.settimeout(_remaining(deadline))
        part = response.read1()
        if not part:
            break
        parts.append(part)
    if response.length:
        raise http.client.IncompleteRead(b"".join(parts), response.length)
    response.close()
    return b"".join(parts)


def _remaining(deadline: float) -> float:
    """Seconds left, for a socket's time-out; TimeoutError if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the request's deadline has passed")
    return left


def _readable(connection: http.client.HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
