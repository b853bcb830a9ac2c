"""Ending: when a leadership of the shapes ends well, and what is done before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Set
from typing import Final

import structlog

from penstock.errors import PenstockError
from penstock.model.lsn import format_lsn
from penstock.shapes.flushing.complaints import LONG_JOB
from penstock.shapes.wiring import ShapesPipeline

_LOOK_EVERY_S: Final = 0.1
_HURRY_EVERY_S: Final = 0.05

_log = structlog.get_logger()


class ShapeStalled(PenstockError):
    """A shape has made no progress for STALL_S, or waits for somebody to act, and `--once` waits for it."""


class Ending:
    """Why a leadership ends that nothing has broken.

    1. The process is told to stop: at once.
    2. It is given up for one with other shapes: when what is being copied is copied, but for shapes that
       are not as before. No other copy begins.
    3. With `once`: when all tables are made, hold what was in Postgres when the last of them was, and nothing
       is in doubt. Shapes that are stopped don't count. One that is stalled ends it with ShapeStalled, and so
       does a source from which nothing comes.
    """

    def __init__(self, stop: asyncio.Event, *, once: bool, stall_s: float) -> None:
        self._stop = stop
        self._once = once
        self._stall_s = stall_s
        self._given_up = asyncio.Event()
        self._not_as_before: Set[str] = frozenset()

    @property
    def is_given_up(self) -> bool:
        """Whether `give_up` was called."""
        return self._given_up.is_set()

    def give_up(self, not_as_before: Set[str]) -> None:
        """See rule 2. The last call counts."""
        self._not_as_before = not_as_before
        self._given_up.set()

    async def reached(self, pipeline: ShapesPipeline, wal_lsn: Callable[[], Awaitable[int]]) -> None:
        """Wait for it. `wal_lsn`: up to where Postgres has WAL."""
        if self._once:
            await self._until_done(pipeline, wal_lsn)
        else:
            await self._until_stopped_or_given_up(pipeline)

    def refuse_stopped(self, pipeline: ShapesPipeline) -> None:
        """With `once`, when all others are done: ShapeStalled if a shape waits for somebody to act."""
        if not self._once or self._stop.is_set():
            return
        for shape, sentence in pipeline.readings.stopped_shapes().items():
            raise ShapeStalled(f"shape {shape} was stopped, and the others are done: {sentence}")

    async def _until_done(self, pipeline: ShapesPipeline, wal_lsn: Callable[[], Awaitable[int]]) -> None:
        ledger, target, looks, waits_since = pipeline.ledger, None, 0, None
        while not self._stop.is_set():
            now = time.monotonic()
            self._refuse_stalled(pipeline, now)
            # Nobody waits for an interval: the end is near.
            ledger.plan.make_room(now)
            pipeline.runner.wake()
            # The frontier doesn't wait for shapes that are parked.
            is_whole = not pipeline.readings.awaits_snapshots()
            if target is None and is_whole:
                target, waits_since = await wal_lsn(), now
                # One may be under way: the next but one has seen all that was there.
                looks = pipeline.watch.looks + 2
                _log.info("once", target=format_lsn(target))
            is_received = target is not None and pipeline.feed.received_lsn >= target
            if sentence := pipeline.feed.stalled(now, self._stall_s, None if is_received else waits_since):
                raise ShapeStalled(sentence)
            is_done = target is not None and is_whole and ledger.tracker.frontier_lsn >= target
            if is_done and pipeline.watch.looks >= looks and not ledger.plan.is_tending:
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _until_stopped_or_given_up(self, pipeline: ShapesPipeline) -> None:
        ends = [asyncio.create_task(event.wait()) for event in (self._stop, self._given_up)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        pipeline.ledger.plan.begin_no_snapshots()
        while pipeline.work.copying - self._not_as_before:
            if self._stop.is_set():
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    def _refuse_stalled(self, pipeline: ShapesPipeline, now: float) -> None:
        """A shape that fails may do so for STALL_S. One that merely works may be slow, up to a point."""
        stopped = pipeline.readings.stopped_shapes()
        for stalled in pipeline.ledger.plan.stalled(now, self._stall_s):
            if stalled.shape in stopped:
                # The others are done first.
                continue
            if stalled.error is not None or stalled.age_s >= LONG_JOB * self._stall_s:
                raise ShapeStalled(
                    f"shape {stalled.shape} made no progress for {stalled.age_s:.0f} s:"
                    f" {stalled.error or 'its job does not end'}"
                )
        if sentence := pipeline.watch.stalled(now, self._stall_s):
            raise ShapeStalled(sentence)


async def flush_everything(pipeline: ShapesPipeline) -> None:
    """What was read goes to the tables now, without waiting for anybody's interval."""
    await asyncio.to_thread(pipeline.ledger.backlog.flush, time.monotonic())
    while not pipeline.readings.is_flushed():
        pipeline.ledger.plan.make_room(time.monotonic())
        pipeline.runner.wake()
        await asyncio.sleep(_HURRY_EVERY_S)
