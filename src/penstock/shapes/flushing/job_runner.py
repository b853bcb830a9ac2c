"""JobRunner: runs what the FlushPlan says is due, and tells how it went."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, Protocol, TypeVar

import structlog

from penstock.changelog.errors import ChangeLogBroken, ChangeLogTrimmed, SegmentUnreadable
from penstock.errors import PenstockError
from penstock.lake.errors import SparkGone
from penstock.shapes.feed.books import ShapeBooks
from penstock.shapes.pace.shape_plan import Job
from penstock.shapes.registry.registry import RegistryError

_LONGEST_WAIT_S: Final = 1.0
_CANCEL_EVERY_S: Final = 0.5

_ENDS_ALL: Final = (ChangeLogBroken, ChangeLogTrimmed, SegmentUnreadable, RegistryError, SparkGone)

_Result = TypeVar("_Result")
_log = structlog.get_logger()


class JobThreads:
    """Threads for Spark's work. They outlive a leadership: what runs there can only be asked to end."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="penstock-shape")
        self._running: set[Future[Any]] = set()

    async def run(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """Run blocking work; whoever is cancelled while waiting leaves it running."""
        future = self._pool.submit(work, *arguments)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        ending = asyncio.wrap_future(future)
        # If nobody waits any more, asyncio would print how it ended: pages of Java, some with rows' values.
        ending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return await asyncio.shield(ending)

    async def settle(self, cancel: Callable[[], None]) -> None:
        """Ask whatever still runs to end, and wait until it has."""
        while self._running:
            await asyncio.to_thread(cancel)
            await asyncio.to_thread(wait, tuple(self._running), _CANCEL_EVERY_S)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class ShapeWork(Protocol):
    """What a job does."""

    async def flush(self, shape: str) -> None:
        """Flush what is new, and say so to the ledger."""

    async def snapshot(self, shape: str) -> None:
        """Rebuild the table, and say so to the ledger."""

    async def upkeep(self, shape: str) -> None:
        """Look after the table: nobody's position changes."""


class JobRunner:
    """Starts jobs as the plan says, each a task; a failure puts its shape off and holds nobody else.

    Only a log or a registry that can't be written or read ends all: a new leadership begins another log. And
    a Spark that is gone ends the process.
    """

    def __init__(self, ledger: ShapeBooks, work: ShapeWork) -> None:
        self._ledger = ledger
        self._work = work
        self._wake = asyncio.Event()
        self.running = 0
        """How many jobs run."""

    def wake(self) -> None:
        """Something may be due."""
        self._wake.set()

    async def run(self) -> None:
        """Run jobs until cancelled."""
        plan, log = self._ledger.plan, self._ledger.backlog
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                now = time.monotonic()
                if log.is_flush_due(now):
                    await asyncio.to_thread(log.flush, now)
                starts = plan.start(now)
                if any(start.job is Job.FLUSH for start in starts) and (
                    log.last_persisted_txn_offset < log.last_seen_txn_offset
                ):
                    await asyncio.to_thread(log.flush, now)
                for start in starts:
                    work = self._tend if start.job is Job.UPKEEP else self._run
                    group.create_task(work(start.shape, start.job), name=f"job {start.shape}")
                await self._wait(now)

    async def _wait(self, now: float) -> None:
        next_at = self._ledger.plan.next_at(now)
        wait_s = _LONGEST_WAIT_S if next_at is None else min(_LONGEST_WAIT_S, next_at - now)
        try:
            async with asyncio.timeout(max(wait_s, 0)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _run(self, shape: str, job: Job) -> None:
        work = self._work.flush if job is Job.FLUSH else self._work.snapshot
        self.running += 1
        try:
            await work(shape)
        except _ENDS_ALL:
            raise
        except Exception as error:
            self._ledger.failed(shape, _said(error, shape, job), time.monotonic())
        finally:
            self.running -= 1
        self.wake()

    async def _tend(self, shape: str, job: Job) -> None:
        """A failure is said, and left to the next time: the shape's flushes are as good as before."""
        try:
            await self._work.upkeep(shape)
        except _ENDS_ALL:
            raise
        except Exception as error:
            _said(error, shape, job)
        self._ledger.plan.tended(shape)
        self.wake()


def _said(error: Exception, shape: str, job: Job) -> str:
    """Log what went wrong with a job; returns the sentence."""
    known = isinstance(error, PenstockError)
    sentence = str(error) if known else f"{type(error).__name__}: {_first_line(error)}"
    exc_info = {} if known else {"exc_info": error}
    _log.error(f"{job.value}_failed", shape=shape, detail=sentence, **exc_info)
    return sentence


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:500]
