"""TimedSocket: one deadline for a whole exchange, however its bytes come."""

from __future__ import annotations

import io
import socket
import time
from typing import Any, Final, Literal

_BUFFER_BYTES: Final = 65536


class TimedSocket:
    """What http.client needs of a socket, under a deadline.

    A socket's own time-out restarts with each byte that comes; an answer that trickles would never end.
    Here each wait is for what is left until the deadline.
    """

    def __init__(self, plain: socket.socket) -> None:
        self._plain = plain
        self.deadline = float("inf")
        """As time.monotonic() tells time."""

    def sendall(self, data: Any) -> None:
        """Send everything; TimeoutError at the deadline."""
        rest = memoryview(data)
        while rest:
            self._plain.settimeout(remaining(self.deadline))
            rest = rest[self._plain.send(rest) :]

    def makefile(self, mode: Literal["rb"]) -> io.BufferedReader:
        """A file to read the answer from; it keeps the socket open until it is closed itself."""
        raw: Any = self._plain.makefile(mode, buffering=0)
        return io.BufferedReader(_TimedRaw(self, raw), _BUFFER_BYTES)

    def limit(self) -> None:
        """Let the next wait end at the deadline."""
        self._plain.settimeout(remaining(self.deadline))

    def fileno(self) -> int:
        """For poll."""
        return self._plain.fileno()

    def close(self) -> None:
        """Close it, once nobody reads from it any more."""
        self._plain.close()


class _TimedRaw(io.RawIOBase):
    def __init__(self, timed: TimedSocket, raw: Any) -> None:
        self._timed = timed
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._timed.limit()
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def remaining(deadline: float) -> float:
    """Seconds left, for a socket's time-out; TimeoutError if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the request's deadline has passed")
    return left
