"""`penstock verify` beside a snapshot of the same table, and of small tables; for `penstock bench shapes`.

A service follows the tables and rests, as it may in life; its Spark is another one. Its tables are equal to
Postgres, or nothing is measured.
"""

from __future__ import annotations

import asyncio
import datetime
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.bench.shapes_backlog import ORDERS
from penstock.bench.shapes_run import ShapesRun, write_shapes_file
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.table import Row, say, seconds_of
from penstock.decoding.plugins import decoder_for
from penstock.errors import PenstockError
from penstock.local.penstock_process import PenstockProcess, ProcessFailed
from penstock.local.postgres import PrivatePostgres
from penstock.model.shape import ShapesFile
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.connection import QUALIFIED_NAMES, connect, connection_parameters
from penstock.postgres.leader.lock import slot_hash64
from penstock.postgres.snapshot.export import export_snapshot
from penstock.postgres.timeline import ServerIdentity
from penstock.shapes.definition.shapes_file import load_shapes_file
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.flushing.workplace import Database
from penstock.shapes.registry.places import open_registry
from penstock.shapes.verify.cuts import Led, Passing, ShapeCheck
from penstock.shapes.verify.verification import Verification

_MOST: Final = 1.2
_SMALL: Final = ("small_1", "small_2", "small_3")
_SMALL_ROWS: Final = 1000
_SMALL_TABLE: Final = """
CREATE TABLE {name} (id bigint PRIMARY KEY, v text);
INSERT INTO {name} SELECT g, 'row ' || g FROM generate_series(1, {rows}) g
"""
_SMALL_LIMIT_S: Final = 10.0
_COMMANDS: Final = 2
_PATIENCE_S: Final = 300.0


class Verified(NamedTuple):
    """A table that was found equal."""

    seconds: float
    waited_s: float
    """Of these, until the service had confirmed that its table has everything."""


class Commanded(NamedTuple):
    """A run of the command."""

    seconds: float
    spark_s: float
    """Of these, while Spark started."""


def verify(
    postgres: PrivatePostgres, spark: SparkBench, database: str, directory: Path, *, rows: int, rounds: int
) -> list[Row]:
    """Snapshot and verify in turn, on one warm Spark, then the command; the first round warms up."""
    directory.mkdir()
    for name in _SMALL:
        postgres.psql(_SMALL_TABLE.format(name=name, rows=_SMALL_ROWS), database)
    all_file, small_file = directory / "all.toml", directory / "small.toml"
    small = {name: f"public.{name}" for name in _SMALL}
    write_shapes_file(all_file, {"orders": str(ORDERS), **small})
    write_shapes_file(small_file, small)
    with ShapesRun(postgres, database, all_file, counts_bytes=False) as run:
        say(f"snapshots of {1 + len(_SMALL)} shapes")
        run.wait_for_snapshots(1 + len(_SMALL))
        found = _large(spark, load_shapes_file(all_file), run.slot, directory, rows=rows, rounds=rounds)
        env = {**postgres.env(database), "REPLICATION_SLOT": run.slot}
        commands = []
        for number in range(1, _COMMANDS + 1):
            say(f"penstock verify of {len(_SMALL)} small tables, {number} of {_COMMANDS}")
            commands.append(_command(small_file, env))
    return [*found, *_small_rows(commands)]


def _large(
    spark: SparkBench, file: ShapesFile, slot: str, directory: Path, *, rows: int, rounds: int
) -> list[Row]:
    copies, verified = [], []
    for number in range(rounds + 1):
        say(f"snapshot and verify of {rows:,} rows, round {number} of {rounds}")
        copied_s = asyncio.run(_snapshot(spark, file, directory / f"copy-{number}"))
        seen = asyncio.run(_verify(spark, file, slot))
        if number:
            copies.append(copied_s)
            verified.append(seen)
    ours = [each.seconds for each in verified]
    waited_s = statistics.median(each.waited_s for each in verified)
    ratio = statistics.median(ours) / statistics.median(copies)
    return [
        Row(f"snapshot of {rows:,} rows, from its export to its commit", seconds_of(copies), "", None),
        Row("verify of them, all equal", seconds_of(ours), "", None),
        Row("… of that, until the service had confirmed", f"{waited_s:.2f} s", "", None),
        Row("ratio of the medians", f"{ratio:.2f}", f"≤ {_MOST}", ratio <= _MOST),
    ]


