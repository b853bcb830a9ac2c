"""`format("penstock")` over a marked stream: what people query, on a real capture and a local Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.demo.marked_stream import MarkedStream
from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read import marked_plan
from penstock.kinesis.read.errors import RecordsExpired
from penstock.kinesis.read.manifest_log import Place
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.stream_position import StreamPosition
from penstock.sources.marked_driver import MarkedDriver
from penstock.sources.marked_query import MarkedQuery
from penstock.spark import register
from tests.servers.capture_site import CaptureSite
from tests.servers.shapes_fixtures import Started

TABLE = "CREATE TABLE accounts (id int PRIMARY KEY, amount numeric(12,2) NOT NULL, note text)"
SUM = 1_000


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    site = CaptureSite(
        postgres,
        database,
        kinesis,
        stream,
        KINESIS_MARKED_STREAM="true",
        KINESIS_MARK_INTERVAL_MS=10,
    )
    site.psql(TABLE)
    return site


@pytest.fixture
def aws(started: Started, kinesis: LocalKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials by the usual chain, where driver and executors look for them."""
    for name, value in kinesis.env().items():
        if name != "AWS_ENDPOINT_URL_KINESIS":
            monkeypatch.setenv(name, value)
            monkeypatch.setitem(started.spark.sparkContext.environment, name, value)


def options(site: CaptureSite, **more: str) -> dict[str, str]:
    return {
        "kinesis.streamName": site.stream,
        "kinesis.region": site.kinesis.region,
        "kinesis.endpointUrl": site.kinesis.endpoint_url,
        "slot": site.slot,
        **more,
    }


def move(site: CaptureSite, first: int, last: int) -> None:
    """Transactions of two rows each, whose amounts have one sum."""
    if first == 1:
        site.psql(f"INSERT INTO accounts VALUES (1, {SUM}, 'a'), (2, 0, 'b')")
    for amount in range(first, last):
        site.psql(
            f"BEGIN; UPDATE accounts SET amount = {SUM - amount} WHERE id = 1;"
            f" UPDATE accounts SET amount = {amount} WHERE id = 2; COMMIT"
        )


def published(site: CaptureSite) -> list[list[bytes]]:
    """What the plain reader sees."""
    return list(MarkedStream(site.kinesis.read_all(site.stream), site.slot).transactions())


