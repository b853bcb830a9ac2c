"""TCP ports for private servers."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on, below the range of outgoing connections.

    A server that stops and comes back on the same port needs it to be free then. An ephemeral port can be
    taken meanwhile by any outgoing connection, even by a client that tries to reach that very port and
    connects to itself.
    """
    ephemeral = int(_EPHEMERAL_RANGE.read_text().split()[0]) if _EPHEMERAL_RANGE.exists() else 32_768
    if ephemeral <= _LOWEST:
        return _bindable(0)
    for _ in range(100):
        try:
            return _bindable(random.randrange(_LOWEST, ephemeral))  # noqa: S311 (not a secret)
        except OSError:
            continue
    return _bindable(0)


def _bindable(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        bound: int = probe.getsockname()[1]
        return bound
