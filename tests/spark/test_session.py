from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import (
    HADOOP_VERSION,
    StorageRefused,
    check_storage,
    open_session,
    plain_error,
    session_conf,
    shape_session,
)
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


def test_s3_needs_a_log_store_for_several_writers() -> None:
    setting = "spark.delta.logStore.s3a.impl"
    with pytest.raises(
        StorageRefused, match=r"s3a://lake/x: .* Leave spark\.delta\.logStore\.s3a\.impl unset"
    ):
        check_storage("s3a://lake/x", {setting: "org.apache.spark.sql.delta.storage.S3SingleDriverLogStore"})

    check_storage("s3a://lake/x", {})
    check_storage("s3a://lake/x", {setting: "io.delta.storage.S3DynamoDBLogStore"})
    assert session_conf("local", "app", [])[setting] == "penstock.S3LogStore"


def test_the_s3_client_is_of_sparks_own_hadoop() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    assert (jars / f"hadoop-client-api-{HADOOP_VERSION}.jar").is_file()
    missing = plain_error("s3a://lake/x", "java.lang.ClassNotFoundException: Class a.S3AFileSystem not found")
    assert str(missing).endswith(f"--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:{HADOOP_VERSION}")