def by_transaction(rows: list[Any]) -> list[list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for row in sorted(rows, key=lambda row: str(row.position)):
        found.setdefault(row.tx_offset, []).append(bytes(row.data))
    return list(found.values())


@pytest.mark.usefixtures("aws")
def test_batches_hold_whole_transactions_and_a_restart_goes_on(
    spark: SparkSession, site: CaptureSite, tmp_path: Path
) -> None:
    """Each batch is read while capture goes on; the sum of the two rows never breaks."""
    register(spark)
    batches: dict[int, list[Any]] = {}

    def keep(frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        assert number not in batches or batches[number] == rows
        batches[number] = rows

    def run(**more: str) -> None:
        query = (
            spark.readStream.format("penstock")
            .options(**options(site, **more))
            .load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None

    with site.capture() as capture:
        capture.wait_for_log("streaming")
        move(site, 1, 15)
        site.wait_until_confirmed()
        run(maxChangesPerBatch="6")
        seen = len(batches)
        shard = site.kinesis.client.list_shards(StreamName=site.stream)["Shards"][0]
        keys = {name: int(value) for name, value in shard["HashKeyRange"].items()}
        site.kinesis.client.split_shard(
            StreamName=site.stream,
            ShardToSplit=shard["ShardId"],
            NewStartingHashKey=str(sum(keys.values()) // 2),
        )
        move(site, 15, 25)
        site.wait_until_confirmed()
        run()
    assert seen > 2
    assert len(batches) > seen
    everything = [row for number in sorted(batches) for row in batches[number]]
    assert by_transaction(everything) == published(site)
    amounts: dict[int, float] = {}
    for number in sorted(batches):
        for row in sorted(batches[number], key=lambda row: str(row.position)):
            columns = {each["name"]: each["value"] for each in json.loads(bytes(row.data))["columns"]}
            amounts[columns["id"]] = columns["amount"]
        assert not amounts or sum(amounts.values()) == SUM


@pytest.mark.usefixtures("aws")
def test_typed_rows_of_a_table(spark: SparkSession, site: CaptureSite) -> None:
    register(spark)
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql("CREATE TABLE others (id int PRIMARY KEY)")
        move(site, 1, 3)
        site.psql("INSERT INTO others VALUES (1); DELETE FROM accounts WHERE id = 2; TRUNCATE accounts")
        site.wait_until_confirmed()
    changes = spark.read.format("penstock").options(**options(site, table="public.accounts")).load()
    assert dict(changes.dtypes)["amount"] == "decimal(12,2)"
    rows = changes.orderBy("_penstock_tx_offset", "_penstock_op_offset").collect()
    assert [(row["_penstock_action"], row.id, row.amount and int(row.amount)) for row in rows] == [
        ("insert", 1, SUM),
        ("insert", 2, 0),
        ("update", 1, SUM - 1),
        ("update", 2, 1),
        ("update", 1, SUM - 2),
        ("update", 2, 2),
        ("delete", 2, None),
        ("truncate", None, None),
    ]
    given = (
        spark.read.format("penstock")
        .options(**options(site, table="public.accounts"))
        .schema(
            "_penstock_tx_offset bigint, _penstock_op_offset bigint, _penstock_lsn string,"
            " _penstock_relation string, _penstock_action string, _penstock_absent array<string>,"
            " _penstock_old_key struct<id:bigint>, id bigint, amount decimal(12,2), dropped date, note string"
        )
        .load()
    )
    by_given = given.orderBy("_penstock_tx_offset", "_penstock_op_offset").collect()
    assert [(row.id, row.amount, row.note, row.dropped) for row in by_given] == [
        (row.id, row.amount, row.note, None) for row in rows
    ]
    raw = spark.read.format("penstock").options(**options(site)).load()
    assert raw.filter("relation = 'public.others'").count() == 1
    assert by_transaction(raw.collect()) == published(site)


@pytest.mark.usefixtures("aws")
def test_what_can_not_be_read_is_said(spark: SparkSession, site: CaptureSite) -> None:
    register(spark)
    for wrong, sentence in (
        ({"slot": "nobody"}, "has no manifests of the slot nobody"),
        ({"kinesis.accessKey": "x"}, "Credentials are no options"),
        ({"startingPosition": "noon"}, "must be earliest or latest"),
        ({"startingPosition": "latest"}, "latest is for readStream"),
        ({"maxChangesPerBatch": "0"}, "must be a whole number, 1 or more"),
        ({"table": "accounts"}, "not schema.table"),
    ):
        with pytest.raises(PySparkException, match=sentence):
            spark.read.format("penstock").options(**options(site, **wrong)).load().count()


class FakeLog:
    """The manifests of a slot, and from which on their records are there."""

    def __init__(self, changes: list[int], there_from: int) -> None:
        self.changes = changes
        self.there_from = there_from
        self.tried: list[int] = []

    def read(self, after: Place | None) -> Iterator[tuple[Place, Manifest]]:
        assert after is None
        for number, changes in enumerate(self.changes):
            since, resolved = (str(StreamPosition(1, 10 * (number + more))) for more in (0, 1))
            manifest = Manifest("R", "7", "slot", "", since, resolved, changes, number, {}, {})
            yield Place("s", number), manifest

    def is_there(self, manifest: Manifest) -> bool:
        self.tried.append(manifest.bytes)
        return manifest.changes == 0 or manifest.bytes >= self.there_from


def driver_of(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> MarkedDriver:
    driver = MarkedDriver.__new__(MarkedDriver)
    query = {"kinesis.streamName": "s", "kinesis.region": "eu-west-1", "slot": "slot"}
    monkeypatch.setattr(driver, "_query", MarkedQuery.parse(query), raising=False)
    monkeypatch.setattr(driver, "_log", log, raising=False)
    monkeypatch.setattr(driver, "_is_there", log.is_there)
    return driver


@pytest.mark.parametrize(
    ("changes", "there_from", "begins"),
    [
        ([1] * 50, 0, 0),
        ([1] * 50, 1, 1),
        ([1] * 50, 20, 20),
        ([1] * 50, 49, 49),
        ([1, 0, 0, 1, 1], 3, 1),
        ([0, 0, 1, 1, 0], 3, 3),
        ([1, 1, 0, 0], 9, 2),
        ([0, 0], 9, 0),
        ([1] * 3000, 2900, 2900),
    ],
)
def test_a_new_query_begins_with_the_first_records_that_are_there(
    monkeypatch: pytest.MonkeyPatch, changes: list[int], there_from: int, begins: int
) -> None:
    log = FakeLog(changes, there_from)
    driver = driver_of(log, monkeypatch)
    found = driver.begin()
    assert found is not None
    assert found.resolved == str(StreamPosition(1, 10 * begins))
    assert found.place == (None if begins == 0 else Place("s", begins - 1))
    assert len(log.tried) < 40


def test_records_that_are_all_gone_are_no_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog([1, 1, 1], 9)
    driver = driver_of(log, monkeypatch)
    with pytest.raises(RecordsExpired, match="manifests are gone"):
        driver.begin()


class GrowingLog(FakeLog):
    """Whenever it is read, another manifest has come."""

    reads = 0

    def read(self, after: Place | None) -> Iterator[tuple[Place, Manifest]]:
        self.reads += 1
        self.changes.append(0)
        return super().read(after)


def test_everything_is_what_one_reading_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once to begin and once for the rest, though a batch's fill of manifests is less than that."""
    monkeypatch.setattr(marked_plan, "MOST_STEPS", 3)
    log = GrowingLog([0] * 10, 0)
    driver = driver_of(log, monkeypatch)
    monkeypatch.setattr(driver, "_tasks", lambda links, _end: [each.manifest.resolved for each in links])
    found: list[Any] = driver.everything(0.0)
    assert found == [str(StreamPosition(1, 10 * number)) for number in range(1, 13)]
    assert log.reads == 2
