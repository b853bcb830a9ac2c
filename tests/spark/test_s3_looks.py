"""What a look at a table on S3 asks of S3, and what upkeep deletes there.

Hadoop's own client is 600 MB, so `s3a_client/` stands in its place: Delta, its code for `start-after` and
our log store are the real ones, and so are the requests; who sends them is not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
import pytest
from pyspark.sql import SparkSession

import hatch_build
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.delta_log import delta_log_of
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.spark.spark_session import shape_session
from tests.servers.s3_fixtures import S3Requests
from tests.spark.batches import KEY, Change, net, table_frame
from tests.spark.conftest import Started

APP_ID = AppId("1", "shape", 1)
PAGE = 20
YOUNG, OLD = 3, 300
"""Commits below the last checkpoint."""

_LOOKS = """
import sys
from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.spark.spark_session import open_session, shape_session

classes, endpoint, page, *tables = sys.argv[1:]
conf = {
    "spark.driver.extraClassPath": classes,
    "spark.hadoop.fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.s3a.endpoint": endpoint,
    "spark.hadoop.fs.s3a.paging.maximum": page,
}
spark = open_session("local[1]", "looks", conf)
for path in tables:
    table = ShapeTable(shape_session(spark), path, AppId("1", "shape", 1))
    first, again = table.read_state(), table.read_state()
    print("state", path, first.version, first.offset, first == again)
"""

_SHORTENS = (
    _LOOKS
    + """
    table.shorten_log()
"""
)


class Looked(NamedTuple):
    """Two looks at each of several tables: what they saw, and what was said beside."""

    states: list[str]
    warnings: list[str]


@pytest.fixture(scope="module")
def client_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in the place of Hadoop's."""
    jar = tmp_path_factory.mktemp("s3a") / "client.jar"
    hadoop = sorted(Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"))
    classpath = ("-classpath", os.pathsep.join(map(str, hadoop)))
    hatch_build.compile_log_stores(Path(__file__).parent / "s3a_client", jar, classpath)
    return jar


def look(classes: Path, endpoint: str, tables: Sequence[str], program: str = _LOOKS) -> Looked:
    """A process of its own looks at the tables: only there are the client's classes."""
    command = [sys.executable, "-c", program, str(classes), endpoint, str(PAGE), *tables]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return Looked(
        [line for line in lines if line.startswith("state ")], [line for line in lines if "whole_log" in line]
    )


def make_table(spark: SparkSession, path: Path, older: int) -> None:
    """A table with a checkpoint at the version `older`, and two commits behind it."""
    table = ShapeTable(spark, str(path), APP_ID)
    table.overwrite_from(table_frame(spark, {1: ("a", "b")}), 100, KEY)
    for version in range(1, older + 1):
        info = {"timestamp": version, "operation": "UPDATE", "operationParameters": {}}
        (path / "_delta_log" / f"{version:020}.json").write_text(json.dumps({"commitInfo": info}) + "\n")
    assert table.read_state().version == older
    delta_log_of(spark, str(path)).checkpoint()
    for place in range(2):
        table.merge(net(spark, table, Change("insert", 10 + place, "a", "b")), 200 + place)


def upload(s3: Any, table: Path, bucket: str) -> None:
    for path in (table / "_delta_log").iterdir():
        if path.is_file() and not path.name.startswith("."):
            key = f"{table.name}/_delta_log/{path.name}"
            s3.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())


def test_looks_list_from_the_last_checkpoint_on(
    started: Started,
    tmp_path: Path,
    client_classes: Path,
    s3: Any,
    s3_endpoint: str,
    s3_requests: S3Requests,
) -> None:
    """And a client with which they can't is told of, once."""
    for bucket in ("lake", "another-client"):
        s3.create_bucket(Bucket=bucket)
    for name, older in (("young", YOUNG), ("old", OLD)):
        make_table(shape_session(started.spark), tmp_path / name, older)
        upload(s3, tmp_path / name, "lake")
    upload(s3, tmp_path / "old", "another-client")
    s3_requests.clear()

    looked = look(
        client_classes, s3_endpoint, ["s3a://lake/young", "s3a://lake/old", "s3a://another-client/old"]
    )

    assert looked.states == [
        f"state s3a://lake/young {YOUNG + 2} 201 True",
        f"state s3a://lake/old {OLD + 2} 201 True",
        f"state s3a://another-client/old {OLD + 2} 201 True",
    ]
    young, old = (s3_requests.lists("lake", f"{name}/_delta_log") for name in ("young", "old"))
    for lists, name, checkpoint in ((young, "young", YOUNG), (old, "old", OLD)):
        below = f"{name}/_delta_log/{checkpoint - 1:020}.json"
        assert all(below < each["start-after"] < f"{name}/_delta_log/{checkpoint:020}.json" for each in lists)
        assert all("continuation-token" not in each for each in lists), "one page is enough"
    assert len(young) == len(old) <= 4
    whole = s3_requests.lists("another-client", "old/_delta_log")
    assert len(whole) > 2 * (OLD // PAGE)
    (warning,) = looked.warnings
    assert "NoSuchMethodError: S3AFileSystem.getListing()" in warning


def test_upkeep_deletes_checksums_below_the_last_checkpoint(
    started: Started, tmp_path: Path, client_classes: Path, s3: Any, s3_endpoint: str
) -> None:
    s3.create_bucket(Bucket="lake")
    make_table(shape_session(started.spark), tmp_path / "young", YOUNG)
    upload(s3, tmp_path / "young", "lake")

    def names() -> list[str]:
        listed = s3.list_objects_v2(Bucket="lake")["Contents"]
        return [each["Key"].removeprefix("young/_delta_log/") for each in listed]

    before = names()
    assert [name for name in before if name.endswith(".crc")] == [f"{each:020}.crc" for each in (0, 4, 5)]

    look(client_classes, s3_endpoint, ["s3a://lake/young"], _SHORTENS)

    assert names() == [name for name in before if name != f"{0:020}.crc"]
