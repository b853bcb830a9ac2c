"""`penstock verify --stream`: is the marked stream, folded, equal to Postgres?

1. What the stream has now is read first: that may take long, and nothing in Postgres waits for it.
2. Then a snapshot of the tables is taken. Its cut P is exact: transactions with a commit LSN below P are in
   it, no others. The stream is read up to P, and not further: positions tell where that is.
3. So both sides stand at the same place, and one look decides, whatever goes on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from penstock.decoding.plugins import STREAM_PLUGIN, decoder_for
from penstock.decoding.table_patterns import is_told
from penstock.lake.errors import CannotCompare
from penstock.lake.spark.session_conf import check_conf
from penstock.lake.spark.spark_session import open_session, stop_session
from penstock.lake.stream.place import StreamPlace
from penstock.lake.stream.told import Told
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.stream_position import StreamPosition
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import ORDINARY
from penstock.postgres.leader.line import LeaderLine
from penstock.postgres.timeline import flushed_lsn
from penstock.settings.services import CaptureSettings
from penstock.shapes.verify.command import identity_of, showing_progress
from penstock.shapes.verify.cuts import Say, ShapeCheck, VerifyCuts
from penstock.shapes.verify.report import STREAM, ShapeResult, as_json, exit_code, print_text
from penstock.shapes.verify.stream_look import StreamLook
from penstock.shapes.verify.stream_reading import StreamReading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StreamRun(NamedTuple):
    """How the command was called."""

    master: str
    conf: Mapping[str, str]
    tables: tuple[Relation, ...] = ()
    """None: all that the stream names."""
    complete: bool = False
    """Whether the stream has all that ever happened to the tables."""
    timeout_s: float = 60.0
    """How long to wait for a manifest that reaches the snapshot."""
    show_values: bool = False
    json: bool = False


def run_verify_stream(settings: CaptureSettings, run: StreamRun) -> int:
    """Run `penstock verify --stream` on a Spark of its own; returns the exit code.

    PenstockError if nothing could be compared at all.
    """
    check_conf("", run.conf)
    with showing_progress() as say:
        results = asyncio.run(_with_spark(settings, run, say))
    if run.json:
        print(as_json(results, STREAM))
    else:
        print_text(results, STREAM)
    return exit_code(results)


async def _with_spark(settings: CaptureSettings, run: StreamRun, say: Say) -> list[ShapeResult]:
    say("Spark starts")
    spark = await asyncio.to_thread(open_session, run.master, "penstock verify", run.conf)
    try:
        return await verify_stream(settings, run, say, spark)
    finally:
        await asyncio.to_thread(stop_session, spark)


async def verify_stream(
    settings: CaptureSettings, run: StreamRun, say: Say, spark: SparkSession
) -> list[ShapeResult]:
    """Compare; a result for each table, by name."""
    kinesis, slot = settings.kinesis, settings.replication.slot
    place = StreamPlace(kinesis.stream, kinesis.region, kinesis.endpoint_url)
    # Types have the names that capture's own session gave them.
    line = LeaderLine(settings.replication, settings.leader, role="verify")
    async with line.open(), AsyncExitStack() as stack:
        server = await identity_of(line)
        reading = StreamReading(place, kinesis.marks_stream or kinesis.stream, slot)
        begin = await asyncio.to_thread(reading.begin, server.system_id)
        say(f"reading {place.stream} from {begin.described()} on")
        told = Told(spark, place)
        here = StreamPosition(server.timeline, await flushed_lsn(await line.connect()))
        await asyncio.to_thread(reading.read_what_is_there, told, here)
        catalog = ShapeCatalog(line.connect, decoder_for(STREAM_PLUGIN))
        named = (await asyncio.to_thread(told.tables)).keys()
        checks, results = await _checks(catalog, settings, run, named)
        cuts = VerifyCuts(catalog, line.parameters, plugin=settings.replication.output_plugin, say=say)
        taken = await cuts.take(checks, stack)
        if taken is not None:
            exported, places = taken
            cut = StreamPosition(server.timeline, exported.cut_lsn)
            say(f"waiting until manifests reach {cut.described()}")
            await asyncio.to_thread(reading.read_until, told, cut, run.timeout_s)
            told_behind = None if reading.gap_before is None else reading.gap_before.described()
            if told_behind is not None and run.complete:
                raise CannotCompare(
                    f"{place.stream} has a GAP before {told_behind}, so it doesn't have all that ever"
                    " happened. Fix: verify without --complete"
                )
            tables = await asyncio.to_thread(told.tables)
            look = StreamLook(spark, told, tables, run.complete, run.show_values)
            for check in checks:
                say(f"comparing {check.shape.name}")
                check.told_behind = told_behind
                await asyncio.to_thread(look.run, check, places.get(check.shape.name))
        results += [check.result() for check in checks]
    return sorted(results, key=lambda result: result.shape)


async def _checks(
    catalog: ShapeCatalog, settings: CaptureSettings, run: StreamRun, named: Collection[str]
) -> tuple[list[ShapeCheck], list[ShapeResult]]:
    """The tables to be compared; and what is known of others that were asked for."""
    published = _published(settings, await catalog.table_names())
    wanted = run.tables or [each for each in published if run.complete or str(each) in named]
    facts = await catalog.facts(wanted)
    checks, results = [], []
    for relation in wanted:
        found = facts.get(relation)
        if found is None:
            results.append(ShapeResult(str(relation), problem=f"{relation} is not in the database"))
        elif found.kind == ORDINARY:
            checks.append(ShapeCheck(Shape(str(relation), relation), found))
        elif relation in run.tables:
            problem = "it has no rows of its own. Fix: name its partitions, whose changes the stream has"
            results.append(ShapeResult(str(relation), problem=problem))
    return checks, results


def _published(settings: CaptureSettings, tables: Sequence[Relation]) -> list[Relation]:
    """Those that capture publishes."""
    return [each for each in tables if is_told(each, settings.content.of_records)]
