"""format("penstock_kinesis") on a real Kinesis emulator: every record once, whatever is split or stopped."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.local.kinesis import LocalKinesis
from penstock.sources.kinesis_source import COLUMNS
from penstock.spark import register
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import INTERNAL_FAILURE, THROTTLED, Answer, CutAfter
from tests.spark.conftest import Started

WAIT_S = 60


class Site:
    """A stream, a Spark that may read it, and what was written."""

    def __init__(self, kinesis: LocalKinesis, spark: SparkSession, directory: Path, url: str) -> None:
        self.kinesis = kinesis
        self.spark = spark
        self.stream = f"any-{secrets.token_hex(4)}"
        self.written: list[str] = []
        self.seen: list[tuple[int, list[Any]]] = []
        """Each batch: its id, and its rows."""
        self._directory = directory
        self._url = url
        kinesis.create_stream(self.stream, 2)

    def write(self, count: int) -> None:
        """Records under as many keys, in all open shards."""
        names = [f"{len(self.written) + number:06d}" for number in range(count)]
        for start in range(0, count, 500):
            records = [{"Data": name, "PartitionKey": name} for name in names[start : start + 500]]
            self.kinesis.client.put_records(StreamName=self.stream, Records=records)
        self.written += names

    def split(self) -> None:
        """Split the first of the open shards; what is unread in it stays there."""
        shard = self._open()[0]
        low, high = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
        self.kinesis.client.split_shard(
            StreamName=self.stream,
            ShardToSplit=shard["ShardId"],
            NewStartingHashKey=str((low + high) // 2),
        )

    def merge(self) -> None:
        """Merge the first two of the open shards."""
        first, second = self._open()[:2]
        self.kinesis.client.merge_shards(
            StreamName=self.stream, ShardToMerge=first["ShardId"], AdjacentShardToMerge=second["ShardId"]
        )

    def options(self, **more: str) -> dict[str, str]:
        named = {"streamName": self.stream, "region": self.kinesis.region, "endpointUrl": self._url}
        return {f"kinesis.{name}": value for name, value in {**named, **more}.items()}

    def load(self, **more: str) -> DataFrame:
        return self.spark.read.format("penstock_kinesis").options(**self.options(**more)).load()

    def start(
        self,
        *,
        available_now: bool = False,
        failing_at: int | None = None,
        **more: str,
    ) -> StreamingQuery:
        """A query with the site's checkpoint; it notes each batch, and dies in the middle of one if asked."""

        def note(batch: DataFrame, number: int) -> None:
            rows = batch.collect()
            self.seen.append((number, rows))
            if number == failing_at and rows:
                raise RuntimeError("died in mid-batch")

        options = self.options(**{"startingPosition": "TRIM_HORIZON", **more})
        stream = self.spark.readStream.format("penstock_kinesis").options(**options).load()
        writer = stream.writeStream.foreachBatch(note).option("checkpointLocation", f"{self._directory}/c")
        return writer.trigger(availableNow=True).start() if available_now else writer.start()

    def run(self, **more: Any) -> None:
        """Read what is there, and end."""
        query = self.start(available_now=True, **more)
        assert query.awaitTermination(WAIT_S), "availableNow doesn't end"

    def rows(self) -> list[Any]:
        """What the batches had; of a batch that came twice, the same rows are counted once."""
        batches: dict[int, list[Any]] = {}
        for number, rows in self.seen:
            assert sorted(batches.setdefault(number, rows)) == sorted(rows)
        return [row for rows in batches.values() for row in rows]

    def assert_every_record_was_read_once(self) -> None:
        read = Counter(row.data.decode() for row in self.rows())
        assert [name for name in self.written if not read[name]] == []
        assert [name for name, times in read.items() if times > 1] == []
        assert read.keys() == set(self.written)

    def _open(self) -> list[dict[str, Any]]:
        shards = self.kinesis.client.list_shards(StreamName=self.stream)["Shards"]
        still = [shard for shard in shards if "EndingSequenceNumber" not in shard["SequenceNumberRange"]]
        return sorted(still, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))


MakeSite = Callable[[str], Site]


