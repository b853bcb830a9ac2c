"""CopyWatch: notices a snapshot's copy of which nobody takes the rows any more.

A copy moves its shape only at its end, and that may take hours. But each part of a table, some 16 MiB, is
copied by a session of its own, and Postgres tells of it how much it has sent, and whether it waits for its
client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import structlog

from penstock.errors import PenstockError
from penstock.lake.errors import SparkGone
from penstock.postgres.connection import connect
from penstock.postgres.snapshot.copying import CopySession, copy_sessions

LEAST_PATIENCE_S: Final = 600.0
"""For how long, at least, a copy must stand still before it is given up."""
_LOOKS: Final = 20
_CANCEL_EVERY_S: Final = 0.5

_Result = TypeVar("_Result")
_log = structlog.get_logger()


class CopyHangs(PenstockError):
    """Nobody has taken a row of a snapshot's copy for long: it was given up, and begins again."""


class Standstill:
    """Whether a copy has stood still for `patience_s`. Pure; time is an argument, monotonic.

    A copy stands still between two looks if there are sessions that copy, the same ones in both, none of them
    has sent a byte or begun a statement, and in both each waits for its client. So:

    1. A server that works, waits for its disk or for a lock is never taken for a client that hangs.
    2. Without sessions nothing is proved: rows are sorted and written then, which may take any time. Nor is
       it without an answer, or if our role may not see the sessions.
    3. Looks that are far apart prove nothing of the time between: the machine may have slept.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.look_every_s: Final = patience_s / _LOOKS
        self._last: Sequence[CopySession] = ()
        self._last_at = 0.0
        self._since: float | None = None

    def looked(self, sessions: Sequence[CopySession], now: float) -> bool:
        """The sessions at a look, none if they can't be seen; whether it has stood still for long enough."""
        waits = bool(sessions) and all(each.waits_for_client for each in sessions)
        is_same = sessions == self._last and now - self._last_at <= 3 * self.look_every_s
        if not waits:
            self._since = None
        elif self._since is None or not is_same:
            self._since = now
        self._last, self._last_at = sessions, now
        return self._since is not None and now - self._since >= self._patience_s


class CopyWatch:
    """Watches copies, and gives up those that stand still."""

    def __init__(self, parameters: dict[str, Any], patience_s: float) -> None:
        """`parameters`: of a connection."""
        self._parameters = parameters
        self._patience_s = patience_s

    async def run(
        self,
        shape: str,
        snapshot_name: str,
        copy: Callable[[], Coroutine[Any, Any, _Result]],
        *,
        cancel: Callable[[], None],
    ) -> _Result:
        """Run a copy. If it stands still, it is cancelled until it has ended: CopyHangs. `cancel` blocks."""
        copying = asyncio.create_task(copy(), name=f"copy {shape}")
        watching = asyncio.create_task(self._stands_still(snapshot_name), name=f"watch {shape}")
        try:
            await asyncio.wait((copying, watching), return_when=asyncio.FIRST_COMPLETED)
            if copying.done():
                return copying.result()
            await watching
            sentence = (
                f"nobody has taken a row of its copy for {self._patience_s:.0f} s, and Postgres waits for"
                " that. It is cancelled, and begins again. Fix, if it comes back: see Spark's own page and"
                " its executors' logs"
            )
            _log.error("snapshot_hangs", shape=shape, detail=sentence)
            while not copying.done():
                await asyncio.to_thread(cancel)
                await asyncio.wait((copying,), timeout=_CANCEL_EVERY_S)
            error = copying.exception()
            if error is None or isinstance(error, SparkGone):
                return copying.result()
            raise CopyHangs(f"shape {shape}: {sentence}") from error
        finally:
            copying.cancel()
            watching.cancel()

    async def _stands_still(self, snapshot_name: str) -> None:
        still = Standstill(self._patience_s)
        while True:
            await asyncio.sleep(still.look_every_s)
            sessions = await self._sessions(snapshot_name)
            if still.looked(sessions, time.monotonic()):
                return

    async def _sessions(self, snapshot_name: str) -> Sequence[CopySession]:
        try:
            connection = await connect(self._parameters)
        except PenstockError:
            return ()
        try:
            return await copy_sessions(connection, snapshot_name)
        except PenstockError:
            return ()
        finally:
            connection.pgconn.finish()
