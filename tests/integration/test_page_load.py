"""A page with 100 busy shapes and an hour of history costs little."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import pytest

from tests.servers.page_stage import PageStage

WATCHED_S = 12.0
MOST_BYTES_A_MINUTE = 100_000
MOST_OF_A_CORE = 0.01


def read_events(url: str, seconds: float) -> int:
    """Listen as a browser does, and count what comes over the wire."""
    parts = urlsplit(url)
    request = f"GET /events HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept-Encoding: gzip\r\n\r\n"
    received, deadline = 0, time.monotonic() + seconds
    with socket.create_connection((str(parts.hostname), int(parts.port or 0))) as line:
        line.sendall(request.encode())
        while (left_s := deadline - time.monotonic()) > 0:
            line.settimeout(left_s)
            try:
                received += len(line.recv(65536))
            except TimeoutError:
                break
    return received


def test_traffic_and_processor_time() -> None:
    with PageStage(shapes=100, failing=True) as stage:
        first = read_events(stage.url, 0.5)
        before, began = stage.cpu_s(), time.monotonic()
        received = read_events(stage.url, WATCHED_S)
        share = (stage.cpu_s() - before) / (time.monotonic() - began)
    a_minute = (received - first) * 60 / WATCHED_S
    print(f"{first:,} bytes at first, {a_minute:,.0f} a minute, {share:.2%} of a core")
    assert received > first, "it goes on"
    assert first + a_minute < MOST_BYTES_A_MINUTE, "in the first minute too"
    assert share < MOST_OF_A_CORE


@pytest.mark.long
def test_a_full_minute_of_it() -> None:
    """From the first byte to the end of the minute, nothing reckoned up."""
    with PageStage(shapes=100, failing=True) as stage:
        before, began = stage.cpu_s(), time.monotonic()
        received = read_events(stage.url, 60.0)
        share = (stage.cpu_s() - before) / (time.monotonic() - began)
    print(f"{received:,} bytes in a minute, {share:.2%} of a core")
    assert 10_000 < received < MOST_BYTES_A_MINUTE
    assert share < MOST_OF_A_CORE
