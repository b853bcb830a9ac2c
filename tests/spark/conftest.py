"""Sessions on the Spark that all tests share."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from penstock.lake.spark.spark_session import shape_session
from penstock.shapes.app import Run
from tests.servers.shapes_fixtures import MASTER, RunOnce, Started

__all__ = ["ONCE", "RunOnce", "Started"]

ONCE = Run(MASTER, {}, once=True)


@pytest.fixture
def spark(started: Started) -> SparkSession:
    """A session of the test's own."""
    return shape_session(started.spark)
