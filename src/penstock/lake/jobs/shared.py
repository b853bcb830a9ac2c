"""Changes that several shapes read at the same time: read once, kept in Spark until nobody does."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.lake.ports import SharedPart
from penstock.lake.spark.spark_session import saying_errors

_MOST_BYTES: Final = 512 << 20
_IDLE_S: Final = 60.0


@dataclass
class _Place:
    """What one place holds, as Spark keeps it."""

    name: str
    frame: DataFrame
    size_bytes: int
    readers: int = 0
    used_at: float = field(default_factory=time.monotonic)


class SharedPlaces:
    """Places by their keys, for all sessions of one Spark. Safe for threads.

    Whoever comes first makes Spark read a place, into memory and its own scratch files; others that come
    meanwhile wait for the same partitions. One that nobody has read for a minute is dropped, and earlier if
    there is much.
    """

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._turn = Lock()

    @contextmanager
    def reading(self, spark: SparkSession, parts: Sequence[SharedPart]) -> Iterator[DataFrame]:
        """All that is in the place of these parts, which is one."""
        key = parts[0].place
        with self._turn:
            self._drop_idle()
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = _read(spark, parts)
            place.readers += 1
        try:
            yield spark.table(f"global_temp.{place.name}")
        finally:
            with self._turn:
                place.readers -= 1
                place.used_at = time.monotonic()

    def _drop_idle(self) -> None:
        size = sum(place.size_bytes for place in self._places.values())
        for key, place in sorted(self._places.items(), key=lambda each: each[1].used_at):
            is_old = time.monotonic() - place.used_at >= _IDLE_S
            if place.readers or not (is_old or size > _MOST_BYTES):
                continue
            del self._places[key]
            size -= place.size_bytes
            place.frame.sparkSession.catalog.dropGlobalTempView(place.name)
            place.frame.unpersist()


PLACES: Final = SharedPlaces()
"""Of this process, which has one Spark."""


def _read(spark: SparkSession, parts: Sequence[SharedPart]) -> _Place:
    tasks = list(parts)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with saying_errors():
            for batch in numbers:
                for number in batch["id"].to_pylist():
                    yield from tasks[number].read_place()

    schema = from_arrow_schema(parts[0].place_schema)
    frame = spark.range(len(tasks), numPartitions=len(tasks)).mapInArrow(read, schema)
    frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
    name = f"penstock_{secrets.token_hex(8)}"
    frame.createGlobalTempView(name)
    return _Place(name, frame, sum(part.size_bytes for part in parts))
