"""`penstock shapes`: keep the tables of a shapes file equal to Postgres, until told to stop."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from pyspark.sql import SparkSession

from penstock import exit_codes
from penstock.changelog.errors import not_shared
from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.errors import NeedsOperator, PenstockError, PostgresError
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.lake.errors import SparkGone
from penstock.lake.jobs.log_check import blind_hosts, cancel_look, runs_in_driver
from penstock.lake.jobs.where_check import where_refusals
from penstock.lake.ports import ShapeJobs
from penstock.lake.spark.session_conf import check_conf
from penstock.lake.spark.spark_session import open_session, stop_session
from penstock.lake.storages.opening import Source, open_jobs
from penstock.lake.stream.keeping import Keeping
from penstock.model.relation import Relation
from penstock.model.shape import ShapesFile
from penstock.ops.access import Access
from penstock.ops.server import OpsServer, check_port
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.connection import QUALIFIED_NAMES
from penstock.postgres.leader.line import LeaderLine
from penstock.postgres.slot.monitor import SlotMonitor
from penstock.postgres.timeline import ServerIdentity
from penstock.service.cycle import LeaderCycle
from penstock.settings.loading import load_stream_source
from penstock.settings.services import ShapesSettings
from penstock.shapes.credentials import watch_credentials
from penstock.shapes.definition.reload import compare_files, terminal_is_gone
from penstock.shapes.definition.shapes_file import ShapeFileError, load_shapes_file
from penstock.shapes.definition.source_check import address_of, shared_names
from penstock.shapes.ending import ShapeStalled
from penstock.shapes.feeders import Feeder, feeder_for
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.leadership import Order, Service, ShapesLeadership
from penstock.shapes.preparation import judge
from penstock.shapes.progress import ProgressView
from penstock.shapes.readings import ShapeLine
from penstock.shapes.registry.decisions import not_our_table
from penstock.shapes.registry.places import open_registry
from penstock.shapes.registry.registry import RegistryError
from penstock.status.board import StatusBoard
from penstock.status.health import Health, Phase
from penstock.status.metrics import ShapesMetrics
from penstock.status.model import SourceReading

_SAY_AFTER_S: Final = 5.0
_EXECUTORS_WITHIN_S: Final = 60.0

_log = structlog.get_logger()


class Run(NamedTuple):
    """How the command was called."""

    master: str
    conf: Mapping[str, str]
    once: bool = False
    resnapshot: frozenset[str] = frozenset()
    stream: StreamAddress | None = None
    """The marked stream that changes come from; None: a slot of our own."""


class ShapesApp:
    """The outer loop. A signal ends it, and with `--once` the end of the work."""

    def __init__(
        self,
        settings: ShapesSettings,
        file: ShapesFile,
        run: Run,
        *,
        spark: SparkSession,
        progress: ProgressView,
    ) -> None:
        self._settings = settings
        self._file = file
        self._run = run
        self._spark = spark
        self._progress = progress
        self._health = Health()
        self._metrics = ShapesMetrics()
        stream = run.stream
        source = None if stream is None else SourceReading(stream.stream, stream.slot)
        self._credentials = watch_credentials(file, stream)
        self._board = StatusBoard(
            "shapes", self._health, source=source, credentials_expire_at=self._credentials_expire_at
        )
        self._cycle = LeaderCycle(
            self._health, standby_retry_interval_s=settings.leader.standby_retry_interval_s
        )
        # A snapshot, an upkeep, and looks at tables have threads beside those of the flushes.
        self._threads = JobThreads(settings.change_log.max_flushes + 3)
        self._resnapshot: Set[str] = run.resnapshot
        self._leadership: ShapesLeadership | None = None
        self._identity: ServerIdentity | None = None
        self._left_slot: str | None = None
        """The slot that the tables were fed from before they were fed from a stream; it need not exist."""
        self._removed: set[str] = set()
        self._reload_turn = asyncio.Lock()
        self._reloads: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve; returns the exit code."""
        self._cycle.listen()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hung_up)
        listen = self._settings.ops
        access = Access(listen.secret, metrics_open=listen.metrics_open)
        ops = OpsServer(self._health, self._board.read, self._metrics.exposition, access)
        url = await ops.start(listen.host, listen.port)
        source = {"slot": self._settings.replication.slot}
        if self._run.stream is not None:
            source = {"stream": self._run.stream.stream, "of_slot": self._run.stream.slot}
        _log.info("started", ops=url, shapes=len(self._file.shapes), **source)
        watching = None if self._run.stream else self._watch_slot(self._settings.replication.slot)
        showing = asyncio.create_task(self._progress.run(self._lines, self._phase), name="progress")
        try:
            await self._check_shapes()
            if self._left_slot is not None:
                watching = self._watch_slot(self._left_slot)
            await self._check_log()
            return await self._serve()
        finally:
            showing.cancel()
            if watching is not None:
                watching.cancel()
            self._health.enter(Phase.STOPPED)
            self._threads.close()
            if self._credentials is not None:
                self._credentials.close()
            await ops.stop()
            _log.info("stopped")

    def _credentials_expire_at(self) -> float | None:
        return None if self._credentials is None else self._credentials.expires_at

    def _watch_slot(self, name: str) -> asyncio.Task[None]:
        monitor = SlotMonitor.of(
            self._settings.replication.model_copy(update={"slot": name}),
            self._settings.leader,
            on_slot=self._board.note_slot,
            on_clock=self._board.note_clock,
        )
        return asyncio.create_task(monitor.run(), name="slot monitor")

    async def _serve(self) -> int:
        stall_s = self._settings.change_log.stall_s
        give_up_at, confirmed_lsn = time.monotonic() + stall_s, 0
        while not self._cycle.stop.is_set():
            self._leadership = leadership = self._new_leadership()
            try:
                another = await self._cycle.attempt(leadership)
            except ShapeStalled as error:
                _log.error("stalled", detail=str(error))
                return exit_codes.FAILED
            except SparkGone as error:
                if self._cycle.stop.is_set():
                    _log.warning("drain_incomplete", detail="Java was told to stop at the same time")
                    break
                # Whoever watches this process starts another, or a standby leads.
                _log.error("spark_gone", detail=str(error))
                return exit_codes.SPARK_GONE
            except Exception as error:
                if self._run.once and isinstance(error, NeedsOperator):
                    raise
                # One that led for so long has seen to it itself that something moves.
                has_moved = time.monotonic() - leadership.led_since >= stall_s
                has_moved = has_moved or leadership.confirmed_lsn > confirmed_lsn
                await self._cycle.recover(error, look=self._look)
                if has_moved:
                    give_up_at, confirmed_lsn = time.monotonic() + stall_s, leadership.confirmed_lsn
                if self._run.once and time.monotonic() > give_up_at:
                    _log.error("stalled", detail=str(error))
                    return exit_codes.FAILED
                continue
            finally:
                self._health.end_leadership()
                if leadership.has_led:
                    # The registry has it now: a later leadership must not do it once more.
                    self._resnapshot = frozenset()
            if another is None:
                if leadership.is_given_up:
                    continue
                break
            if self._run.once:
                _log.error("another_leads", detail=f"{another.description} holds the slot's lock")
                return exit_codes.ANOTHER_LEADS
            await self._cycle.stand_by(another)
        return exit_codes.OK

    async def _look(self) -> None:
        await LeaderLine(
            self._settings.replication,
            self._settings.leader,
            role="shapes",
            reads_slot=self._run.stream is None,
        ).look()

    def _new_leadership(self) -> ShapesLeadership:
        # Nobody measures them any more.
        while self._removed:
            self._metrics.forget(self._removed.pop())
        feeder = self._feeder(self._file)
        return feeder.leadership(
            self._settings,
            Order(
                self._file,
                open_registry(self._file.registry_at),
                feeder.source,
                feeder.plugin,
                self._resnapshot,
                self._run.once,
            ),
            make_jobs=partial(self._make_jobs, self._file),
            threads=self._threads,
            service=Service(self._health, self._metrics, self._board, self._cycle.stop),
        )

    def _feeder(self, file: ShapesFile) -> Feeder:
        return feeder_for(self._settings, file, self._run.stream)

    def _make_jobs(self, file: ShapesFile, identity: ServerIdentity) -> ShapeJobs:
        self._identity = identity
        plugin = self._feeder(file).plugin
        source = Source(identity.system_id, identity.timeline, plugin, identity.switch_points)
        undeliverable = self._settings.undeliverable
        url = undeliverable.quarantine_url if undeliverable.policy == "quarantine" else None
        keeping = Keeping(self._settings.records.max_record_bytes, url)
        return open_jobs(self._spark, file, source, keeping)

    async def _check_shapes(self) -> None:
        """Refuse what can't work before anything starts; waits for a Postgres that doesn't answer."""
        while not self._cycle.stop.is_set():
            try:
                await self._check(self._file)
            except (ShapeFileError, RegistryError):
                raise
            except PenstockError as error:
                if self._run.once:
                    raise
                await self._cycle.recover(error)
                continue
            return

    async def _check_log(self) -> None:
        """Say it once, and at the start, if a large flush will fail on the executors."""
        directory = self._feeder(self._file).source
        if runs_in_driver(self._run.master) or not isinstance(directory, Path):
            return
        looking = asyncio.create_task(self._threads.run(blind_hosts, self._spark, directory))
        try:
            hosts = await self._answered(looking)
        finally:
            looking.cancel()
            await self._threads.settle(partial(cancel_look, self._spark))
        if hosts:
            _log.error("log_not_shared", detail=str(not_shared(directory, ", ".join(hosts))))

    async def _answered(self, looking: asyncio.Task[list[str]]) -> list[str]:
        """What executors say; nothing if none of them answers for long, or a signal comes."""
        stopped = asyncio.create_task(self._cycle.stop.wait())
        ends = [looking, stopped]
        what = f"executors of {self._run.master}, asked whether they see the log's directory"
        try:
            await asyncio.wait(ends, timeout=_SAY_AFTER_S, return_when=asyncio.FIRST_COMPLETED)
            if not looking.done() and not stopped.done():
                _log.warning("waiting_for_executors", waits_for=what)
                rest_s = _EXECUTORS_WITHIN_S - _SAY_AFTER_S
                await asyncio.wait(ends, timeout=rest_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if looking.done():
            return looking.result()
        if not self._cycle.stop.is_set():
            _log.error(
                "log_not_checked",
                detail=f"no answer within {_EXECUTORS_WITHIN_S:g} s from {what}. Fix: see whether the cluster"
                " has room for this application; no snapshot and no larger flush ends before that",
            )
        return []

    async def _check(self, file: ShapesFile) -> None:
        """ShapeFileError for shapes that can't work."""
        refuse(shared_names(file, self._run.stream))
        decoder = decoder_for(self._feeder(file).plugin)
        facts, names = await read_facts(self._settings, file, decoder)
        registry = await asyncio.to_thread(open_registry(file.registry_at).read)
        is_streamed = self._run.stream is not None
        if is_streamed:
            self._left_slot = self._settings.replication.slot if registry is None else registry.slot
        refuse(judge(file, facts, names, registry, decoder, from_stream=is_streamed).refused)
        refuse(await asyncio.to_thread(where_refusals, self._spark, file, facts))

    def _hung_up(self) -> None:
        """SIGHUP: read the file again, unless it says that the terminal was closed."""
        if terminal_is_gone():
            self._cycle.stop.set()
            return
        if self._run.once:
            _log.warning("reload_refused", detail="--once ends with the file that it began with")
            return
        reload = asyncio.create_task(self._reload(), name="reload")
        self._reloads.add(reload)
        reload.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        """Go on with the file as it is now. A bad one is said, and changes nothing."""
        async with self._reload_turn:
            try:
                file = await asyncio.to_thread(load_shapes_file, Path(self._file.path))
                news = compare_files(self._file, file)
                await self._check(file)
                await self._check_new_tables(file, news.added)
            except PenstockError as error:
                _log.error("reload_refused", detail=str(error), note="the shapes go on as they were")
                return
            except Exception as error:
                _log.error("reload_refused", detail=type(error).__name__, exc_info=error)
                return
            self._file = file
            self._removed |= set(news.removed)
            _log.info("reloaded", **{what: list(names) for what, names in news._asdict().items()})
            if self._leadership is not None:
                give_up_if_other(self._leadership, file)

    async def _check_new_tables(self, file: ShapesFile, added: Collection[str]) -> None:
        """A leadership would be refused as a whole for a table that isn't ours."""
        new = tuple(shape for shape in file.shapes if shape.name in added)
        if self._identity is None or not new:
            return
        jobs = await asyncio.to_thread(self._make_jobs, replace(file, shapes=new), self._identity)
        for shape in new:
            state = await asyncio.to_thread(jobs.state, shape)
            if state.exists and state.tx_offset is None:
                raise ShapeFileError(not_our_table(shape.name))

    def _lines(self, now: float) -> list[ShapeLine]:
        return [] if self._leadership is None else self._leadership.lines(now)

    def _phase(self) -> Phase:
        return self._health.phase


def give_up_if_other(leadership: ShapesLeadership, file: ShapesFile) -> None:
    """Let a leadership end that doesn't do as the file says, or whose stopped shapes are to be tried again.

    What counts is the file that it began with: it may have been given up before, for another one.
    """
    news = compare_files(leadership.file, file)
    if leadership.is_given_up or not news.is_empty or leadership.has_stopped_shapes():
        leadership.give_up(news.not_as_before)


async def read_facts(
    settings: ShapesSettings, file: ShapesFile, decoder: Decoder
) -> tuple[Mapping[Relation, TableFacts], list[Relation]]:
    """What the database says of the tables that the file names, and the names of all that it has."""
    line = LeaderLine(settings.replication, settings.leader, role="shapes", session=QUALIFIED_NAMES)
    async with line.open():
        catalog = ShapeCatalog(line.connect, decoder)
        tables = {shape.table for shape in file.shapes}
        return await catalog.facts(tables), await catalog.table_names()


def stream_address(url: str) -> StreamAddress:
    """What `--from` names; SettingsError if that is no good."""
    return address_of(load_stream_source(url))


def refuse(lines: Sequence[str]) -> None:
    """ShapeFileError if there are any."""
    if lines:
        raise ShapeFileError("\n".join(lines))


def check_without_spark(settings: ShapesSettings, file: ShapesFile, run: Run) -> None:
    """Refuse at once what needs no Spark to be seen: Spark takes seconds to start.

    If Postgres doesn't answer, the service waits for it later, unless it is `--once`.
    """
    unknown = sorted(run.resnapshot - {shape.name for shape in file.shapes})
    if unknown:
        raise ShapeFileError(
            f"{file.path}: no shape {', '.join(map(repr, unknown))}. Fix: give --resnapshot one of its names"
        )
    refuse(shared_names(file, run.stream))
    check_conf(file.storage, run.conf)
    decoder = decoder_for(feeder_for(settings, file, run.stream).plugin)
    check_port(settings.ops.host, settings.ops.port)
    registry = open_registry(file.registry_at).read()
    try:
        facts, names = asyncio.run(read_facts(settings, file, decoder))
    except PostgresError:
        if run.once:
            raise
        return
    is_streamed = run.stream is not None
    refuse(judge(file, facts, names, registry, decoder, from_stream=is_streamed).refused)


def run_shapes(settings: ShapesSettings, file: ShapesFile, run: Run, progress: ProgressView) -> int:
    """Run `penstock shapes` on a Spark of its own; returns the exit code."""
    # It would end the process until the loop listens to it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    check_without_spark(settings, file, run)
    # Before the loop, which shows that the process lives: this takes seconds, and blocks.
    spark = open_session(run.master, "penstock shapes", run.conf)
    try:
        return asyncio.run(ShapesApp(settings, file, run, spark=spark, progress=progress).run())
    finally:
        stop_session(spark)
