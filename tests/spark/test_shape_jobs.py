"""A shape's jobs run in a pool of its own, and those of a leadership end together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.lake.ports import ShapeJobs
from penstock.lake.storages.opening import Source, open_jobs
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile
from tests.spark.conftest import Started

ORDERS = Shape("orders", Relation("public", "orders"))
LINES = Shape("lines", Relation("public", "lines"))


@pytest.fixture
def jobs(started: Started, tmp_path: Path) -> ShapeJobs:
    file = ShapesFile("shapes.toml", str(tmp_path / "lake"), (ORDERS, LINES))
    return open_jobs(started.spark, file, Source("7", 1, "wal2json"))


def test_shapes_share_spark_fairly(started: Started, jobs: ShapeJobs) -> None:
    context = started.spark.sparkContext
    assert context.getConf().get("spark.scheduler.mode") == "FAIR"
    pools = []
    for shape in (ORDERS, LINES):
        jobs.state(shape)
        pools.append(context.getLocalProperty("spark.scheduler.pool"))

    assert pools == ["orders", "lines"]


def test_a_leaderships_jobs_are_cancelled_and_nobody_elses(started: Started, jobs: ShapeJobs) -> None:
    spark, begun = started.spark, threading.Event()

    def endless() -> None:
        jobs.state(ORDERS)
        begun.set()
        _spin(spark)

    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(endless)
        assert begun.wait(60)
        while not held.done():
            jobs.cancel()
        with pytest.raises((PySparkException, Py4JError), match="cancelled"):
            held.result()
    assert spark.range(3).count() == 3


def test_a_shapes_jobs_are_cancelled_and_no_other_shapes(started: Started, jobs: ShapeJobs) -> None:
    spark, begun = started.spark, threading.Barrier(3)

    def endless(shape: Shape) -> None:
        jobs.state(shape)
        begun.wait(60)
        _spin(spark)

    with ThreadPoolExecutor(2) as threads:
        orders, lines = threads.submit(endless, ORDERS), threads.submit(endless, LINES)
        begun.wait(60)
        while not orders.done():
            jobs.cancel_of(ORDERS)
        with pytest.raises((PySparkException, Py4JError), match="cancelled"):
            orders.result()
        assert not lines.done()
        while not lines.done():
            jobs.cancel()


def _spin(spark: SparkSession) -> None:
    spark.range(10**15).selectExpr("sum(hash(id))").collect()
