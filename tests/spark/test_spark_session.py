from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.lake.spark.spark_session import (
    HADOOP_VERSION,
    open_session,
    plain_error,
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


def test_the_s3_client_is_of_sparks_own_hadoop() -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    assert (jars / f"hadoop-client-api-{HADOOP_VERSION}.jar").is_file()
    missing = plain_error("s3a://lake/x", "java.lang.ClassNotFoundException: Class a.S3AFileSystem not found")
    assert str(missing).endswith(f"--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:{HADOOP_VERSION}")


def test_spark_logs_no_values(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    words = spark.createDataFrame([("hunter2",)], ["word"])
    with pytest.raises(PySparkException):
        words.select(words["word"].cast("int")).collect()

    said = capfd.readouterr()
    assert "hunter2" not in said.out + said.err


_REJECTED = """
import os
from penstock.lake.errors import SparkFailed
from penstock.lake.spark.spark_session import open_session
try:
    open_session("local[1]", "rejected", {"spark.driver.port": "none"})
except SparkFailed as error:
    print(error)
    print(os.environ["PYSPARK_PYTHON"])
"""


def test_an_application_that_is_rejected_is_one_line_and_the_operators_python_stays() -> None:
    environ = {**os.environ, "PYSPARK_PYTHON": "/opt/theirs/bin/python"}
    done = subprocess.run(
        [sys.executable, "-c", _REJECTED], env=environ, capture_output=True, text=True, check=True
    )

    said, python = done.stdout.splitlines()
    assert said.startswith("Spark did not start with master local[1]: ")
    assert "spark.driver.port" in said
    assert python == "/opt/theirs/bin/python"
