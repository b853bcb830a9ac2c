"""`format("penstock")` over a marked stream: whole transactions, each change once (docs/spark.md).

1. The driver reads manifests only. An offset is where a manifest ends, and the place of that manifest.
2. Executors read the ranges that manifests name; shards that share keys go to one task, which drops repeats
   and counts. So a batch holds whole transactions, and the same offsets give the same rows at every attempt.
3. `initialOffset` is only a word. The first end says where that was, so that a query that dies in its first
   batch begins at the same place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.kinesis.read.marked_plan import MarkedOffset, ReadLimits
from penstock.kinesis.read.marked_ranges import MarkedTask, read_task
from penstock.sources.marked_driver import MarkedDriver
from penstock.sources.marked_offset import offset_json, parse_offset
from penstock.sources.marked_query import MarkedQuery
from penstock.sources.marked_rows import Columns, of_tables, raw_batches, typed_batches


class _Task(InputPartition):
    def __init__(self, task: MarkedTask) -> None:
        self.task = task


class _Reading:
    """What batch and streaming readers share. Travels to executors: holds nothing of the driver's there."""

    def __init__(self, query: MarkedQuery, columns: Columns) -> None:
        self._query = query
        self._columns = columns

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The changes of a task, as Arrow batches."""
        assert isinstance(partition, _Task), "a partition of ours"
        with self._query.lend() as client:
            records = of_tables(read_task(client, partition.task), frozenset(self._query.tables))
            columns = self._columns
            yield from raw_batches(records) if columns is None else typed_batches(records, columns)


class MarkedReader(_Reading, DataSourceReader):
    """`spark.read`: everything from the start up to what is there when it is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return [_Task(task) for task in MarkedDriver(self._query).everything(time.monotonic())]


class MarkedStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`."""

    def __init__(self, query: MarkedQuery, columns: Columns) -> None:
        super().__init__(query, columns)
        self._driver: MarkedDriver | None = None
        self._ends_with_now = False
        self._available: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    @property
    def driver(self) -> MarkedDriver:
        """Made where it is first asked for: on the driver."""
        if self._driver is None:
            self._driver = MarkedDriver(self._query)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        """Only a word: see above."""
        return {"start": self._query.start}

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; Spark knows one limit at a time, `latestOffset` keeps both."""
        limits = self._query.limits
        if limits.changes is not None:
            return ReadMaxRows(limits.changes)
        if limits.size_bytes is not None:
            return ReadMaxBytes(limits.size_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that is read."""
        self._ends_with_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        now = time.monotonic()
        offset = self._offset(start)
        if offset is None:
            offset = self.driver.begin_patiently(now)
            if offset is None and self._ends_with_now:
                raise self.driver.unmarked()
            if offset is None:
                return start
        if self._ends_with_now and self._available is None:
            self._available = self.driver.newest(offset)
        limits = ReadLimits() if isinstance(limit, ReadAllAvailable) else self._query.limits
        end = self.driver.plan.advance(offset, limits, now, up_to=self._available)
        return offset_json(end, stream=self._query.stream, slot=self._query.slot)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the stream ends, and when that came: how far behind a query is."""
        tip = self.driver.tip(time.monotonic())
        return None if tip is None else {"resolved": tip.manifest.resolved, "arrived": tip.at.isoformat()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks between two offsets."""
        upper = self._offset(end)
        if upper is None:
            return []
        lower = self._offset(start) or upper.beginning
        if lower.resolved == upper.resolved:
            return []
        return [_Task(task) for task in self.driver.tasks(lower, upper, time.monotonic())]

    def _offset(self, found: Mapping[str, Any]) -> MarkedOffset | None:
        return parse_offset(found, stream=self._query.stream, slot=self._query.slot)
