"""A cluster that has no executors to give: the start doesn't wait for ever, says why, and hears signals."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.lake.jobs import log_check
from penstock.local.postgres import PrivatePostgres
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile
from penstock.settings.loading import load_shapes_settings
from penstock.shapes import app as module
from penstock.shapes.app import Run, ShapesApp
from penstock.shapes.progress import LoggedProgress
from tests.servers.shapes_site import ShapesSite
from tests.spark.conftest import Started

FILE_SHAPE = Shape("t", Relation("public", "t"))


@pytest.fixture
def app(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShapesApp:
    """One whose executors never answer: every task of the look at the log hangs."""
    monkeypatch.setattr(module, "blind_hosts", _never)
    file = ShapesFile("shapes.toml", str(tmp_path / "lake"), (FILE_SHAPE,))
    run = Run("spark://nobody:7077", {})
    return ShapesApp(load_shapes_settings(), file, run, spark=started.spark, progress=LoggedProgress())


def _hang(_: int) -> bool:
    time.sleep(3600)
    return True


def _never(spark: SparkSession, directory: Path) -> list[str]:
    """As `blind_hosts`, but that its tasks are given no executor."""

    class Context:
        defaultParallelism = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(spark.sparkContext, name)

        def parallelize(self, numbers: range, places: int) -> Any:
            return spark.sparkContext.parallelize(numbers, places).filter(_hang)

    class Session:
        sparkContext = Context()

    return log_check.blind_hosts(Session(), directory)  # type: ignore[arg-type]


async def test_it_goes_on_after_a_while_and_says_what_it_waited_for(
    app: ShapesApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SAY_AFTER_S", 0.5)
    monkeypatch.setattr(module, "_EXECUTORS_WITHIN_S", 1.0)

    with capture_logs() as said:
        async with asyncio.timeout(60):
            await app._check_log()

    assert [line["event"] for line in said] == ["waiting_for_executors", "log_not_checked"]
    assert "executors of spark://nobody:7077" in said[-1]["detail"]
    assert "executors of spark://nobody:7077" in said[0]["waits_for"]
    assert os.listdir(tmp_path / "lake" / "_penstock" / "log") == [], "its marker is gone"


async def test_a_signal_ends_it(app: ShapesApp) -> None:
    check = asyncio.create_task(app._check_log())
    await asyncio.sleep(0.5)
    assert not check.done()
    app._cycle.stop.set()
    async with asyncio.timeout(60):
        await check


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster without a single worker."""
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    log = tmp_path / "master.log"
    command = [str(spark_class), "org.apache.spark.deploy.master.Master"]
    places = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with log.open("wb") as output, Popen([*command, *places], stdout=output, stderr=output) as process:
        try:
            while (found := re.search(r"spark://127\.0\.0\.1:\d+", log.read_text())) is None:
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            yield found[0]
        finally:
            process.terminate()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_cluster_without_workers(
    master: str, postgres: PrivatePostgres, database: str, tmp_path: Path
) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql("CREATE TABLE t (id int PRIMARY KEY)")
    site.write_file('name = "t"\ntable = "public.t"')
    with site.shapes("--master", master) as service:
        said = service.wait_for_log("waiting_for_executors", 300.0)
        assert f"executors of {master}" in said["waits_for"]
        service.stop()
        assert service.wait(120.0) == 0
        assert "Traceback" not in service.log_text()
