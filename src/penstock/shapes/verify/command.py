"""`penstock verify`: compare the tables of a shapes file with Postgres, and say what differs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from psycopg import AsyncConnection
from rich.console import Console

from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.lake.errors import CannotCompare
from penstock.lake.spark.session_conf import check_conf, for_short_work
from penstock.lake.spark.spark_session import open_session, stop_session
from penstock.lake.storages.opening import Source, open_verify_jobs
from penstock.lake.storages.stream_url import StreamUrl, stream_of
from penstock.model.shape import Shape, ShapesFile, definition_hash
from penstock.model.stream_position import StreamPosition
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_sizes import total_bytes
from penstock.postgres.connection import QUALIFIED_NAMES, connect_replication
from penstock.postgres.leader.line import LeaderLine
from penstock.postgres.timeline import ServerIdentity, flushed_lsn, identify
from penstock.settings.services import ShapesSettings
from penstock.shapes.definition.shapes_file import ShapeFileError
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.flushing.workplace import Database
from penstock.shapes.following.drift import compare as drift_of
from penstock.shapes.registry.places import open_registry
from penstock.shapes.registry.registry import Registry
from penstock.shapes.verify.cuts import Led, Passing, Say, ShapeCheck, VerifyCuts
from penstock.shapes.verify.report import SHAPES, STREAM_SHAPES, ShapeResult, as_json, exit_code, print_text
from penstock.shapes.verify.stream_shapes import StreamShapes
from penstock.shapes.verify.verification import Verification

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHORT_WORK_BYTES: Final = 32 << 20
"""Tables of this size in all are compared in seconds, most of which Java spends on its own start."""

_log = structlog.get_logger()


class VerifyRun(NamedTuple):
    """How the command was called."""

    master: str
    conf: Mapping[str, str]
    shape: str | None = None
    timeout_s: float = 60.0
    """How long to wait for the service to reach a position."""
    show_values: bool = False
    json: bool = False


def run_verify(settings: ShapesSettings, file: ShapesFile, run: VerifyRun) -> int:
    """Run `penstock verify` on a Spark of its own; returns the exit code.

    PenstockError if nothing could be compared at all.
    """
    names = [shape.name for shape in file.shapes]
    if run.shape is not None and run.shape not in names:
        raise ShapeFileError(
            f"{file.path}: no shape {run.shape!r}. Fix: give --shape one of {', '.join(names)}"
        )
    check_conf(file.storage, run.conf)
    with showing_progress() as say:
        results = asyncio.run(verify(settings, file, run, say))
    words = SHAPES if file.registry is None else STREAM_SHAPES
    if run.json:
        print(as_json(results, words))
    else:
        print_text(results, words)
    return exit_code(results)


async def verify(
    settings: ShapesSettings, file: ShapesFile, run: VerifyRun, say: Say, spark: SparkSession | None = None
) -> list[ShapeResult]:
    """Compare; a result for each shape that was asked for, in the order of the file.

    On a Spark of its own, unless there is one.
    """
    registry = await asyncio.to_thread(open_registry(file.registry_at).read)
    if registry is None:
        raise CannotCompare(
            f"there is no registry in {file.registry_at}: nothing was stored. Fix: run penstock shapes with"
            " this file first"
        )
    line = line_of(settings)
    async with line.open():
        await _check_server(line, registry, settings.replication.slot)
        catalog = ShapeCatalog(line.connect, decoder_for(settings.replication.output_plugin))
        shapes = [shape for shape in file.shapes if run.shape in (None, shape.name)]
        facts = await catalog.facts({shape.table for shape in shapes})
        results: dict[str, ShapeResult] = {}
        checks = []
        for shape in shapes:
            try:
                checks.append(_check_of(shape, registry, facts.get(shape.table), catalog.decoder))
            except CannotCompare as error:
                results[shape.name] = ShapeResult(shape.name, problem=str(error))
        comparing = _Comparing(settings, file, run, say, registry, line, catalog)
        if checks and spark is None:
            await _on_its_own_spark(comparing, checks)
        elif checks and spark is not None:
            await comparing.compare(checks, spark)
        results |= {check.shape.name: check.result() for check in checks}
    return [results[shape.name] for shape in shapes]


def line_of(settings: ShapesSettings) -> LeaderLine:
    """Its sessions print values as the service's do: changes are compared with what that has stored."""
    return LeaderLine(settings.replication, settings.leader, role="verify", session=QUALIFIED_NAMES)


