"""A storage's URL chooses who keeps its tables."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.errors import StorageRefused
from penstock.lake.ports import LakeTable
from penstock.lake.storages.opening import (
    Source,
    StreamUrl,
    open_jobs,
    open_verify_jobs,
    stream_of,
    tables_of,
)
from penstock.lake.stream.told import StreamPlace
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile

SHAPE = Shape("orders", Relation("public", "orders"))
SOURCE = Source("7301", 2, "wal2json")


class Session:
    """Counts the sessions that were asked for."""

    def __init__(self) -> None:
        self.made = 0

    def newSession(self) -> Session:
        self.made += 1
        return self


def file_at(storage: str) -> ShapesFile:
    return ShapesFile("shapes.toml", storage, (SHAPE, Shape("lines", Relation("public", "lines"))))


@pytest.mark.parametrize("storage", ["/var/lake", "s3a://bucket/lake"])
def test_directories_and_buckets_hold_delta_tables(storage: str) -> None:
    table: LakeTable = tables_of(file_at(storage), SOURCE)(cast(SparkSession, Session()), SHAPE)
    assert isinstance(table, ShapeTable)
    assert table.path == f"{storage}/orders"


@pytest.mark.parametrize("open_jobs_of", [open_jobs, open_verify_jobs])
def test_jobs_have_a_session_for_each_shape(open_jobs_of: Any) -> None:
    session = Session()
    open_jobs_of(session, file_at("/var/lake"), SOURCE)
    assert session.made == 2


@pytest.mark.parametrize(
    ("storage", "marks"), [("kinesis://orders", "orders"), ("kinesis://orders?marks=said", "said")]
)
def test_a_stream_is_where_the_environment_says(
    storage: str, marks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:1")
    place = StreamPlace("orders", "eu-west-1", "http://127.0.0.1:1")
    assert stream_of(file_at(storage)) == StreamUrl(place, marks)
    assert stream_of(file_at("/var/lake")) is None


def test_a_stream_without_a_region_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageRefused, match="AWS_REGION is not set"):
        stream_of(file_at("kinesis://orders"))


def test_a_storage_that_nobody_knows_is_refused() -> None:
    with pytest.raises(StorageRefused, match="gs://bucket: no tables can be kept there"):
        tables_of(file_at("gs://bucket"), SOURCE)
