"""Whether an ops port can be had is seen before anything starts."""

from __future__ import annotations

import socket

import pytest

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