@pytest.fixture
def make_site(
    started: Started,
    spark: SparkSession,
    kinesis: LocalKinesis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> MakeSite:
    for name, value in kinesis.env().items():
        # Where Spark's Python processes, those of the driver too, find what the AWS SDK needs.
        monkeypatch.setitem(started.spark.sparkContext.environment, name, value)
    register(spark)
    return lambda url: Site(kinesis, spark, tmp_path, url)


@pytest.fixture
def site(make_site: MakeSite, kinesis: LocalKinesis) -> Iterator[Site]:
    made = make_site(kinesis.endpoint_url)
    yield made
    for query in made.spark.streams.active:
        query.stop()
    kinesis.delete_stream(made.stream)


def test_a_batch_has_all_that_was_there_at_load(site: Site) -> None:
    site.write(30)
    site.split()
    site.write(30)
    loaded = site.load()
    site.write(5)

    rows = loaded.collect()

    assert loaded.schema == COLUMNS
    assert sorted(row.data.decode() for row in rows) == site.written[:60]
    assert {row.streamName for row in rows} == {site.stream}
    assert all(row.partitionKey == row.data.decode() for row in rows)
    stored = site.kinesis.read_all(site.stream)
    assert {(row.shardId, row.sequenceNumber, row.data) for row in rows} <= {
        (record.shard_id, record.sequence_number, record.data) for record in stored
    }
    assert loaded.where("approximateArrivalTimestamp > now() - interval 5 minutes").count() == 60
    assert site.load().count() == 65


def test_reshards_leave_nothing_behind_in_a_query_that_runs_stops_and_dies(site: Site) -> None:
    """Shards are closed with unread records while the query runs, while it is stopped, and in mid-batch."""
    site.write(40)
    query = site.start(maxRecordsPerBatch="16")
    site.split()
    site.write(40)
    site.merge()
    site.write(10)
    query.processAllAvailable()
    site.assert_every_record_was_read_once()
    assert query.lastProgress is not None
    assert "behindLatestMs" in json.loads(query.lastProgress.json)["sources"][0]["latestOffset"]
    query.stop()

    site.write(40)
    site.split()
    site.split()
    site.write(40)
    site.merge()
    site.write(40)
    with pytest.raises(PySparkException, match="died in mid-batch"):
        site.run(failing_at=site.seen[-1][0] + 1)
    died, rows = site.seen[-1]
    assert rows, "the batch that died had rows"
    site.write(20)
    site.split()
    site.write(20)
    site.run()

    assert [number for number, _ in site.seen].count(died) == 2
    site.assert_every_record_was_read_once()
    seen_twice = [rows for number, rows in site.seen if number == died]
    assert sorted(seen_twice[0]) == sorted(seen_twice[1])


def test_latest_begins_where_the_query_did_even_if_it_dies_in_its_first_batch(site: Site) -> None:
    site.write(5)
    old = list(site.written)
    site.run(startingPosition="LATEST")
    assert site.rows() == []
    site.write(7)
    with pytest.raises(PySparkException, match="died in mid-batch"):
        site.run(startingPosition="LATEST", failing_at=1)
    site.write(3)
    site.run(startingPosition="LATEST")

    assert sorted(row.data.decode() for row in site.rows()) == site.written[len(old) :]


def test_throttling_and_cut_lines_cost_time_only(
    make_site: MakeSite, kinesis: LocalKinesis, fault_proxy: FaultProxy
) -> None:
    site = make_site(fault_proxy.url)
    site.write(600)
    fault_proxy.inject(Answer(THROTTLED), times=4, operation="GetRecords")
    fault_proxy.inject(Answer(INTERNAL_FAILURE), times=2, operation="GetShardIterator")
    fault_proxy.inject(CutAfter(), times=2, operation="GetRecords")
    fault_proxy.inject(Answer(THROTTLED), times=1, operation="ListShards")

    site.run(maxBytesPerBatch="2000")

    site.assert_every_record_was_read_once()
    assert len(site.seen) > 1
    kinesis.delete_stream(site.stream)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"awsAccessKeyId": "AKIA123"}, "credentials don't belong in options"),
        ({"startingPosition": "LATEST"}, "LATEST is for readStream"),
        ({"streamName": "no-such-stream"}, "no-such-stream"),
    ],
)
def test_a_bad_option_is_said_to_whoever_loads(site: Site, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match=said) as raised:
        site.load(**options).count()
    assert "AKIA123" not in str(raised.value)
