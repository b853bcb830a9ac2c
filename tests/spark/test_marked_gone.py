"""What a streaming query says when the marked stream no longer has what its checkpoint needs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.spark import register
from tests.servers.capture_site import CaptureSite
from tests.servers.shapes_fixtures import Started

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def site(
    postgres: PrivatePostgres,
    database: str,
    kinesis: LocalKinesis,
    stream: str,
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
) -> CaptureSite:
    for name, value in kinesis.env().items():
        monkeypatch.setitem(started.spark.sparkContext.environment, name, value)
    site = CaptureSite(
        postgres, database, kinesis, stream, KINESIS_MARKED_STREAM="true", KINESIS_MARK_INTERVAL_MS=10
    )
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    return site


class Query:
    """A query with a checkpoint, which reads what is there and ends."""

    def __init__(self, spark: SparkSession, site: CaptureSite, checkpoint: Path) -> None:
        register(spark)
        self._spark = spark
        self._site = site
        self._checkpoint = checkpoint
        self.rows = 0

    def run(self) -> None:
        options = {
            "kinesis.streamName": self._site.stream,
            "kinesis.region": self._site.kinesis.region,
            "kinesis.endpointUrl": self._site.kinesis.endpoint_url,
            "slot": self._site.slot,
        }
        changes = self._spark.readStream.format("penstock").options(**options).load()
        writer = changes.writeStream.foreachBatch(self._count)
        writer = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True)
        assert writer.start().awaitTermination(300)

    def _count(self, frame: DataFrame, _: int) -> None:
        self.rows += frame.count()


def insert(site: CaptureSite, first: int, last: int) -> None:
    site.psql("".join(f"BEGIN; INSERT INTO t VALUES ({row}); COMMIT;" for row in range(first, last)))
    site.wait_until_confirmed()


def test_a_query_that_was_passed_by_ends_with_a_sentence(
    spark: SparkSession, site: CaptureSite, tmp_path: Path
) -> None:
    query = Query(spark, site, tmp_path / "checkpoint")
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 1, 10)
        query.run()
        assert query.rows == 9
        insert(site, 10, 20)
        site.kinesis.expire(site.stream, time.time())
        insert(site, 20, 30)
        with pytest.raises(PySparkException, match="GAP: manifests are missing in the stream"):
            query.run()
    site.kinesis.delete_stream(site.stream)
    site.kinesis.create_stream(site.stream, 4)
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 30, 60)
        with pytest.raises(PySparkException, match="The stream was deleted and created again"):
            query.run()
        assert query.rows == 9, "nothing was skipped"
        anew = Query(spark, site, tmp_path / "another")
        anew.run()
        assert anew.rows == 30
