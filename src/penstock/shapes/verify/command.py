"""`penstock verify`: compare the tables of a shapes file with Postgres, and say what differs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog
from rich.console import Console

from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.lake.errors import CannotCompare
from penstock.lake.spark.session_conf import check_conf, for_short_work
from penstock.lake.spark.spark_session import open_session, stop_session
from penstock.lake.storages.opening import Source, open_verify_jobs
from penstock.model.shape import Shape, ShapesFile, definition_hash
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_sizes import total_bytes
from penstock.postgres.connection import QUALIFIED_NAMES, connect_replication
from penstock.postgres.leader.line import LeaderLine
from penstock.postgres.timeline import identify
from penstock.settings.services import ShapesSettings
from penstock.shapes.definition.shapes_file import ShapeFileError
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.following.drift import compare as drift_of
from penstock.shapes.registry.places import open_registry
from penstock.shapes.registry.registry import Registry
from penstock.shapes.verify.report import ShapeResult, as_json, exit_code, print_text
from penstock.shapes.verify.verification import Say, ShapeCheck, Verification

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
    # Standard output is for the result alone.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with _progress() as say:
        results = asyncio.run(verify(settings, file, run, say))
    if run.json:
        print(as_json(results))
    else:
        print_text(results)
    return exit_code(results)


async def verify(settings: ShapesSettings, file: ShapesFile, run: VerifyRun, say: Say) -> list[ShapeResult]:
    """Compare; a result for each shape that was asked for, in the order of the file."""
    registry = await asyncio.to_thread(open_registry(file.storage).read)
    if registry is None:
        raise CannotCompare(
            f"there is no registry in {file.storage}: nothing was stored there. Fix: run penstock shapes with"
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
        if checks:
            await _compare(settings, file, run, say, registry, checks, line, catalog)
        results |= {check.shape.name: check.result() for check in checks}
    return [results[shape.name] for shape in shapes]


def line_of(settings: ShapesSettings) -> LeaderLine:
    """Its sessions print values as the service's do: changes are compared with what that has stored."""
    return LeaderLine(settings.replication, settings.leader, role="verify", session=QUALIFIED_NAMES)


async def _compare(
    settings: ShapesSettings,
    file: ShapesFile,
    run: VerifyRun,
    say: Say,
    registry: Registry,
    checks: list[ShapeCheck],
    line: LeaderLine,
    catalog: ShapeCatalog,
) -> None:
    session = await line.connect()
    size_bytes = await total_bytes(session, [leaf.relation for each in checks for leaf in each.facts.leaves])
    conf = for_short_work(run.master, run.conf) if size_bytes <= _SHORT_WORK_BYTES else run.conf
    say("Spark starts")
    spark = await asyncio.to_thread(open_session, run.master, "penstock verify", conf)
    threads = JobThreads(settings.change_log.max_flushes)
    source = Source(registry.system_id, registry.timeline, catalog.decoder.plugin)
    try:
        await Verification(
            checks,
            jobs=open_verify_jobs(spark, file, source),
            threads=threads,
            catalog=catalog,
            session=session,
            parameters=line.parameters,
            slot=settings.replication.slot,
            timeout_s=run.timeout_s,
            show_values=run.show_values,
            say=say,
        ).run()
        # A table that was given up meanwhile says nothing.
        now = await asyncio.to_thread(open_registry(file.storage).read)
        for check in checks:
            entry = None if now is None else now.shapes.get(check.shape.name)
            if entry is None or not entry.has_only_moved_since(registry.shapes[check.shape.name]):
                check.problem = "its table was altered or given up meanwhile. Fix: verify again"
    finally:
        threads.close()
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
    connection = await connect_replication(line.parameters, wal_sender_timeout_s=line.timings.timeout_s)
    try:
        identity = await identify(connection)
    finally:
        connection.pgconn.finish()
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


@contextmanager
def _progress() -> Iterator[Say]:
    """Say what is being done: on one line that changes if somebody watches, else in the log."""
    if not sys.stderr.isatty():
        yield lambda text: _log.info("verify", step=text)
        return
    with Console(stderr=True).status("penstock verify") as status:
        yield status.update
