"""The rule of `penstock verify` while both sides move; the test itself makes every step of the service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.decoding.plugins import decoder_for
from penstock.decoding.wal2json import replication_options
from penstock.lake.comparison import Counts, Values
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.errors import CannotCompare
from penstock.lake.jobs.compare import compare
from penstock.lake.jobs.snapshot_source import snapshot_rows
from penstock.lake.spark.spark_session import shape_session
from penstock.lake.storages.opening import Source, open_verify_jobs
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.connection import connect, connect_replication, connection_parameters
from penstock.postgres.leader.lock import slot_hash64
from penstock.postgres.snapshot.export import ExportedSnapshot
from penstock.postgres.stream.replication import ReplicationStream
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.flushing.workplace import Database
from penstock.shapes.verify.cuts import Led, Passing, ShapeCheck
from penstock.shapes.verify.report import ShapeResult
from penstock.shapes.verify.verification import LOOKS_AGAIN, Verification

SLOT = "verified"
WAITING = "waiting until the tables"
SHAPE = Shape("t", Relation("public", "t"), where="n < 1000")
TABLE = """
CREATE TABLE t (id int PRIMARY KEY, v text, n int);
ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
INSERT INTO t SELECT g, 'A', g FROM generate_series(1, 20) g;
INSERT INTO t VALUES (21, repeat('long', 2000), 0), (22, 'left out', 1000);
"""
Rows = dict[int, tuple[str, int]]


class Service:
    """Stands for `penstock shapes`: its table has what Postgres has, whenever the test says so."""

    def __init__(
        self,
        postgres: PrivatePostgres,
        database: str,
        spark: SparkSession,
        storage: Path,
        stream: ReplicationStream,
    ) -> None:
        self._postgres = postgres
        self._database = database
        self._spark = spark
        self._stream = stream
        self._table = ShapeTable(shape_session(spark), str(storage / "t"), AppId("1", "t", 1))
        self.spoil: Callable[[Rows], None] = lambda rows: None
        """What is done to the rows on their way to the lake."""

    def sql(self, statements: str) -> list[tuple[Any, ...]]:
        return self._postgres.psql(statements, self._database)

    def catch_up(self) -> None:
        """Flush all that is committed, and confirm it."""
        rows: Rows = {key: (text, number) for key, text, number in self.sql("TABLE t") if number < 1000}
        self.spoil(rows)
        ((lsn,),) = self.sql("SELECT pg_current_wal_flush_lsn()::text")
        content = [(key, *values) for key, values in rows.items()]
        frame = self._spark.createDataFrame(content, "id int, v string, n int")
        self._table.overwrite_from(frame, parse_lsn(lsn) - 1, ("id",))
        self._stream.send_status(write=parse_lsn(lsn), flush=parse_lsn(lsn))


@pytest.fixture
def parameters(postgres: PrivatePostgres, database: str) -> dict[str, Any]:
    given = connection_parameters(connect_timeout_s=5, silence_limit_s=10, role="test")
    return given | {"host": "127.0.0.1", "port": postgres.port, "user": "postgres", "dbname": database}


@pytest.fixture
async def service(
    postgres: PrivatePostgres,
    database: str,
    spark: SparkSession,
    tmp_path: Path,
    parameters: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Service]:
    """A service that holds its slot and is up to date."""
    for name, value in postgres.env(database).items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    postgres.psql(TABLE, database)
    postgres.psql(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'wal2json')", database)
    line = await connect_replication(parameters, wal_sender_timeout_s=60)
    options = replication_options(include_timestamp=False, include_lsn=True, include_pk=False)
    stream = await ReplicationStream.start(line, slot=SLOT, plugin="wal2json", options=options)
    service = Service(postgres, database, spark, tmp_path, stream)
    service.catch_up()
    yield service
    stream.close()


@pytest.fixture
async def verify(
    spark: SparkSession, tmp_path: Path, parameters: dict[str, Any]
) -> AsyncIterator[Callable[..., Any]]:
    threads = JobThreads(2)

    async def run(
        say: Callable[[str], None], *, shape: Shape = SHAPE, timeout_s: float = 30.0
    ) -> ShapeResult:
        session = await connect(parameters)

        async def another() -> Any:
            return await connect(parameters)

        catalog = ShapeCatalog(another, decoder_for("wal2json"))
        facts = (await catalog.facts([Relation("public", "t")]))[Relation("public", "t")]
        check = ShapeCheck(shape, facts)
        file = ShapesFile("file", str(tmp_path), (shape,))
        try:
            await Verification(
                [check],
                jobs=open_verify_jobs(spark, file, Source("1", 1, "wal2json")),
                threads=threads,
                database=Database(catalog, parameters),
                passing=Passing(session, Led(SLOT, slot_hash64(SLOT), lambda: 0), timeout_s, say),
                show_values=True,
                say=say,
            ).run()
        finally:
            await catalog.close()
            await session.close()
        return check.result()

    yield run
    threads.close()


class Toggling:
    """At each look Postgres has one state for the snapshot, and another when the lake catches up."""

    def __init__(self, service: Service, there: str, back: str) -> None:
        self._service = service
        self._there = there
        self._back = back
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        self.said.append(text)
        if text.startswith(WAITING):
            self._service.sql(self._there)
            self._service.catch_up()
            self._service.sql(self._back)


THERE = """
UPDATE t SET v = 'B' WHERE id = 1; DELETE FROM t WHERE id = 2; UPDATE t SET id = -3 WHERE id = 3;
INSERT INTO t VALUES (99, 'brief', 1); UPDATE t SET n = 2000 WHERE id = 4; UPDATE t SET n = 0 WHERE id = 22;
"""
BACK = """
UPDATE t SET v = 'A' WHERE id = 1; INSERT INTO t VALUES (2, 'A', 2); UPDATE t SET id = 3 WHERE id = -3;
DELETE FROM t WHERE id = 99; UPDATE t SET n = 4 WHERE id = 4; UPDATE t SET n = 1000 WHERE id = 22;
"""


async def test_rows_that_go_back_and_forth_are_no_differences(service: Service, verify: Any) -> None:
    say = Toggling(service, THERE, BACK)
    result = await verify(say)
    assert result.counts == Counts(postgres=21, lake=21, equal=21)
    assert (result.exit_code, result.changing, result.first) == (0, 0, ())
    assert "looking again at 7 keys" in say.said


async def test_differences_stay_however_much_moves(service: Service, verify: Any) -> None:
    def spoil(rows: Rows) -> None:
        rows[1] = ("wrong", rows[1][1])
        rows[5] = ("A", 6)
        del rows[6]
        rows[700] = ("nobody's", 7)

    service.spoil = spoil
    result = await verify(Toggling(service, THERE, BACK))
    assert result.exit_code == 1
    assert (result.counts.different, result.counts.missing, result.counts.extra) == (2, 1, 1)
    found = {int(each.key["id"]): (each.verdict.value, each.values) for each in result.first}
    assert found[1] == ("different", {"v": Values("B", "wrong")})
    assert found[5] == ("different", {"n": Values("5", "6")})
    assert found[6][0] == "missing"
    assert found[700][0] == "extra"


async def test_a_row_that_never_comes_as_a_whole_is_not_judged(service: Service, verify: Any) -> None:
    say = Toggling(service, "UPDATE t SET n = n + 1 WHERE id = 21", "SELECT")
    result = await verify(say)
    assert (result.exit_code, result.changing, result.counts.differing) == (2, 1, 0)
    assert say.said.count("looking again at 1 keys") == LOOKS_AGAIN


async def test_a_table_that_is_truncated_meanwhile_is_not_judged(service: Service, verify: Any) -> None:
    def say(text: str) -> None:
        if text.startswith("waiting for open transactions"):
            service.sql("TRUNCATE t")

    result = await verify(say)
    assert result.exit_code == 2
    assert result.problem == "public.t was altered or truncated meanwhile. Fix: verify again"


async def test_a_service_that_does_not_move_is_said(service: Service, verify: Any) -> None:
    with pytest.raises(
        CannotCompare, match=r"slot verified stood at .* after 0\.3 s, and the snapshot is of"
    ):
        await verify(lambda text: None, timeout_s=0.3)


async def test_a_table_that_is_not_there_is_said(service: Service, verify: Any) -> None:
    def say(text: str) -> None:
        if text.startswith(WAITING):
            service.catch_up()

    result = await verify(say, shape=Shape("absent", Relation("public", "t")))
    assert result.exit_code == 2
    assert "there is no table at" in result.problem


class Reads:
    """Of how many parts Postgres is read, each time, and how many comparisons go row by row."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: list[int] = []
        self.by_row = 0

        def counted_rows(*args: Any) -> Any:
            self.parts.append(len(args[3]))
            return snapshot_rows(*args)

        def counted_compare(*args: Any) -> Any:
            self.by_row += 1
            return compare(*args)

        monkeypatch.setattr("penstock.lake.jobs.verify_jobs.snapshot_rows", counted_rows)
        monkeypatch.setattr("penstock.lake.jobs.verify_jobs.compare", counted_compare)