class _Comparing(NamedTuple):
    """What comparisons need to know, whatever the shapes' storage."""

    settings: ShapesSettings
    file: ShapesFile
    run: VerifyRun
    say: Say
    registry: Registry
    line: LeaderLine
    catalog: ShapeCatalog

    @property
    def _led(self) -> Led:
        def read_ceiling() -> int:
            registry = open_registry(self.file.registry_at).read()
            return 0 if registry is None else registry.ceiling_lsn

        return Led(self.settings.replication.slot, self.line.lock_key, read_ceiling)

    async def compare(self, checks: list[ShapeCheck], spark: SparkSession) -> None:
        """Bring every check to its end."""
        session = await self.line.connect()
        stream = stream_of(self.file)
        if stream is None:
            await self._compare_tables(checks, spark, session)
        else:
            await self._compare_streams(checks, spark, session, stream)
        # A table that was given up meanwhile says nothing.
        now = await asyncio.to_thread(open_registry(self.file.registry_at).read)
        for check in checks:
            entry = None if now is None else now.shapes.get(check.shape.name)
            if entry is None or not entry.has_only_moved_since(self.registry.shapes[check.shape.name]):
                check.problem = "its table was altered or given up meanwhile. Fix: verify again"

    async def _compare_tables(
        self, checks: list[ShapeCheck], spark: SparkSession, session: AsyncConnection
    ) -> None:
        plugin = self.catalog.decoder.plugin
        source = Source(self.registry.system_id, self.registry.timeline, plugin)
        threads = JobThreads(self.settings.change_log.max_flushes)
        try:
            await Verification(
                checks,
                jobs=open_verify_jobs(spark, self.file, source),
                threads=threads,
                database=Database(self.catalog, self.line.parameters),
                passing=Passing(session, self._led, self.run.timeout_s, self.say),
                show_values=self.run.show_values,
                say=self.say,
            ).run()
        finally:
            threads.close()

    async def _compare_streams(
        self, checks: list[ShapeCheck], spark: SparkSession, session: AsyncConnection, stream: StreamUrl
    ) -> None:
        plugin = self.catalog.decoder.plugin
        shapes = StreamShapes(
            spark,
            stream,
            cuts=VerifyCuts(self.catalog, self.line.parameters, plugin=plugin, say=self.say),
            passing=Passing(session, self._led, self.run.timeout_s, self.say),
            say=self.say,
        )
        here = StreamPosition(self.registry.timeline, await flushed_lsn(session))
        await shapes.compare(checks, self.registry.system_id, here, show_values=self.run.show_values)


async def _on_its_own_spark(comparing: _Comparing, checks: list[ShapeCheck]) -> None:
    run = comparing.run
    relations = [leaf.relation for each in checks for leaf in each.facts.leaves]
    size_bytes = await total_bytes(await comparing.line.connect(), relations)
    conf = for_short_work(run.master, run.conf) if size_bytes <= _SHORT_WORK_BYTES else run.conf
    comparing.say("Spark starts")
    spark = await asyncio.to_thread(open_session, run.master, "penstock verify", conf)
    try:
        await comparing.compare(checks, spark)
    finally:
        await asyncio.to_thread(stop_session, spark)


def _check_of(shape: Shape, registry: Registry, facts: TableFacts | None, decoder: Decoder) -> ShapeCheck:
    """What is to be compared. CannotCompare if the shape's table doesn't stand for the shape."""
    entry = registry.shapes.get(shape.name)
    if facts is None:
        raise CannotCompare(f"{shape.table} is not in the database")
    if entry is None:
        raise CannotCompare("it is new. Fix: start penstock shapes, which takes its snapshot")
    if entry.definition != definition_hash(shape):
        raise CannotCompare(
            "its definition was changed. Fix: start penstock shapes, which snapshots it again"
        )
    if entry.awaits_snapshot is not None or entry.facts is None:
        reason = entry.awaits_snapshot or "it has none"
        raise CannotCompare(f"it awaits a snapshot ({reason}). Fix: start penstock shapes, or wait for it")
    drift = drift_of(shape, entry.facts, facts, decoder)
    if drift.stop or drift.again:
        raise CannotCompare(drift.stop or f"{drift.again}. Fix: start penstock shapes, or wait for it")
    kept = {column.name for column in drift.facts.wanted(shape.columns)}
    return ShapeCheck(shape, facts, left_out=tuple(name for name in drift.facts.gone if name in kept))


async def _check_server(line: LeaderLine, registry: Registry, slot: str) -> None:
    """Refuse a server or a slot that the tables don't come from."""
    identity = await identity_of(line)
    if identity.system_id != registry.system_id:
        raise CannotCompare(
            f"this storage belongs to the database system {registry.system_id}, and the server is"
            f" {identity.system_id}. Fix: connect to the former"
        )
    if identity.timeline != registry.timeline:
        raise CannotCompare(
            f"the tables follow timeline {registry.timeline}, and the server is on {identity.timeline}. Fix:"
            " start penstock shapes on the present primary, and verify then"
        )
    if slot != registry.slot:
        raise CannotCompare(
            f"the tables are fed from slot {registry.slot}, and REPLICATION_SLOT is {slot}. Fix: set"
            f" REPLICATION_SLOT={registry.slot}"
        )


async def identity_of(line: LeaderLine) -> ServerIdentity:
    """The server at the other end."""
    connection = await connect_replication(line.parameters, wal_sender_timeout_s=line.timings.timeout_s)
    try:
        return await identify(connection)
    finally:
        connection.pgconn.finish()


@contextmanager
def showing_progress() -> Iterator[Say]:
    """Say what is being done: on one line that changes if somebody watches, else in the log."""
    # Standard output is for the result alone.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if not sys.stderr.isatty():
        yield lambda text: _log.info("verify", step=text)
        return
    with Console(stderr=True).status("penstock verify") as status:
        yield status.update
