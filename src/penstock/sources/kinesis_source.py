"""`format("penstock_kinesis")`: the records of any Kinesis stream, for batches and streams (docs/spark.md).

1. The driver finds where a batch ends (`kinesis/read/look.py`): for each shard at a record that it has seen.
   Only then is the batch planned, so that it holds the same records at every attempt.
2. A task reads the ranges of shards that may share partition keys, parents first. It checks that the first
   record of a range is the one that the driver saw.
3. Credentials are those that the AWS SDK finds where the driver and the executors run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, MutableMapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, TimestampType

from penstock.kinesis.read.client import ReadRecord, StreamClient
from penstock.kinesis.read.client_pool import CLIENTS
from penstock.kinesis.read.errors import RecordsExpired
from penstock.kinesis.read.look import Look
from penstock.kinesis.read.reach import UNLIMITED, Limit
from penstock.kinesis.read.shard_ranges import read_range
from penstock.kinesis.read.shards import ShardInfo, overlapping, parents_first
from penstock.kinesis.read.stream_offset import INITIAL, ReadRange, Starting, StreamOffset
from penstock.kinesis.read.watch import watch
from penstock.sources.kinesis_options import FAIL, KinesisOptionError, KinesisOptions

COLUMNS: Final = StructType(
    [
        StructField("data", BinaryType()),
        StructField("streamName", StringType()),
        StructField("partitionKey", StringType()),
        StructField("sequenceNumber", StringType()),
        StructField("shardId", StringType()),
        StructField("approximateArrivalTimestamp", TimestampType()),
    ]
)
_LOOK_EVERY_S: Final = 0.5
"""Spark asks again at once when nothing is new; a shard takes five calls a second from all its readers."""

_log = logging.getLogger(__name__)


class KinesisSource(DataSource):
    """The data source that `penstock.spark.register` registers."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = KinesisOptions.parse(options)
        self._found: list[ReadRange] = []

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "penstock_kinesis"

    def schema(self) -> StructType:
        """The columns.

        Spark calls this at `load()` and keeps this object: so here is found what a batch reads. It doesn't
        say whether a batch or a stream will be read; only LATEST tells.
        """
        starting = self._options.starting or Starting("TRIM_HORIZON")
        if starting.kind != "LATEST":
            self._found = _Driver(self._options).all_from(starting).ranges()
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what was there at `load()`."""
        if self._options.starting is not None and self._options.starting.kind == "LATEST":
            raise KinesisOptionError("LATEST is for readStream: nothing that is there now stands behind it")
        return KinesisBatchReader(self._options, self._found, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of what comes."""
        return KinesisStreamReader(self._options, schema)


class _Part(NamedTuple):
    """What one task reads, in this order."""

    ranges: tuple[ReadRange, ...]


class _Tasks:
    """What executors do."""

    def __init__(self, options: KinesisOptions, schema: StructType) -> None:
        if schema != COLUMNS:
            raise KinesisOptionError("the columns are what they are (docs/spark.md): leave out .schema()")
        self._options = options

    def read(self, part: _Part) -> Iterator[Any]:
        """The records of some ranges, as Arrow batches."""
        options = self._options
        with CLIENTS.lend(options.stream, options.region, options.endpoint_url) as client:
            for each in part.ranges:
                for records in read_range(client, each, lambda loss: _lose(options, [loss])):
                    yield _batch(options.name, each.shard_id, records)


