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

from penstock.decoding.plugins import decoder_for
from penstock.errors import PenstockError
from penstock.lake.comparison import Counts, PostgresAt
from penstock.lake.errors import CannotCompare
from penstock.lake.spark.session_conf import check_conf
from penstock.lake.spark.spark_session import open_session, stop_session
from penstock.lake.stream.compare_told import compare_told, count_rows
from penstock.lake.stream.told import PLUGIN, StreamPlace, TableTold, Told
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.stream_position import StreamPosition
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import FULL, ORDINARY, TableFacts
from penstock.postgres.catalog.table_patterns import parse_patterns
from penstock.postgres.leader.line import LeaderLine
from penstock.postgres.timeline import flushed_lsn
from penstock.settings.services import CaptureSettings
from penstock.shapes.verify.command import identity_of, showing_progress
from penstock.shapes.verify.cuts import Cuts, Say, ShapeCheck
from penstock.shapes.verify.report import STREAM, ShapeResult, as_json, exit_code, print_text
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
        catalog = ShapeCatalog(line.connect, decoder_for(PLUGIN))
        named = (await asyncio.to_thread(told.tables)).keys()
        checks, results = await _checks(catalog, settings, run, named)
        cuts = Cuts(catalog, line.parameters, plugin=settings.replication.output_plugin, say=say)
        taken = await cuts.take(checks, stack)
        if taken is not None:
            exported, places = taken
            cut = StreamPosition(server.timeline, exported.cut_lsn)
            say(f"waiting until manifests reach {cut.described()}")
            await asyncio.to_thread(reading.read_until, told, cut, run.timeout_s)
            tables = await asyncio.to_thread(told.tables)
            for check in checks:
                name = check.shape.name
                say(f"comparing {name}")
                look = _Look(spark, told, tables.get(name, TableTold()), run)
                await asyncio.to_thread(look.run, check, places.get(name))
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
    added, filtered = (
        parse_patterns(each) for each in (settings.wal2json.add_tables, settings.wal2json.filter_tables)
    )
    return [
        each
        for each in tables
        if (settings.wal2json.add_tables is None or any(pattern.matches(*each) for pattern in added))
        and not any(pattern.matches(*each) for pattern in filtered)
    ]


class _Look:
    """The comparison of one table. Blocks."""

    def __init__(self, spark: SparkSession, told: Told, table: TableTold, run: StreamRun) -> None:
        self._spark = spark
        self._told = told
        self._table = table
        self._run = run

    def run(self, check: ShapeCheck, postgres: PostgresAt | None) -> None:
        """Bring a check to its end; a failure is one table's own."""
        if postgres is None:
            return
        try:
            self._check_told(check.facts)
            if check.facts.key:
                self._compare(check, postgres)
            else:
                self._count(check, postgres)
        except PenstockError as error:
            check.problem = str(error)

    def _check_told(self, facts: TableFacts) -> None:
        if self._table.quarantined:
            raise CannotCompare(
                f"{self._table.quarantined:,} of its changes are in quarantine, and not in the stream"
            )
        if facts.key and not all(leaf.carries(facts.key) for leaf in facts.leaves):
            raise CannotCompare(
                f"its updates and deletes don't carry the key ({', '.join(facts.key)}). Fix: ALTER TABLE"
                f" {facts.relation} REPLICA IDENTITY DEFAULT"
            )

    def _compare(self, check: ShapeCheck, postgres: PostgresAt) -> None:
        changes = self._told.of(check.shape.table)
        found = compare_told(self._spark, changes, check.shape, postgres, complete=self._run.complete)
        counts = found.comparison.counts
        check.counts = Counts(counts.postgres, counts.lake)
        check.untold = found.untold
        check.add(found.comparison, show_values=self._run.show_values)

    def _count(self, check: ShapeCheck, postgres: PostgresAt) -> None:
        """A table without a key: its rows can't be told apart, only counted."""
        facts = check.facts
        if not all(leaf.replica_identity == FULL for leaf in facts.leaves):
            raise CannotCompare(
                "it has no key, and its deletes are not in the stream. Fix: give it a primary key, or ALTER"
                f" TABLE {facts.relation} REPLICA IDENTITY FULL to have its rows counted"
            )
        rows = count_rows(self._spark, check.shape, postgres)
        # Rows of before the stream may have been deleted in it.
        told = max(0, self._told.inserted(check.shape.table, self._table))
        is_whole = self._run.complete or self._table.truncated_at is not None
        lacking = max(0, rows - told)
        check.counts = Counts(
            rows,
            told,
            equal=min(rows, told),
            missing=lacking if is_whole else 0,
            extra=max(0, told - rows),
        )
        check.untold = 0 if is_whole else lacking
        check.counted = True
