"""One leadership: from the lock to its release."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

import psycopg
import structlog
from psycopg import AsyncConnection

from penstock.capture.gauges import Gauges
from penstock.capture.pipeline import Pipeline
from penstock.capture.slot_memory import SlotMemory
from penstock.capture.timings import Timings
from penstock.errors import LineLost, PenstockError, SlotBusy, SlotInvalid
from penstock.kinesis.client import RecordSink
from penstock.lsn import format_lsn
from penstock.ops.health import Health, Phase
from penstock.ops.metrics import CaptureMetrics
from penstock.postgres import protocol
from penstock.postgres.catalog import Catalog
from penstock.postgres.connection import connect, connect_replication, connection_parameters, one_line
from penstock.postgres.freshness import Freshness
from penstock.postgres.leader import LockHolder, lock_holder, see_lock, slot_hash64, try_lock
from penstock.postgres.notices import NoticeAlarm
from penstock.postgres.replication_stream import ReplicationStream
from penstock.postgres.slot import (
    SlotState,
    check_server,
    check_slot,
    create_slot,
    describe,
    open_writers,
    read_slot,
)
from penstock.postgres.watchdog import Watchdog
from penstock.settings import CaptureSettings

_BUSY_RETRY_S: Final = 0.2
_LAST_WORD_S: Final = 1.0

_log = structlog.get_logger()


class AnotherLeads(NamedTuple):
    """The lock is taken."""

    holder: LockHolder | None


class Leadership:
    """Competes for the slot's lock and, having it, carries changes until something ends it.

    Used once. The lock lives on the replication connection, so that lock and slot have one fate.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        sink: RecordSink,
        memory: SlotMemory,
        health: Health,
        metrics: CaptureMetrics,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._memory = memory
        self._health = health
        self._metrics = metrics
        self._stop = stop
        self._timings = Timings.of(settings.leader.timeout_s)
        self._parameters = connection_parameters(
            connect_timeout_s=settings.replication.connect_timeout_s,
            silence_limit_s=self._timings.answer_s,
            role=f"capture {settings.replication.slot}",
        )
        override = settings.leader.lock_key_override
        self._lock_key = slot_hash64(settings.replication.slot) if override is None else override
        self._open: list[AsyncConnection] = []
        self.has_led = False
        self._stream: ReplicationStream | None = None

    async def run(self) -> AnotherLeads | None:
        """Lead until `stop` is set (returns None) or until an error ends it; at once if another leads."""
        try:
            line = await connect_replication(self._parameters, wal_sender_timeout_s=self._timings.timeout_s)
            self._open.append(line)
            pid = await try_lock(line, self._lock_key)
            if pid is None:
                return await self._stand_by(line)
            self._health.enter(Phase.PREPARING)
            _log.info("lock_acquired", lock_key=self._lock_key, walsender_pid=pid)
            slot = await self._ensure_slot(line)
            self._stream = await self._start_stream(line)
            await self._lead(self._stream, slot, pid)
        except psycopg.Error as error:
            raise LineLost(f"the session ended: {one_line(error)}") from error
        finally:
            self._hang_up()
        return None

    async def _stand_by(self, line: AsyncConnection) -> AnotherLeads:
        slot = await read_slot(line, self._settings.replication.slot)
        # A slot that is still being made is in the view too, and may never come to be.
        if slot is not None and slot.confirmed_flush_lsn is not None:
            self._memory.saw(slot.confirmed_flush_lsn)
        return AnotherLeads(await lock_holder(line, self._lock_key))

    async def _ensure_slot(self, line: AsyncConnection) -> SlotState:
        name, plugin = self._settings.replication.slot, self._settings.replication.output_plugin
        await check_server(line, plugin)
        slot = await read_slot(line, name)
        if slot is None:
            _log.info("creating_slot", slot=name, waits_for_open_transactions=await open_writers(line))
            slot = await create_slot(line, name, plugin)
            self._say_created(slot)
        try:
            check_slot(slot, plugin)
        except SlotInvalid:
            # It is ours, and stood there: whoever drops it and lets us make a new one leaves a gap.
            self._memory.saw(slot.start_lsn)
            raise
        self._memory.saw(slot.start_lsn)
        return slot

    def _say_created(self, slot: SlotState) -> None:
        self._metrics.slot_creations.inc()
        start = format_lsn(slot.start_lsn)
        _log.warning(
            "slot_created", slot=slot.name, start_lsn=start, note="changes before it are not in the stream"
        )
        last_known = self._memory.created(slot.start_lsn)
        if last_known is not None:
            self._metrics.gaps.inc()
            _log.error(
                "GAP",
                slot=slot.name,
                last_known_lsn=format_lsn(last_known),
                start_lsn=start,
                note="the slot was gone: changes between these positions are missing from the stream",
            )

    async def _start_stream(self, line: AsyncConnection) -> ReplicationStream:
        """Enter COPY BOTH; a walsender of the former leader may take a moment to let go of the slot."""
        options = self._settings.wal2json.plugin_options()
        line.add_notice_handler(NoticeAlarm(self._metrics.dropped_by_server.inc))
        deadline = time.monotonic() + self._timings.timeout_s
        while True:
            try:
                return await ReplicationStream.start(
                    line,
                    slot=self._settings.replication.slot,
                    plugin=self._settings.replication.output_plugin,
                    options=options,
                )
            except SlotBusy:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_BUSY_RETRY_S)

    async def _lead(self, stream: ReplicationStream, slot: SlotState, pid: int) -> None:
        watcher = await self._connect_ordinary()
        asked_at = time.monotonic()
        await see_lock(watcher, key=self._lock_key, pid=pid)
        # From the moment before the question, not from now: this process may have been frozen meanwhile.
        freshness = Freshness(limit_s=self._timings.freshness_s, now=asked_at)
        catalog = Catalog(self._connect_ordinary)
        pipeline = Pipeline(
            self._settings,
            line=stream,
            start_lsn=slot.start_lsn,
            sink=self._sink,
            key_columns=catalog.key_columns,
            freshness=freshness,
            health=self._health,
            metrics=self._metrics,
        )
        gauges = Gauges(pipeline, freshness, self._health, self._metrics)
        watchdog = Watchdog(
            watcher,
            lock_key=self._lock_key,
            walsender_pid=pid,
            slot=slot.name,
            freshness=freshness,
            interval_s=self._timings.watch_interval_s,
            on_slot=gauges.slot,
        )
        self._health.start_streaming(freshness, time.monotonic())
        self.has_led = True
        self._metrics.leaderships.inc()
        _log.info("streaming", **describe(slot))
        try:
            await self._run_together(pipeline, watchdog, gauges, freshness)
        finally:
            gauges.sample(time.monotonic())
            gauges.leave()
            self._memory.saw(pipeline.feedback.confirmed_lsn)
            # A failure has hung up already. A leader that stops keeps the lock until its last request is
            # over: the next leader's records must not be overtaken by it.
            await pipeline.publisher.close()
            self._hang_up()

    async def _run_together(
        self, pipeline: Pipeline, watchdog: Watchdog, gauges: Gauges, freshness: Freshness
    ) -> None:
        """The first failure ends all; a stop drains."""
        try:
            async with asyncio.TaskGroup() as group:

                def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
                    return group.create_task(self._hanging_up(work), name=name)

                reader = start(pipeline.reader.run(), "reader")
                others = [
                    start(pipeline.publisher.run(), "publisher"),
                    start(pipeline.feedback.run(), "feedback"),
                    start(watchdog.watch(), "watchdog"),
                    start(watchdog.guard(), "guard"),
                    start(gauges.run(), "gauges"),
                ]
                await self._stop.wait()
                await self._drain(pipeline, reader, freshness)
                for task in others:
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise _most_telling(failures) from failures

    async def _drain(self, pipeline: Pipeline, reader: asyncio.Task[None], freshness: Freshness) -> None:
        self._health.enter(Phase.DRAINING)
        _log.info("draining", pending=pipeline.tracker.pending_count)
        reader.cancel()
        await asyncio.wait([reader])
        try:
            async with asyncio.timeout(self._settings.leader.shutdown_drain_s):
                await pipeline.publisher.drained()
        except TimeoutError:
            _log.warning("drain_incomplete", pending=pipeline.tracker.pending_count)
        await self._last_word(pipeline, freshness)
        _log.info("drained", confirmed_lsn=format_lsn(pipeline.feedback.confirmed_lsn))

    async def _last_word(self, pipeline: Pipeline, freshness: Freshness) -> None:
        """Send the last status and see it answered.

        Closing a socket with unread data resets the connection, and the server might then lose a status
        that it has not read. So frames are read and forgotten until one comes that was sent after it.
        """
        assert self._stream is not None, "draining a stream"
        sent_at = time.monotonic()
        pipeline.feedback.send(reply_requested=True)
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                while True:
                    server_time_us = protocol.server_time_us((await self._stream.read())[-1])
                    if freshness.on_our_clock(protocol.unix_seconds(server_time_us)) >= sent_at:
                        return
        except (TimeoutError, PenstockError):
            _log.info("last_status_unanswered")

    async def _hanging_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Close every connection the moment a part fails.

        The server isn't held up by our walsender, and no part that is cancelled next waits for an answer
        on a dead line.
        """
        try:
            await work
        except Exception:
            self._hang_up()
            raise

    async def _connect_ordinary(self) -> AsyncConnection:
        connection = await connect(self._parameters)
        self._open.append(connection)
        return connection

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
        for connection in self._open:
            connection.pgconn.finish()


def _most_telling(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Of several failures, one that isn't ours (a bug); else the first: the others follow from it."""
    flat: list[BaseException] = []
    rest: list[BaseException] = [failures]
    while rest:
        failure = rest.pop(0)
        if isinstance(failure, BaseExceptionGroup):
            rest[:0] = failure.exceptions
        else:
            flat.append(failure)
    return next((failure for failure in flat if not isinstance(failure, PenstockError)), flat[0])
