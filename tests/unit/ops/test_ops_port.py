"""Whether an ops port can be had is seen before anything starts."""

from __future__ import annotations

import socket

import pytest

from penstock.ops.address import own_url_of, url_of
from penstock.ops.server import OpsPortTaken, check_port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "192.0.2.1"])
def test_a_port_that_nobody_has(host: str) -> None:
    check_port(host, 0)


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OpsPortTaken, match=rf"OPS_PORT='{port}': can't listen .* set OPS_PORT"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)


def test_an_address_of_ipv6_has_brackets() -> None:
    assert url_of("localhost", 8088) == "http://localhost:8088"
    assert url_of("::1", 8088) == "http://[::1]:8088"
    assert own_url_of("::", "8088") == "http://[::1]:8088"
    assert own_url_of("0.0.0.0", 8088) == own_url_of("", 8088) == "http://127.0.0.1:8088"
    assert own_url_of("10.0.0.7", 8088) == "http://10.0.0.7:8088"
