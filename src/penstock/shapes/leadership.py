"""One leadership of the shapes: from the lock to its release."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.runs import create_run, remove_older_runs, remove_run
from penstock.clock import awake_or_asleep
from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.errors import PluginOptionRefused
from penstock.lake.ports import ShapeJobs
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.shape import ShapesFile
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.connection import QUALIFIED_NAMES
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.line import AnotherLeads, LeaderLine
from penstock.postgres.leader.watchdog import Watchdog
from penstock.postgres.slot.state import describe
from penstock.postgres.stream.replication import ReplicationStream
from penstock.postgres.timeline import ServerIdentity, flushed_lsn
from penstock.settings.services import ShapesSettings
from penstock.shapes.ending import Ending, flush_everything
from penstock.shapes.feed.from_postgres import Incoming
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.pace.flush_plan import FlushLimits
from penstock.shapes.preparation import Preparation, Prepared
from penstock.shapes.readings import ShapeLine
from penstock.shapes.registry.registry import RegistryStore
from penstock.shapes.wiring import Database, ShapesPipeline, Workplace
from penstock.status.board import StatusBoard
from penstock.status.health import Fault, Health, Phase
from penstock.status.shapes_metrics import ShapesMetrics

_UPKEEP_EVERY_S: Final = 1.0
_OLD_RUNS_EVERY_S: Final = 300.0

_log = structlog.get_logger()


class Order(NamedTuple):
    """What is to be done."""

    file: ShapesFile
    store: RegistryStore
    log_directory: Path
    resnapshot: Set[str]
    """Shapes that are snapshotted again because somebody asked for it."""
    once: bool
    """Whether to end when the tables hold all that was in Postgres at the start."""


class Service(NamedTuple):
    """The process around a leadership."""

    health: Health
    metrics: ShapesMetrics
    board: StatusBoard
    stop: asyncio.Event
    """Set when the process is told to stop."""


class ShapesLeadership:
    """Competes for the slot's lock and, having it, keeps the shapes' tables up until something ends it.

    Used once.
    """

    def __init__(
        self,
        settings: ShapesSettings,
        order: Order,
        *,
        make_jobs: Callable[[ServerIdentity], ShapeJobs],
        threads: JobThreads,
        service: Service,
    ) -> None:
        self._settings = settings
        self.file = order.file
        self._make_jobs = make_jobs
        self._threads = threads
        self._log_directory = order.log_directory
        self._resnapshot = order.resnapshot
        self._health = service.health
        self._metrics = service.metrics
        self._board = service.board
        self._line = LeaderLine(settings.replication, settings.leader, role="shapes", session=QUALIFIED_NAMES)
        self._catalog = ShapeCatalog(self._line.connect, decoder_for(settings.replication.output_plugin))
        self._preparation = Preparation(
            order.file,
            slot=settings.replication.slot,
            plugin=settings.replication.output_plugin,
            line=self._line,
            catalog=self._catalog,
            store=order.store,
            threads=threads,
            metrics=service.metrics,
            slot_within_s=settings.change_log.stall_s if order.once else None,
        )
        self._pipeline: ShapesPipeline | None = None
        self._left_out: set[Relation] = set()
        self._ending = Ending(service.stop, once=order.once, stall_s=settings.change_log.stall_s)
        self.has_led = False
        self.confirmed_lsn = 0

    async def run(self) -> AnotherLeads | None:
        """Lead until told to stop or, with `once`, until all is done; at once if another leads."""
        async with self._line.open():
            another = await self._line.take_lock()
            if another is not None:
                return another
            self._health.enter(Phase.PREPARING)
            identity = await self._line.identify()
            jobs = self._make_jobs(identity)
            try:
                await self._lead(await self._preparation.run(identity, jobs, self._resnapshot), jobs)
            finally:
                # The tables' sessions are free for the next leadership only when nothing runs in them.
                await self._threads.settle(jobs.cancel)
        return None

    @property
    def is_given_up(self) -> bool:
        """Whether `give_up` was called."""
        return self._ending.is_given_up

    def give_up(self, not_as_before: Set[str]) -> None:
        """End well and soon, so that another leadership begins with other shapes.

        What is being copied is copied to its end first, but for shapes that are `not_as_before`. The last
        call counts.
        """
        self._ending.give_up(not_as_before)

    def has_stopped_shapes(self) -> bool:
        """Whether some shape waits for somebody to act."""
        return self._pipeline is not None and bool(self._pipeline.readings.stopped_shapes())

    def lines(self, now: float) -> list[ShapeLine]:
        """Every shape, while this process leads."""
        return [] if self._pipeline is None else self._pipeline.readings.lines(now)

    async def _lead(self, prepared: Prepared, jobs: ShapeJobs) -> None:
        decoder = decoder_for(self._settings.replication.output_plugin)
        stream = await self._start_stream(decoder)
        freshness, watchdog = await self._line.vouch()
        run_id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        run = await asyncio.to_thread(create_run, self._log_directory, run_id)
        limits = self._settings.change_log
        log = ChangeLog(run, LogLimits.of(limits.max_bytes, limits.min_free_bytes))
        self._pipeline = pipeline = ShapesPipeline(
            self.file.shapes,
            prepared,
            incoming=Incoming(stream, decoder, freshness, self._line.timings.heartbeat_s, self._left_out),
            workplace=Workplace(log, jobs, self._threads, FlushLimits(flushes=limits.max_flushes)),
            database=Database(self._catalog, self._line.parameters),
            say_needed=self._preparation.say_needed,
        )
        self._health.start_streaming(freshness, awake_or_asleep())
        self._board.lead(
            lambda: pipeline.readings.reading(freshness.age_s(awake_or_asleep()), time.monotonic())
        )
        self.has_led = True
        self._metrics.leaderships.inc()
        _log.info("streaming", shapes=len(self.file.shapes), run=run_id, **describe(prepared.slot))
        try:
            await self._run_together(pipeline, watchdog, freshness)
        finally:
            self._board.rest()
            self._pipeline = None
            self.confirmed_lsn = pipeline.feed.confirmed_lsn
            await self._threads.settle(jobs.cancel)
            await asyncio.to_thread(log.close)
            with suppress(OSError):
                await asyncio.to_thread(remove_run, run)

    async def _start_stream(self, decoder: Decoder) -> ReplicationStream:
        def dropped(relation: Relation) -> None:
            self._metrics.dropped_by_server.inc()
            self._left_out.add(relation)

        *better, least = decoder.row_options()
        for options in better:
            try:
                return await self._line.start_stream(decoder, options, on_dropped=dropped)
            except PluginOptionRefused:
                continue
        return await self._line.start_stream(decoder, least, on_dropped=dropped)

    async def _run_together(self, pipeline: ShapesPipeline, watchdog: Watchdog, freshness: Freshness) -> None:
        await self._line.run_together(
            pipeline.feed.read(),
            {
                "jobs": pipeline.runner.run(),
                "tables": pipeline.watch.run(),
                "feedback": pipeline.feed.report(),
                "ceiling": pipeline.confirmed.run(pipeline.feed.tell_if_moved),
                "watchdog": watchdog.watch(),
                "guard": watchdog.guard(),
                "house": self._keep_house(pipeline, freshness),
            },
            until=self._ending.reached(pipeline, self._wal_lsn),
            drain=lambda reader: self._drain(pipeline, reader, freshness),
        )
        self._ending.refuse_stopped(pipeline)

    async def _wal_lsn(self) -> int:
        return await flushed_lsn(await self._line.connect())

    async def _drain(
        self, pipeline: ShapesPipeline, reader: asyncio.Task[None], freshness: Freshness
    ) -> None:
        self._health.enter(Phase.DRAINING)
        _log.info("draining", behind=pipeline.ledger.tracker.behind_count)
        reader.cancel()
        await asyncio.wait([reader])
        try:
            async with asyncio.timeout(self._settings.leader.shutdown_drain_s):
                await flush_everything(pipeline)
                await pipeline.watch.last_look()
                await pipeline.confirmed.catch_up()
        except TimeoutError:
            _log.warning("drain_incomplete", behind=pipeline.ledger.tracker.behind_count)
        await self._line.last_word(pipeline.feed.last_word, freshness)
        _log.info("drained", confirmed_lsn=format_lsn(pipeline.feed.confirmed_lsn))

    async def _keep_house(self, pipeline: ShapesPipeline, freshness: Freshness) -> None:
        """Once a second: forget what nobody needs, and say who holds everybody up."""
        ledger, looked_at = pipeline.ledger, float("-inf")
        trimmed = ledger.tracker.minimum
        said: dict[str, float] = {}
        while True:
            now = time.monotonic()
            if ledger.tracker.minimum != trimmed or ledger.log.is_over_limit:
                trimmed = ledger.tracker.minimum
                await asyncio.to_thread(ledger.log.trim, trimmed)
            if now - looked_at >= _OLD_RUNS_EVERY_S:
                looked_at = now
                run_id = ledger.log.directory.name
                await asyncio.to_thread(remove_older_runs, self._log_directory, run_id, time.time())
            await pipeline.parking.look(now, self._settings.change_log.stall_s)
            self._report(pipeline, freshness, said, now)
            await asyncio.sleep(_UPKEEP_EVERY_S)

    def _report(
        self, pipeline: ShapesPipeline, freshness: Freshness, said: dict[str, float], now: float
    ) -> None:
        frontier_lsn, readings = pipeline.ledger.tracker.frontier_lsn, pipeline.readings
        self._health.note_frontier(frontier_lsn, readings.unflushed_shapes(), awake_or_asleep())
        sentences = readings.complaints(now, self._settings.change_log.stall_s)
        if sentences:
            self._health.set_fault(Fault.SHAPE, " ".join(sentences.values()))
        else:
            self._health.clear_fault(Fault.SHAPE)
        for shape in [shape for shape in said if shape not in sentences]:
            del said[shape]
        for shape, sentence in sentences.items():
            if now - said.get(shape, float("-inf")) >= self._settings.change_log.stall_s:
                said[shape] = now
                _log.error("shape_stalled", shape=shape, detail=sentence)
