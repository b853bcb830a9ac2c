"""ClientPool: clients that tasks of one process use one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from penstock.kinesis.read.client import StreamClient

_RENEWED_AFTER_S: Final = 300.0
"""Whoever replaces credentials in a file does so before the former ones end."""


class _Idle(NamedTuple):
    made_at: float
    client: StreamClient


class ClientPool:
    """Lends clients. Safe for threads.

    To make a client takes some 50 ms, and a connection with TLS as long again: more than a batch of one row
    needs for the rest. A worker of Spark's has one task at a time and lives through many. A client with which
    something went wrong is not lent again, nor is one that has grown old: so new credentials count soon.
    Old ones are closed when any client is given back, also those of streams that nobody reads any more.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str, str | None], list[_Idle]] = {}

    @contextmanager
    def lend(self, stream: str, region: str, endpoint_url: str | None) -> Iterator[StreamClient]:
        """A client that nobody else has meanwhile."""
        # list.pop and list.append are atomic, and so is setdefault with such a key.
        idle = self._idle.setdefault((stream, region, endpoint_url), [])
        taken = _take(idle) or _Idle(
            time.monotonic(), StreamClient(stream=stream, region=region, endpoint_url=endpoint_url)
        )
        try:
            yield taken.client
        except BaseException:
            # Also if the caller has had enough, as `limit` has: then a page may still be under way.
            taken.client.close()
            raise
        idle.append(taken)
        for each in list(self._idle.values()):
            _close_old(each)


CLIENTS: Final = ClientPool()
"""Of this process."""


def _take(idle: list[_Idle]) -> _Idle | None:
    while True:
        try:
            found = idle.pop()
        except IndexError:
            return None
        if not _is_old(found):
            return found
        found.client.close()


def _close_old(idle: list[_Idle]) -> None:
    for each in list(idle):
        if _is_old(each):
            # Somebody else may have taken it meanwhile.
            with suppress(ValueError):
                idle.remove(each)
                each.client.close()


def _is_old(idle: _Idle) -> bool:
    return time.monotonic() - idle.made_at >= _RENEWED_AFTER_S
