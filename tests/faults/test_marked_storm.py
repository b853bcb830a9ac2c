"""One stream, everything that happens to one, and all three readers at once: each sees whole transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from structlog.testing import capture_logs

from penstock.demo.marked_stream import MarkedStream
from penstock.lake.spark.spark_session import shape_session
from penstock.spark import register
from tests.faults.money import Amounts, MoneyMover
from tests.faults.rig import Rig
from tests.faults.workload import Writers
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import wait_for_phase, wait_until
from tests.servers.faults import INTERNAL_FAILURE, THROTTLED, Answer, CutAfter, CutBefore, FailRecords
from tests.servers.shapes_fixtures import Serve, Started
from tests.servers.shapes_site import ShapesSite, shape_lines
from tests.servers.streamed_site import needed

MARKED = {"KINESIS_MARKED_STREAM": "true", "KINESIS_MARK_INTERVAL_MS": 50, "LEADER_TIMEOUT_S": 6}
SHARDS = [f"shardId-{number:012}" for number in range(9)]
FAULTS = (FailRecords(share=0.1), Answer(THROTTLED), Answer(INTERNAL_FAILURE), CutAfter(), CutBefore())
CONTENT = {
    "accounts": (("id", "amount"), "SELECT id, amount FROM accounts"),
    "items": (("id", "version"), "SELECT id, version FROM items"),
}
LONG_S = 60.0


class SparkReader:
    """A streaming query with `format("penstock")`; after each batch every pair has its sum."""

    def __init__(self, spark: SparkSession, rig: Rig, directory: Path) -> None:
        self._spark = spark
        self._checkpoint = str(directory / "checkpoint")
        self._options = {
            "kinesis.streamName": rig.stream,
            "kinesis.region": rig.kinesis.region,
            "kinesis.endpointUrl": rig.kinesis.endpoint_url,
            "slot": rig.slot,
        }
        self._amounts = Amounts()
        self._query: StreamingQuery | None = None
        self.batches: dict[int, dict[str, bytes]] = {}
        """The changes of each batch by position."""
        self.wrong: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read in the background until the block is left."""
        changes = self._spark.readStream.format("penstock").options(**self._options).load()
        writer = changes.writeStream.foreachBatch(self._keep).trigger(processingTime="500 milliseconds")
        self._query = writer.option("checkpointLocation", self._checkpoint).start()
        try:
            yield
        finally:
            self._query.stop()

    def goes_on(self, batches: int) -> None:
        """Wait until it has read so many batches more."""
        goal = len(self.batches) + batches
        wait_until(lambda: self.wrong or len(self.batches) >= goal or self._failed(), "it reads", LONG_S)
        assert not self.wrong

    def finish(self) -> None:
        """Wait until it has all that is there."""
        assert self._query is not None
        self._query.processAllAvailable()

    def transactions(self) -> list[list[bytes]]:
        """What it has seen, by position."""
        found: dict[str, list[bytes]] = {}
        rows = [row for batch in self.batches.values() for row in batch.items()]
        assert len(dict(rows)) == len(rows), "a change came in two batches"
        for position, data in sorted(rows):
            found.setdefault(position[:25], []).append(data)
        return list(found.values())

    def _failed(self) -> bool:
        assert self._query is not None
        error = self._query.exception()
        assert error is None, str(error)
        return False

    def _keep(self, frame: DataFrame, number: int) -> None:
        collected = [(str(row.position), bytes(row.data)) for row in frame.collect()]
        rows = dict(collected)
        if len(rows) != len(collected):
            self.wrong.append(f"batch {number} has a change twice")
        self._amounts.apply(data for _, data in sorted(rows.items()))
        if pairs := self._amounts.wrong_pairs():
            self.wrong.append(f"after batch {number} the pairs {pairs} lack money")
        self.batches[number] = rows


