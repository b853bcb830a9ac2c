"""The ops port's address as a URL, also where its host is an address of IPv6."""

from __future__ import annotations

from typing import Final

_ASKED_AT: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - who listens on all


def url_of(host: str, port: int | str) -> str:
    """Where it listens."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def own_url_of(host: str, port: int | str) -> str:
    """Where a process of this machine asks it: one that listens on all addresses is asked by loopback."""
    return url_of(_ASKED_AT.get(host, host), port)
