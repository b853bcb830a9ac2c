from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import StorageRefused, check_storage, open_session, session_conf, shape_session
from tests.spark.conftest import Started


def test_a_start_writes_nothing_to_the_terminal(started: Started) -> None:
    assert started.stderr.decode() == ""


def test_the_session_is_made_once(started: Started) -> None:
    assert open_session().sparkContext is started.spark.sparkContext


def test_workers_are_this_python(spark: SparkSession) -> None:
    def executable(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"path": sys.executable}])

    rows = spark.range(1).coalesce(1).mapInArrow(executable, "path string").collect()

    assert [row.path for row in rows] == [sys.executable]


def test_settings_belong_to_a_shapes_session(started: Started) -> None:
    one, other = shape_session(started.spark), shape_session(started.spark)

    one.conf.set("spark.databricks.delta.write.txnAppId", "one")

    assert other.conf.get("spark.databricks.delta.write.txnAppId", "unset") == "unset"
    for session in (one, other):
        assert session.conf.get("spark.sql.session.timeZone") == "UTC"
        assert session.conf.get("spark.sql.ansi.enabled") == "true"
        assert session.conf.get("spark.sql.shuffle.partitions") == "2"


@pytest.mark.parametrize(("master", "few"), [("local[2]", True), ("local", True), ("spark://h:7077", False)])
def test_few_partitions_are_for_one_machine(master: str, few: bool) -> None:
    conf = session_conf(master, "app", [Path("/x/a.jar"), Path("/x/b.jar")])

    assert ("spark.sql.shuffle.partitions" in conf) == few
    assert conf["spark.jars"] == "/x/a.jar,/x/b.jar"


@pytest.mark.parametrize("url", ["./lake", "/data/lake", "file:///data/lake", "hdfs://n/lake"])
def test_storages_that_refuse_a_second_commit_pass(url: str) -> None:
    check_storage(url, {})


@pytest.mark.parametrize("log_store", [None, "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore"])
def test_s3_needs_a_log_store_for_several_writers(log_store: str | None) -> None:
    conf = {} if log_store is None else {"spark.delta.logStore.s3a.impl": log_store}

    with pytest.raises(StorageRefused, match=r"s3a://lake/x: .* spark\.delta\.logStore\.s3a\.impl"):
        check_storage("s3a://lake/x", conf)


def test_s3_with_such_a_log_store_passes() -> None:
    check_storage("s3a://lake/x", {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"})