@pytest.fixture
def reader(started: Started, rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkReader:
    for name, value in rig.kinesis.env().items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(started.spark.sparkContext.environment, name, value)
    spark = shape_session(started.spark)
    register(spark)
    return SparkReader(spark, rig, tmp_path)


def has_changes(rig: Rig, shard: str) -> bool:
    """Whether something stands in a shard that is no manifest, near its beginning."""
    client, name = rig.kinesis.client, rig.stream
    start = client.get_shard_iterator(StreamName=name, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = client.get_records(ShardIterator=start["ShardIterator"], Limit=1_000)["Records"]
    return any(record["PartitionKey"] != f"penstock/{rig.slot}" for record in records)


def has_table(site: ShapesSite, shape: str) -> bool:
    return DeltaTable.is_deltatable(str(site.table(shape)))


def assert_every_version_is_whole(site: ShapesSite) -> None:
    path = str(site.table("accounts"))
    for version in range(site.version("accounts") + 1):
        table = DeltaTable(path, version=version).to_pyarrow_table(columns=["id", "amount"])
        amounts = Amounts(zip(table["id"].to_pylist(), table["amount"].to_pylist(), strict=True))
        assert not amounts.wrong_pairs(), f"version {version}"


class Storm:
    """What happens to the stream and to its captures, one after the other, while all is written and read."""

    def __init__(self, rig: Rig, reader: SparkReader, site: ShapesSite) -> None:
        self._rig = rig
        self._reader = reader
        self._site = site
        self._writers = Writers(rig.conninfo, seed=48, writers=3, keys=12, pause_s=0.1)
        self._mover = MoneyMover(rig, pause_s=0.05)
        self._captures = ExitStack()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """With captures, of which one leads; whatever they send may fail."""
        with self._captures:
            self._first = self._capture()
            self._first.wait_for_log("streaming")
            self._second = self._capture()
            wait_for_phase(self._second, "standby")
            for fault in FAULTS:
                self._rig.proxy.inject(fault, probability=0.1)
                self._rig.proxy.inject(fault, probability=0.1, operation="PutRecord")
            yield

    def rage(self) -> None:
        """All of it; then it is calm, and everything is in the stream."""
        with self._mover, self._writers.running():
            self._all_read_on()
            self._split_and_kill()
            self._all_read_on()
            self._merge_and_freeze()
            self._all_read_on()
        self._rig.proxy.clear()
        self._rig.wait_until_confirmed()

    def _capture(self) -> CaptureProcess:
        return self._captures.enter_context(self._rig.capture(**MARKED))

    def _split_and_kill(self) -> None:
        self._rig.split(SHARDS[0])
        self._writes_more(50)
        for child in SHARDS[4:6]:
            wait_until(partial(has_changes, self._rig, child), f"{child} has changes", LONG_S)
        self._first.kill9()
        self._second.wait_for_log("streaming", LONG_S)

    def _merge_and_freeze(self) -> None:
        third = self._capture()
        wait_for_phase(third, "standby", LONG_S)
        self._rig.split(SHARDS[2])
        self._rig.merge(SHARDS[4], SHARDS[5])
        self._writes_more(100)
        self._rig.freeze_in_mid_publishing(self._second)
        third.wait_for_log("streaming", LONG_S)
        self._writes_more(50)
        self._second.cont()
        wait_for_phase(self._second, "standby", LONG_S)

    def _all_read_on(self) -> None:
        """What each has seen at this moment is checked in the end, or was already."""
        goal = self._site.version("accounts") + 1
        self._reader.goes_on(1)
        self._site.wait_until(lambda: self._site.version("accounts") >= goal, LONG_S)

    def _writes_more(self, changes: int) -> None:
        goal = len(self._writers.committed) + changes
        wait_until(lambda: len(self._writers.committed) >= goal, "the writers go on", LONG_S)


@pytest.mark.timeout(400)
def test_three_readers_of_one_stream_in_a_storm(
    rig: Rig, reader: SparkReader, shapes_site: ShapesSite, serve: Serve
) -> None:
    """Partial failures, throttling, cuts, two splits, a merge, a kill, a takeover, a leader that wakes."""
    site, storm = shapes_site, Storm(rig, reader, shapes_site)
    site.write_file(*(shape_lines(shape) for shape in CONTENT))

    def story() -> None:
        site.wait_until(lambda: all(has_table(site, shape) for shape in CONTENT), LONG_S)
        with reader.running():
            # What a query starts has to answer within seconds: that comes before the storm.
            reader.goes_on(1)
            storm.rage()
            reader.finish()
        for shape, (columns, query) in CONTENT.items():
            site.wait_equal(shape, columns, query, LONG_S)

    variables: dict[str, Any] = {**rig.kinesis.env(), "STALL_S": "60"}
    with storm.capturing(), capture_logs() as events:
        serve(site, story, stream=f"kinesis://{rig.stream}?slot={rig.slot}", **variables)

    committed = rig.transactions()
    stream = MarkedStream(rig.kinesis.read_all(rig.stream), rig.slot)
    assert list(stream.transactions()) == committed
    assert {record.shard_id for record in stream.records} >= set(SHARDS), "all of them had records"
    assert len({manifest["by"] for manifest in stream.spoken()}) >= 3

    assert reader.wrong == []
    assert reader.transactions() == committed
    assert len(reader.batches) >= 4

    assert needed(events) == dict.fromkeys(CONTENT, "it is new"), "only at the start"
    assert_every_version_is_whole(site)
    assert site.version("accounts") >= 3
    assert not rig.proxy.log.violations
