"""The one place where a storage's URL chooses who keeps its tables.

Everybody else asks here for a door (lake/ports.py), and doesn't know who stands behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.errors import StorageRefused
from penstock.lake.jobs.shape_jobs import OpenTable, SparkJobs
from penstock.lake.jobs.verify_jobs import SparkVerifyJobs
from penstock.lake.ports import LakeTable, ShapeJobs, VerifyJobs
from penstock.lake.storages.kinds import BUCKET, DIRECTORY, Kind, kind_of
from penstock.lake.storages.stream_url import stream_of
from penstock.lake.stream.keeping import Keeping
from penstock.lake.stream.stream_jobs import StreamJobs, StreamStorage
from penstock.model.shape import Shape, ShapesFile
from penstock.model.stream_position import History

_AS_KINESIS: Final = Keeping()
_NO_SWITCHES: Final[Mapping[int, int]] = MappingProxyType({})


class Source(NamedTuple):
    """Where the changes come from: tables hold positions of one database system, on one timeline."""

    system_id: str
    timeline: int
    plugin: str
    """The output plugin that writes the frames."""
    switch_points: Mapping[int, int] = _NO_SWITCHES
    """For each timeline before, the LSN at which it was left."""


def open_jobs(
    spark: SparkSession, file: ShapesFile, source: Source, keeping: Keeping = _AS_KINESIS
) -> ShapeJobs:
    """The jobs of a file's shapes; `keeping`: of records of a stream. Blocks."""
    stream = stream_of(file)
    if stream is None:
        return SparkJobs(spark, file.shapes, tables_of(file, source), plugin=source.plugin)
    history = History(source.timeline, dict(source.switch_points))
    storage = StreamStorage(*stream, source.system_id, history, source.plugin, keeping)
    return StreamJobs(spark, file.shapes, storage)


def open_verify_jobs(spark: SparkSession, file: ShapesFile, source: Source) -> VerifyJobs:
    """The jobs that compare a file's tables with Postgres. Blocks."""
    return SparkVerifyJobs(spark, file.shapes, tables_of(file, source), plugin=source.plugin)


def tables_of(file: ShapesFile, source: Source) -> OpenTable:
    """What opens the tables of a file's storage. StorageRefused if nobody knows that kind of storage."""
    kind = kind_of(file.storage)
    if kind not in _TABLES:
        raise StorageRefused(f"storage {file.storage}: no tables can be kept there")
    return _TABLES[kind](file, source)


def _delta(file: ShapesFile, source: Source) -> OpenTable:
    def open_table(session: SparkSession, shape: Shape) -> LakeTable:
        app_id = AppId(source.system_id, shape.name, source.timeline)
        return ShapeTable(session, file.location(shape), app_id)

    return open_table


_TABLES: Final[Mapping[Kind | None, Callable[[ShapesFile, Source], OpenTable]]] = {
    DIRECTORY: _delta,
    BUCKET: _delta,
}
