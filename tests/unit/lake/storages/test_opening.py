"""A storage's URL chooses who keeps its tables."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.errors import StorageRefused
from penstock.lake.ports import LakeTable
from penstock.lake.storages.opening import Source, open_jobs, open_verify_jobs, tables_of
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


def test_a_storage_that_nobody_knows_is_refused() -> None:
    with pytest.raises(StorageRefused, match="gs://bucket: no tables can be kept there"):
        tables_of(file_at("gs://bucket"), SOURCE)
