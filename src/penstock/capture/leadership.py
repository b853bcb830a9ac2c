"""One leadership: from the lock to its release."""

from __future__ import annotations

import asyncio
import time

import structlog

from penstock.capture.gauges import Gauges
from penstock.capture.pipeline import Pipeline
from penstock.capture.slot_memory import SlotMemory
from penstock.errors import SlotInvalid
from penstock.kinesis.client import RecordSink
from penstock.lsn import format_lsn
from penstock.ops.health import Health, Phase
from penstock.ops.metrics import CaptureMetrics
from penstock.postgres.catalog import Catalog
from penstock.postgres.freshness import Freshness
from penstock.postgres.leader_line import AnotherLeads, LeaderLine
from penstock.postgres.replication_stream import ReplicationStream
from penstock.postgres.slot import SlotState, check_slot, describe
from penstock.postgres.watchdog import Watchdog
from penstock.settings import CaptureSettings

_log = structlog.get_logger()


class Leadership:
    """Competes for the slot's lock and, having it, carries changes until something ends it. Used once."""

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
        self._line = LeaderLine(settings.replication, settings.leader, role="capture")
        self.has_led = False

    async def run(self) -> AnotherLeads | None:
        """Lead until `stop` is set (returns None) or until an error ends it; at once if another leads."""
        async with self._line.open():
            another = await self._line.take_lock()
            if another is not None:
                await self._remember_slot()
                return another
            self._health.enter(Phase.PREPARING)
            slot = await self._ensure_slot()
            stream = await self._line.start_stream(
                self._settings.wal2json.plugin_options(),
                on_dropped=lambda *_: self._metrics.dropped_by_server.inc(),
            )
            await self._lead(stream, slot)
        return None

    async def _remember_slot(self) -> None:
        slot = await self._line.read_slot()
        # A slot that is still being made is in the view too, and may never come to be.
        if slot is not None and slot.confirmed_flush_lsn is not None:
            self._memory.saw(slot.confirmed_flush_lsn)

    async def _ensure_slot(self) -> SlotState:
        slot, created = await self._line.ensure_slot()
        if created:
            self._say_created(slot)
        try:
            check_slot(slot, self._settings.replication.output_plugin)
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

    async def _lead(self, stream: ReplicationStream, slot: SlotState) -> None:
        freshness, watchdog = await self._line.vouch(self._metrics.slot.note)
        pipeline = Pipeline(
            self._settings,
            line=stream,
            start_lsn=slot.start_lsn,
            sink=self._sink,
            key_columns=Catalog(self._line.connect).key_columns,
            freshness=freshness,
            health=self._health,
            metrics=self._metrics,
        )
        gauges = Gauges(pipeline, freshness, self._health, self._metrics)
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
            self._line.hang_up()

    async def _run_together(
        self, pipeline: Pipeline, watchdog: Watchdog, gauges: Gauges, freshness: Freshness
    ) -> None:
        async def until_stopped() -> None:
            await self._stop.wait()

        await self._line.run_together(
            pipeline.reader.run(),
            {
                "publisher": pipeline.publisher.run(),
                "feedback": pipeline.feedback.run(),
                "watchdog": watchdog.watch(),
                "guard": watchdog.guard(),
                "gauges": gauges.run(),
            },
            until=until_stopped(),
            drain=lambda reader: self._drain(pipeline, reader, freshness),
        )

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
        await self._line.last_word(lambda: pipeline.feedback.send(reply_requested=True), freshness)
        _log.info("drained", confirmed_lsn=format_lsn(pipeline.feedback.confirmed_lsn))