class KinesisBatchReader(DataSourceReader):
    """Reads what was found at `load()`, a shard a task."""

    def __init__(self, options: KinesisOptions, found: list[ReadRange], schema: StructType) -> None:
        self._tasks = _Tasks(options, schema)
        self._found = found

    def partitions(self) -> Sequence[InputPartition]:
        """The shards that have something."""
        return [InputPartition(_Part((each,))) for each in self._found] or [InputPartition(_Part(()))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of a shard."""
        return self._tasks.read(partition.value)


class KinesisStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Batch after batch; Spark keeps one in a process of its own, and others where tasks are."""

    def __init__(self, options: KinesisOptions, schema: StructType) -> None:
        self._options = options
        self._tasks = _Tasks(options, schema)
        self._driver = _Driver(options)
        self._is_bounded = False

    def initialOffset(self) -> dict[str, Any]:
        """A constant; latestOffset says what it stands for."""
        return INITIAL

    def getDefaultReadLimit(self) -> ReadLimit:
        """Anything but ReadAllAvailable means our own limits: Spark knows no limit by time."""
        limit = self._options.limit
        return ReadAllAvailable() if limit == UNLIMITED else ReadMaxRows(limit.records or 2**31 - 1)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, end with what is there at the next look."""
        self._is_bounded = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; `start` itself if nothing is new."""
        own = UNLIMITED if isinstance(limit, ReadAllAvailable) else self._options.limit
        return self._driver.next_end(start, own, is_bounded=self._is_bounded)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """How far the last look's end was behind the newest record, in milliseconds, by shard."""
        return {"behindLatestMs": self._driver.behind_ms} if self._driver.behind_ms else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What the tasks of a batch read."""
        offset = StreamOffset.parse(end, self._options.name)
        if offset is None or start == end:
            return []
        return [InputPartition(part) for part in self._driver.parts(offset.ranges())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of a task."""
        return self._tasks.read(partition.value)

    def stop(self) -> None:
        """Close connections."""
        self._driver.close()


class _Driver:
    """The driver's eyes on the stream."""

    def __init__(self, options: KinesisOptions) -> None:
        self._options = options
        self._client: StreamClient | None = None
        self._looked_at = float("-inf")
        self._ceiling: StreamOffset | None = None
        self.behind_ms: dict[str, int] = {}

    def all_from(self, starting: Starting) -> StreamOffset:
        """The end of all that is there now."""
        shards, now = self._list()
        return self._look(
            starting.offset(self._options.name, shards, now), shards, now, UNLIMITED, to_tip=True
        )

    def next_end(self, start: dict[str, Any], limit: Limit, *, is_bounded: bool) -> dict[str, Any]:
        """Where the batch that begins at `start` ends."""
        time.sleep(max(0.0, self._looked_at + _LOOK_EVERY_S - time.monotonic()))
        self._looked_at = time.monotonic()
        shards, now = self._list()
        begun = StreamOffset.parse(start, self._options.name)
        offset = begun or self._initial(shards, now)
        if is_bounded and self._ceiling is None:
            self._ceiling = self._look(offset, shards, now, UNLIMITED, to_tip=True)
        end = self._look(offset, shards, now, limit)
        # What the initial offset stands for has to be kept, even if nothing was found.
        return start if end is begun else end.to_json()

    def parts(self, ranges: list[ReadRange]) -> list[_Part]:
        """What each task reads: shards that share partition keys go to one, in the order of their making."""
        shards = {shard.shard_id: shard for shard in parents_first(self._connected().shards())}
        gone = [each.shard_id for each in ranges if each.shard_id not in shards]
        if gone:
            _lose(self._options, [f"shard {shard_id} expired before it was read" for shard_id in gone])
        there = {each.shard_id: each for each in ranges if each.shard_id in shards}
        order = list(shards)
        return [
            _Part(tuple(there[shard_id] for shard_id in sorted(group, key=order.index)))
            for group in overlapping(shards, there)
        ]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _initial(self, shards: list[ShardInfo], now: datetime) -> StreamOffset:
        starting = self._options.starting or Starting("LATEST")
        return starting.offset(self._options.name, shards, now)

    def _look(
        self,
        start: StreamOffset,
        shards: list[ShardInfo],
        now: datetime,
        limit: Limit,
        *,
        to_tip: bool = False,
    ) -> StreamOffset:
        look = Look(start, shards, now, self._ceiling)
        end = watch(self._connected(), look, limit, to_tip=to_tip)
        if look.losses:
            _lose(self._options, look.losses)
        self.behind_ms = look.behind_ms
        return end

    def _list(self) -> tuple[list[ShardInfo], datetime]:
        """The shards, and the time: ours, within the second that Kinesis says it is."""
        client = self._connected()
        shards = client.shards()
        now = datetime.now(UTC)
        if client.listed_at is None:
            return shards, now
        return shards, min(max(now, client.listed_at), client.listed_at + timedelta(milliseconds=999))

    def _connected(self) -> StreamClient:
        # Not in __init__: Spark sends readers from process to process.
        self._client = self._client or _client(self._options)
        return self._client


def _client(options: KinesisOptions) -> StreamClient:
    return StreamClient(stream=options.stream, region=options.region, endpoint_url=options.endpoint_url)


def _lose(options: KinesisOptions, losses: list[str]) -> None:
    said = f"{options.name}: {'; '.join(losses)}"
    if options.fails_on_data_loss:
        raise RecordsExpired(f"{said}. To go on with what is left, set {FAIL} to false")
    _log.warning("records expired unread, going on with what is left (%s is false): %s", FAIL, said)


def _batch(stream: str, shard_id: str, records: list[ReadRecord]) -> pa.RecordBatch:
    schema = to_arrow_schema(COLUMNS, timezone="UTC")
    count = len(records)
    columns = [
        [record.data for record in records],
        pa.repeat(stream, count),
        [record.partition_key for record in records],
        [str(record.sequence) for record in records],
        pa.repeat(shard_id, count),
        [record.arrived for record in records],
    ]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