def _small_rows(commands: list[Commanded]) -> list[Row]:
    longest = max(each.seconds - each.spark_s for each in commands)
    return [
        Row(
            f"penstock verify of {len(_SMALL)} tables of {_SMALL_ROWS:,} rows, without Spark's start",
            f"{longest:.1f} s (longest of {len(commands)})",
            f"< {_SMALL_LIMIT_S:.0f} s",
            longest < _SMALL_LIMIT_S,
        ),
        Row("… the whole command", seconds_of([each.seconds for each in commands]), "", None),
    ]


async def _snapshot(spark: SparkBench, file: ShapesFile, storage: Path) -> float:
    """Seconds that the service's own job takes for the orders, into an empty place."""
    parameters = _parameters()
    shape, facts = file.shapes[0], await _facts(parameters, file)
    jobs = spark.shape_jobs(ShapesFile(file.path, str(storage), (shape,)), ServerIdentity("1", 1, {}))
    started = time.perf_counter()
    async with export_snapshot(parameters, plugin="wal2json") as exported:
        parts = await exported.parts([leaf.relation for leaf in facts.leaves])
        await asyncio.to_thread(jobs.snapshot, shape, facts, parts, exported.name, exported.cut_lsn - 1)
    return time.perf_counter() - started


async def _verify(spark: SparkBench, file: ShapesFile, slot: str) -> Verified:
    """What the command does for the orders once Spark runs, from the catalog to the result."""
    registry = open_registry(file.registry_at).read()
    if registry is None:
        raise PenstockError(f"the service has no registry in {file.storage}")
    steps: list[tuple[str, float]] = []

    def note_step(step: str) -> None:
        steps.append((step, time.perf_counter()))

    parameters = _parameters()
    threads = JobThreads(1)
    session = await connect(parameters)
    catalog = ShapeCatalog(lambda: connect(parameters), decoder_for("wal2json"))
    try:
        started = time.perf_counter()
        check = ShapeCheck(file.shapes[0], await _facts(parameters, file))
        await Verification(
            [check],
            jobs=spark.verify_jobs(file, ServerIdentity(registry.system_id, registry.timeline, {})),
            threads=threads,
            database=Database(catalog, parameters),
            passing=Passing(session, Led(slot, slot_hash64(slot), lambda: 0), _PATIENCE_S, note_step),
            show_values=False,
            say=note_step,
        ).run()
        seconds = time.perf_counter() - started
    finally:
        threads.close()
        await session.close()
        await catalog.close()
    result = check.result()
    if result.exit_code:
        raise PenstockError(f"verify found {result.result}: {result.counts} {result.problem or ''}")
    return Verified(seconds, waited(steps))


def waited(steps: list[tuple[str, float]]) -> float:
    """How long the first step that waits for the service took; 0.0 if none did."""
    times = (end - at for (step, at), (_, end) in pairwise(steps) if step.startswith("waiting until"))
    return next(times, 0.0)


def _command(file: Path, env: dict[str, str]) -> Commanded:
    """The command as it is called, on a Spark of its own."""
    output = file.parent / "verify.json"
    started = time.perf_counter()
    arguments = ["verify", "--config", str(file), "--master", "local[2]", "--json"]
    with PenstockProcess(arguments, env, output=output) as process:
        code = process.wait(_PATIENCE_S)
        seconds = time.perf_counter() - started
        if code:
            raise ProcessFailed(f"penstock verify ended with {code}:\n{process.log_tail()}")
        return Commanded(seconds, spark_start(process.events("verify")))


def spark_start(steps: list[dict[str, Any]]) -> float:
    """Seconds from the step in which Spark starts to the next, by what the command logs."""
    times = [datetime.datetime.fromisoformat(step["timestamp"]) for step in steps]
    place = [step["step"] for step in steps].index("Spark starts")
    return (times[place + 1] - times[place]).total_seconds()


async def _facts(parameters: dict[str, Any], file: ShapesFile) -> TableFacts:
    catalog, table = ShapeCatalog(lambda: connect(parameters), decoder_for("wal2json")), file.shapes[0].table
    try:
        return (await catalog.facts([table]))[table]
    finally:
        await catalog.close()


def _parameters() -> dict[str, Any]:
    return connection_parameters(
        connect_timeout_s=10, silence_limit_s=30, role="bench", session=QUALIFIED_NAMES
    )
