"""CopyCuts: a snapshot waits for its cut without holding slot and log for more than a moment.

A cut comes from a temporary slot. Making one waits for every write transaction that is open, and for those
that begin meanwhile too, and the slot keeps WAL on the server. So there are two waits:

1. `transactions_end`: until all that were open have ended. It makes no slot and holds nothing, and may take
   for ever: a forgotten prepared transaction is met here.
2. An attempt at the cut. Only transactions that began since are in its way. It lasts as long as Patience
   lets it (`given_up_when`). Then all is let go, and the first wait begins again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import structlog

from penstock.postgres.connection import connect
from penstock.postgres.snapshot.export import ExportedSnapshot, export_snapshot
from penstock.postgres.snapshot.open_transactions import open_transactions, waits_for
from penstock.shapes.feed.books import ShapeBooks

_FIRST_LOOK_S: Final = 0.05
_LOOK_EVERY_S: Final = 1.0
_FIRST_PATIENCE_S: Final = 10.0
_LONGEST_PATIENCE_S: Final = 640.0

_log = structlog.get_logger()


class Patience:
    """How long an attempt at a cut may hold slot and log. Time is an argument, monotonic.

    Where long transactions follow each other without a gap, an attempt needs the time of two of them. So
    each that ran out of time lets the next take twice as long, up to a bound; success resets that.
    Whatever the time: an attempt ends when the log is half full, before others have to wait for room.
    """

    def __init__(self) -> None:
        self._limit_s = _FIRST_PATIENCE_S
        self._began_at = 0.0

    def begin(self, now: float) -> None:
        """An attempt begins."""
        self._began_at = now

    def is_over(self, now: float, *, log_is_half_full: bool) -> bool:
        """Whether the attempt is to be given up."""
        return log_is_half_full or now - self._began_at >= self._limit_s

    def given_up(self, now: float) -> None:
        """It was."""
        if now - self._began_at >= self._limit_s:
            self._limit_s = min(2 * self._limit_s, _LONGEST_PATIENCE_S)

    def succeeded(self) -> None:
        """The cut is known."""
        self._limit_s = _FIRST_PATIENCE_S


async def transactions_end(parameters: dict[str, Any], say: Callable[[str], None]) -> None:
    """Wait until all write transactions that are open now have ended; `say` is told of those that last."""
    session = await connect(parameters)
    try:
        awaited = {each.xid for each in await open_transactions(session)}
        wait_s = _FIRST_LOOK_S
        while awaited:
            await asyncio.sleep(wait_s)
            still = [each for each in await open_transactions(session) if each.xid in awaited]
            if still and wait_s >= _LOOK_EVERY_S:
                say(waits_for(still))
            awaited = {each.xid for each in still}
            wait_s = min(2 * wait_s, _LOOK_EVERY_S)
    finally:
        session.pgconn.finish()


@asynccontextmanager
async def given_up_when(is_over: Callable[[], bool]) -> AsyncIterator[None]:
    """TimeoutError for what is still under way when it is over; that is asked once a second."""
    async with asyncio.timeout(None) as limit:

        async def watch() -> None:
            while True:
                await asyncio.sleep(_LOOK_EVERY_S)
                if is_over():
                    limit.reschedule(asyncio.get_running_loop().time())
                    return

        watching = asyncio.create_task(watch(), name="patience")
        try:
            yield
        finally:
            watching.cancel()


class CopyCuts:
    """The cuts of the snapshots of one leadership."""

    def __init__(self, ledger: ShapeBooks, parameters: dict[str, Any], plugin: str) -> None:
        """`parameters`: of a connection; `plugin`: of the temporary slots."""
        self._ledger = ledger
        self._parameters = parameters
        self._plugin = plugin
        self._patience = Patience()
        """Of all shapes: whoever wants a cut waits for the same transactions."""

    async def take(
        self, shape: str, stack: AsyncExitStack, refuse_problems: Callable[[], Awaitable[None]]
    ) -> ExportedSnapshot:
        """A snapshot of the server with its cut P, which lives as long as the stack. In this order:

        1. The shape is parked until open transactions have ended, however long that takes. Slot and log go
           on, and the changes of its table are left out.
        2. `refuse_problems` raises if the table can't be copied; it costs nobody anything.
        3. The shape is pinned: from here on its changes are kept. What was left out until now, be it a part
           of a transaction, has been received, so its commit lies below the end of the server's WAL.
        4. The temporary slot is made, which begins with a record of its own in the WAL: P lies above that.
           So all that was left out commits below P, and is in the copy. What commits at P or above was kept.
        5. If P doesn't come for some time the slot ends, and the shape is parked again. No cut is known, so
           what was kept since may be forgotten: to the next attempt it was left out, and 3 and 4 hold again.
        """
        plan = self._ledger.plan
        # One that can't be copied need not wait.
        await refuse_problems()
        while True:
            await transactions_end(self._parameters, lambda sentence: self._waits(shape, sentence))
            await refuse_problems()
            # It may have been stopped while this waited.
            plan.copying(shape, time.monotonic())
            self._ledger.begin_copy(shape, time.monotonic())
            try:
                exported = await self.attempt(stack)
            except TimeoutError:
                self._ledger.end_copy(shape)
                self._waits(shape, "it waits for its cut: transactions that last for long follow each other")
                continue
            plan.has_cut(shape)
            self._ledger.cut(shape, exported.cut_lsn)
            return exported

    async def attempt(self, stack: AsyncExitStack) -> ExportedSnapshot:
        """A snapshot which lives as long as the stack, for whoever needs no changes kept beside it.

        TimeoutError if transactions last for too long.
        """
        self._patience.begin(time.monotonic())
        try:
            async with given_up_when(self._is_out_of_patience):
                exported = await stack.enter_async_context(
                    export_snapshot(self._parameters, plugin=self._plugin)
                )
        except TimeoutError:
            self._patience.given_up(time.monotonic())
            raise
        self._patience.succeeded()
        return exported

    def _is_out_of_patience(self) -> bool:
        return self._patience.is_over(time.monotonic(), log_is_half_full=self._ledger.backlog.is_half_full)

    def _waits(self, shape: str, sentence: str) -> None:
        if self._ledger.plan.waits(shape, sentence, time.monotonic()):
            _log.info("snapshot_waits", shape=shape, detail=sentence)
