"""The images' HEALTHCHECK, against a port that answers, one that refuses, and none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.deploy.programs import DEPLOY


class _Ops(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing."""


class _SixServer(HTTPServer):
    address_family = socket.AF_INET6


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Ops) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def _check(**env: str) -> int:
    environ = {"PATH": os.environ["PATH"], "http_proxy": "http://127.0.0.1:9", **env}
    command = [sys.executable, "-I", str(DEPLOY / "healthcheck.py")]
    return subprocess.run(command, env=environ, stderr=subprocess.DEVNULL, check=False, timeout=30).returncode


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1"])
def test_a_process_that_answers_is_healthy(host: str, port: int) -> None:
    assert _check(OPS_HOST=host, OPS_PORT=str(port)) == 0


@pytest.mark.parametrize("host", ["::", "::1"])
def test_so_is_one_that_listens_by_ipv6(host: str) -> None:
    with _SixServer(("::1", 0), _Ops) as server:
        threading.Thread(target=server.handle_request).start()
        assert _check(OPS_HOST=host, OPS_PORT=str(server.server_port)) == 0


def test_one_that_says_no_is_not(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Ops, "status", 500)
    assert _check(OPS_PORT=str(port)) == 1


def test_nor_is_one_that_does_not_listen() -> None:
    assert _check(OPS_HOST="127.0.0.1", OPS_PORT="9") == 1
