"""One Spark for all tests of this folder: starting it takes longer than most of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import open_session, shape_session, stop_session
from tests.servers.shapes_site import JAVA_OPTIONS

# Small batches don't pay for many tasks.
SHORT_LIFE = {
    "spark.driver.defaultJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


class Started(NamedTuple):
    """Spark, and what its start wrote to the terminal."""

    spark: SparkSession
    stderr: bytes


@pytest.fixture(scope="session")
def started() -> Iterator[Started]:
    """Spark with our own settings. It is started with file descriptor 2 pointing at a file."""
    with tempfile.TemporaryFile() as noise:
        terminal = os.dup(2)
        os.dup2(noise.fileno(), 2)
        try:
            spark = open_session(app_name="penstock-tests", extra_conf=SHORT_LIFE)
            spark.range(1).count()
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
        noise.seek(0)
        yield Started(spark, noise.read())
    stop_session(spark)


@pytest.fixture
def spark(started: Started) -> SparkSession:
    """A session of the test's own."""
    return shape_session(started.spark)