async def test_rows_are_compared_only_where_sums_differ(
    service: Service, verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts = partialmethod(ExportedSnapshot.parts, part_bytes=8192)
    monkeypatch.setattr(ExportedSnapshot, "parts", small_parts)
    service.sql("INSERT INTO t SELECT g, repeat('x', 30), 7 FROM generate_series(101, 3000) g")
    rows = 21 + 2900

    def say(text: str) -> None:
        if text.startswith(WAITING):
            service.catch_up()

    reads = Reads(monkeypatch)
    result = await verify(say)
    assert (result.exit_code, result.counts) == (0, Counts(rows, rows, rows))
    (all_parts,) = reads.parts
    assert all_parts > 15
    assert reads.by_row == 0

    def spoil(rows: Rows) -> None:
        rows[1500] = ("wrong", rows[1500][1])
        del rows[1510]
        rows[90000] = ("nobody's", 7)

    service.spoil = spoil
    reads = Reads(monkeypatch)
    result = await verify(say)
    assert result.counts == Counts(rows, rows, rows - 2, different=1, missing=1, extra=1)
    assert [each.key["id"] for each in result.first] == ["1500", "1510", "90000"]
    first, second, again = reads.parts
    assert (first, again) == (all_parts, all_parts)
    assert 0 < second < all_parts / 3
