"""One Spark for all tests of this folder: starting it takes longer than most of them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from penstock.settings import load_shapes_settings
from penstock.shapes.app import Run, ShapesApp, check_without_spark
from penstock.shapes.progress import LoggedProgress
from penstock.shapes.shapes_file import load_shapes_file
from penstock.spark.session import open_session, shape_session, stop_session
from tests.servers.shapes_site import JAVA_OPTIONS, ShapesSite

RunOnce = Callable[..., int]
ONCE = Run("local[2]", {}, once=True)

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


@pytest.fixture
def run_once(started: Started, monkeypatch: pytest.MonkeyPatch) -> RunOnce:
    """`penstock shapes --once` in this process, on the Spark that is here; returns the exit code.

    It takes a ShapesSite, and variables to set.
    """

    def run(site: ShapesSite, **over: str) -> int:
        variables = {
            **site.postgres.env(site.database),
            "REPLICATION_SLOT": site.slot,
            "STANDBY_RETRY_INTERVAL_S": "0.2",
            "LOG_MIN_FREE_BYTES": "0",
            "STALL_S": "3",
            "OPS_PORT": "0",
            **over,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
            # Where tasks find the database.
            monkeypatch.setitem(started.spark.sparkContext.environment, name, value)
        settings, file = load_shapes_settings(), load_shapes_file(site.file)
        check_without_spark(settings, file, ONCE)
        app = ShapesApp(settings, file, ONCE, spark=started.spark, progress=LoggedProgress())
        return asyncio.run(app.run())

    return run
