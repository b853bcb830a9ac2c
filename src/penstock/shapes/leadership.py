"""One leadership of the shapes, wherever changes come from: from the lock to its release."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Set
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import structlog

from penstock.clock import awake_or_asleep
from penstock.decoding.plugins import decoder_for
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.lake.ports import ShapeJobs
from penstock.model.lsn import format_lsn
from penstock.model.shape import ShapesFile
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.connection import QUALIFIED_NAMES
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.line import AnotherLeads, LeaderLine
from penstock.postgres.leader.lock import Session
from penstock.postgres.leader.watchdog import Watchdog
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.services import ShapesSettings
from penstock.shapes.ending import Ending, flush_everything
from penstock.shapes.flushing.complaints import LONG_JOB
from penstock.shapes.flushing.copy_watch import LEAST_PATIENCE_S
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.flushing.workplace import Database, Workplace
from penstock.shapes.pace.flush_plan import FlushLimits
from penstock.shapes.preparation import Preparation, Prepared
from penstock.shapes.readings import ShapeLine
from penstock.shapes.registry.registry import RegistryStore
from penstock.shapes.wiring import ShapesPipeline
from penstock.status.board import StatusBoard
from penstock.status.health import Fault, Health, Phase
from penstock.status.metrics import ShapesMetrics
from penstock.status.model import ShapesReading

UPKEEP_EVERY_S: Final = 1.0

_log = structlog.get_logger()


class Order(NamedTuple):
    """What is to be done."""

    file: ShapesFile
    store: RegistryStore
    source: Path | StreamAddress
    """Where changes come from: through a log in this directory, or from a marked stream."""
    plugin: str
    """Whose frames they are."""
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


class ShapesLeadership(ABC):
    """Competes for the slot's lock and, having it, keeps the shapes' tables up until something ends it.

    Used once.
    """

    reads_slot: ClassVar[bool]
    """Whether changes come from the slot itself."""

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
        self._order = order
        self.file = order.file
        self._make_jobs = make_jobs
        self._threads = threads
        self._resnapshot = order.resnapshot
        self._health = service.health
        self._metrics = service.metrics
        self._board = service.board
        self._line = LeaderLine(
            settings.replication,
            settings.leader,
            role="shapes",
            session=QUALIFIED_NAMES,
            reads_slot=self.reads_slot,
        )
        slot_plugin = settings.replication.output_plugin
        self._catalog = ShapeCatalog(self._line.connect, decoder_for(order.plugin), slot_plugin=slot_plugin)
        self._preparation = Preparation(
            order.file,
            slot=settings.replication.slot,
            plugin=slot_plugin,
            line=self._line,
            catalog=self._catalog,
            store=order.store,
            threads=threads,
            metrics=service.metrics,
            slot_within_s=settings.change_log.stall_s if order.once else None,
            from_stream=not self.reads_slot,
        )
        self._pipeline: ShapesPipeline | None = None
        self._ending = Ending(service.stop, once=order.once, stall_s=settings.change_log.stall_s)
        self._said: dict[str, float] = {}
        """When each complaint was last logged."""
        self.has_led = False
        self.led_since = math.inf
        """When it began to lead."""
        self.confirmed_lsn = 0

    @property
    def held(self) -> Session | None:
        """See LeaderLine."""
        return self._line.held

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
                await self._lead(
                    await self._preparation.run(identity, jobs, self._resnapshot), jobs, identity
                )
            finally:
                # The tables' sessions are free for the next leadership only when nothing runs in them.
                await self._threads.settle(jobs.cancel)
                jobs.end()
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

    @abstractmethod
    async def _lead(self, prepared: Prepared, jobs: ShapeJobs, identity: ServerIdentity) -> None:
        """Make a pipeline, and `_serve` it."""

    @abstractmethod
    async def _target_lsn(self) -> int:
        """Up to where the tables have to be with `once`, asked now."""

    @abstractmethod
    async def _say_last(self, pipeline: ShapesPipeline, freshness: Freshness) -> None:
        """Tell the source, at the end, how far the tables are."""

    def _workplace(self, jobs: ShapeJobs) -> Workplace:
        limits = FlushLimits(flushes=self._settings.change_log.max_flushes)
        patience_s = max(LONG_JOB * self._settings.change_log.stall_s, LEAST_PATIENCE_S)
        return Workplace(jobs, self._threads, limits, self._metrics.count_quarantined, patience_s)

    @property
    def _database(self) -> Database:
        return Database(self._catalog, self._line.parameters)

    async def _serve(
        self,
        pipeline: ShapesPipeline,
        jobs: ShapeJobs,
        vouched: tuple[Freshness, Watchdog],
        others: Mapping[str, Coroutine[Any, Any, None]],
        **said: object,
    ) -> None:
        """Run the pipeline, and `others` beside it, to its end; `said` is logged."""
        freshness, watchdog = vouched
        self._pipeline = pipeline
        self._health.start_streaming(freshness, awake_or_asleep())
        self._board.lead(lambda: self._reading(pipeline, freshness))
        self.has_led, self.led_since = True, time.monotonic()
        jobs.lead(lambda: freshness.is_fresh(awake_or_asleep()))
        self._metrics.leaderships.inc()
        _log.info("streaming", shapes=len(self.file.shapes), **said)
        try:
            await self._line.run_together(
                pipeline.feed.read(),
                {
                    "jobs": pipeline.runner.run(),
                    "tables": pipeline.watch.run(),
                    "idle tables": pipeline.idle.run(),
                    "feedback": pipeline.feed.report(),
                    "ceiling": pipeline.confirmed.run(pipeline.feed.tell_if_moved),
                    "watchdog": watchdog.watch(),
                    "guard": watchdog.guard(),
                    **others,
                },
                until=self._ending.reached(pipeline, self._target_lsn),
                drain=lambda reader: self._drain(pipeline, reader, freshness),
            )
            self._ending.refuse_stopped(pipeline)
        finally:
            self._board.rest()
            self._pipeline = None
            self.confirmed_lsn = pipeline.feed.confirmed_lsn
            await self._threads.settle(jobs.cancel)

    def _reading(self, pipeline: ShapesPipeline, freshness: Freshness) -> ShapesReading:
        return pipeline.readings.reading(
            freshness.age_s(awake_or_asleep()), time.monotonic(), quarantined=self._metrics.quarantined
        )

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
        await self._say_last(pipeline, freshness)
        _log.info("drained", confirmed_lsn=format_lsn(pipeline.feed.confirmed_lsn))

    def _report(self, pipeline: ShapesPipeline, now: float, *more: Mapping[str, str]) -> None:
        """Once a second: say who holds everybody up; `more` are further sentences, each of a shape."""
        said = self._said
        frontier_lsn, readings = pipeline.ledger.tracker.frontier_lsn, pipeline.readings
        self._health.note_frontier(frontier_lsn, readings.unflushed_shapes(), awake_or_asleep())
        sentences = readings.complaints(now, self._settings.change_log.stall_s)
        for shape, sentence in (each for found in more for each in found.items()):
            sentences[shape] = f"{sentences[shape]} {sentence}" if shape in sentences else sentence
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
