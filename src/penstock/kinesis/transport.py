"""HTTP for signed requests: kept-alive connections, no retries, no redirects."""

from __future__ import annotations

import http.client
import select
import ssl
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from botocore.awsrequest import AWSRequest
from botocore.httpsession import URLLib3Session, get_cert_path
from botocore.utils import get_environ_proxies


class HttpAnswer(NamedTuple):
    """What the service answered."""

    status: int
    headers: Mapping[str, str]
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
    """http.client on a pool of connections: a third of the CPU that botocore's own session takes."""

    def __init__(
        self, url: str, *, connect_timeout_s: float, read_timeout_s: float, ca_bundle: str | None = None
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None, "an endpoint has a host"
        self._host, self._port = parts.hostname, parts.port
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
        connection = self._take() or self._connect()
        try:
            connection.request(request.method, "/", request.data, dict(request.headers.items()))
            response = connection.getresponse()
            answer = HttpAnswer(response.status, dict(response.headers), response.read())
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

    def _connect(self) -> http.client.HTTPConnection:
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=self._connect_timeout_s)
            if self._tls is None
            else http.client.HTTPSConnection(
                self._host, self._port, timeout=self._connect_timeout_s, context=self._tls
            )
        )
        connection.connect()
        connection.sock.settimeout(self._read_timeout_s)
        return connection


class _ProxiedTransport:
    def __init__(self, session: URLLib3Session) -> None:
        self._session = session

    def send(self, request: AWSRequest) -> HttpAnswer:
        response = self._session.send(request.prepare())
        return HttpAnswer(response.status_code, response.headers, response.content)

    def close(self) -> None:
        self._session.close()


def _readable(connection: http.client.HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
