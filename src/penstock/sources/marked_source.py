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
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.decoding.plugins import decoder_for
from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.errors import RecordsExpired, StreamReadError
from penstock.kinesis.read.manifest_log import ManifestLog, Place
from penstock.kinesis.read.marked_plan import PATIENCE_S, MarkedOffset, MarkedPlan, ReadLimits
from penstock.kinesis.read.marked_ranges import (
    MarkedRecord,
    MarkedTask,
    ShardSpan,
    plan_tasks,
    read_span,
    read_task,
)
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.stream_position import StreamPosition

STREAM: Final = "kinesis.streamname"
_OPTIONS: Final = {
    STREAM: "kinesis.streamName",
    "kinesis.region": "kinesis.region",
    "kinesis.endpointurl": "kinesis.endpointUrl",
    "kinesis.marksstreamname": "kinesis.marksStreamName",
    "slot": "slot",
    "startingposition": "startingPosition",
    "tables": "tables",
    "maxchangesperbatch": "maxChangesPerBatch",
    "maxbytesperbatch": "maxBytesPerBatch",
}
"""Spark gives their names in lower case."""
_EARLIEST: Final = "earliest"
_LATEST: Final = "latest"
_ROWS: Final = 5_000
_BYTES: Final = 4 << 20

SCHEMA: Final = pa.schema(
    [
        pa.field("position", pa.string()),
        pa.field("timeline", pa.int64()),
        pa.field("tx_offset", pa.int64()),
        pa.field("op_offset", pa.int64()),
        pa.field("lsn", pa.string()),
        pa.field("relation", pa.string()),
        pa.field("action", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("partitionKey", pa.string()),
        pa.field("shardId", pa.string()),
        pa.field("sequenceNumber", pa.string()),
        pa.field("approximateArrivalTimestamp", pa.timestamp("us", "UTC")),
    ]
)


class MarkedQuery(NamedTuple):
    """The options of a read."""

    stream: str
    region: str
    endpoint_url: str | None
    marks_stream: str
    slot: str
    start: str
    tables: frozenset[str] | None
    """None: all."""
    limits: ReadLimits

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MarkedQuery:
        """Read the options; StreamReadError names a bad one."""
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in _OPTIONS:
                raise StreamReadError(
                    f"unknown option {name}; there are {', '.join(_OPTIONS.values())}. (Credentials are no"
                    " options: driver and executors find them by the usual AWS chain)"
                )
        for name in (STREAM, "kinesis.region", "slot"):
            if not given.get(name):
                raise StreamReadError(f"option {_OPTIONS[name]} is missing")
        start = given.get("startingposition", _EARLIEST).lower()
        if start not in (_EARLIEST, _LATEST):
            raise StreamReadError(f"option startingPosition, {start!r}: must be {_EARLIEST} or {_LATEST}")
        return cls(
            given[STREAM],
            given["kinesis.region"],
            given.get("kinesis.endpointurl"),
            given.get("kinesis.marksstreamname") or given[STREAM],
            given["slot"],
            start,
            _tables(given.get("tables")),
            ReadLimits(_limit(given, "maxchangesperbatch"), _limit(given, "maxbytesperbatch")),
        )

    def open(self, stream: str | None = None) -> StreamClient:
        """A client of the stream, or of that of the manifests."""
        return StreamClient(stream=stream or self.stream, region=self.region, endpoint_url=self.endpoint_url)


def _tables(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    try:
        return frozenset(str(Relation.parse(each.strip())) for each in text.split(","))
    except ValueError as error:
        raise StreamReadError(f"option tables, {text!r}: {error}; say schema.table,schema.table") from None


def _limit(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    if not given[name].isascii() or not given[name].isdigit() or int(given[name]) < 1:
        raise StreamReadError(f"option {_OPTIONS[name]}, {given[name]!r}: must be a whole number, 1 or more")
    return int(given[name])


def marked_schema() -> StructType:
    """The columns."""
    return from_arrow_schema(SCHEMA)


class _Task(InputPartition):
    def __init__(self, task: MarkedTask) -> None:
        self.task = task


class _Reading:
    """What batch and streaming readers share. Travels to executors: holds nothing but options there."""

    def __init__(self, query: MarkedQuery) -> None:
        self._query = query

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The changes of a task, as Arrow batches."""
        assert isinstance(partition, _Task), "a partition of ours"
        client = self._query.open()
        try:
            yield from _batches(read_task(client, partition.task), self._query.tables)
        finally:
            client.close()


class MarkedDriver:
    """The driver's side: manifests, offsets and tasks."""

    def __init__(self, query: MarkedQuery) -> None:
        self._query = query
        self._stream = query.open()
        self._log = ManifestLog(query.open(query.marks_stream), query.slot)
        self.plan = MarkedPlan(self._log.read, query.slot)
        self._looked_since: float | None = None

    def begin(self) -> MarkedOffset | None:
        """Where a new query begins; None if no manifest is there yet."""
        before: Place | None = None
        last: tuple[Place, Manifest] | None = None
        for place, manifest in self._log.read(None):
            last = place, manifest
            if self._query.start == _EARLIEST and self._is_there(manifest):
                return MarkedOffset(manifest.since, before, manifest.system, manifest.since, before)
            before = place
        if last is None:
            return None
        place, manifest = last
        if self._query.start == _EARLIEST:
            raise RecordsExpired(
                f"{self._query.stream}: the records of all {self._query.slot} manifests are gone: the"
                " stream's retention has passed them"
            )
        return MarkedOffset(manifest.resolved, place, manifest.system, manifest.resolved, place)

    def newest(self) -> str:
        """Where the newest manifest ends."""
        ends = [manifest.resolved for _, manifest in self._log.read(None)]
        if not ends:
            raise self.unmarked()
        return max(ends)

    def begin_patiently(self, now: float) -> MarkedOffset | None:
        """The same; an error if none has come for long."""
        found = self.begin()
        if found is not None:
            self._looked_since = None
            return found
        if self._looked_since is None:
            self._looked_since = now
        if now - self._looked_since > PATIENCE_S:
            raise self.unmarked()
        return None

    def unmarked(self) -> StreamReadError:
        """There are no manifests."""
        return StreamReadError(
            f"{self._query.marks_stream} has no manifests of the slot {self._query.slot}. Fix: let penstock"
            " capture write it with KINESIS_MARKED_STREAM=true; name its REPLICATION_SLOT as slot, and its"
            " KINESIS_MARKS_STREAM, if there is one, as kinesis.marksStreamName"
        )

    def tasks(self, start: MarkedOffset, end: MarkedOffset, now: float) -> list[MarkedTask]:
        """What executors read for a batch."""
        links = [link for link in self.plan.links(start, end, now) if link.manifest.changes]
        if self._query.tables is not None:
            links = [link for link in links if _touches(link.manifest, self._query.tables)]
        if not links:
            return []
        return plan_tasks(links, {shard.shard_id: shard for shard in self._stream.shards()}, end.resolved)

    def _is_there(self, manifest: Manifest) -> bool:
        """Whether the first record that it speaks of is there in each shard."""
        shards = {shard.shard_id for shard in self._stream.shards()} if manifest.shards else set()
        for name, found in manifest.shards.items():
            first = int(found.first)
            if name not in shards:
                return False
            try:
                next(iter(read_span(self._stream, ShardSpan(name, first, first))))
            except RecordsExpired:
                return False
        return True


def _touches(manifest: Manifest, tables: frozenset[str]) -> bool:
    return isinstance(manifest.tables, str) or not tables.isdisjoint(manifest.tables)


class MarkedReader(_Reading, DataSourceReader):
    """`spark.read`: everything from the start up to what is there at load."""

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        driver, now = MarkedDriver(self._query), time.monotonic()
        start = driver.begin()
        if start is None:
            raise driver.unmarked()
        end = driver.plan.advance(start, ReadLimits(), now)
        return [_Task(task) for task in driver.tasks(start, end, now)]


class MarkedStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`."""

    def __init__(self, query: MarkedQuery) -> None:
        super().__init__(query)
        self._driver: MarkedDriver | None = None
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
        self._available = self.driver.newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        now = time.monotonic()
        offset = _offset(start)
        if offset is None:
            offset = self.driver.begin_patiently(now)
            if offset is None:
                return start
        limits = ReadLimits() if isinstance(limit, ReadAllAvailable) else self._query.limits
        return _json(self.driver.plan.advance(offset, limits, now, up_to=self._available))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest manifest that is known: how far behind a query is."""
        newest = self.driver.plan.newest
        return None if newest is None else {"resolved": newest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks between two offsets."""
        upper = _offset(end)
        if upper is None:
            return []
        lower = _offset(start) or upper.beginning
        if lower.resolved == upper.resolved:
            return []
        return [_Task(task) for task in self.driver.tasks(lower, upper, time.monotonic())]


def _offset(found: Mapping[str, Any]) -> MarkedOffset | None:
    if "resolved" not in found:
        return None
    return MarkedOffset(
        found["resolved"],
        _place(found.get("place")),
        found["system"],
        found["begins"],
        _place(found.get("beginsBehind")),
    )


def _place(text: str | None) -> Place | None:
    if text is None:
        return None
    shard, _, sequence = text.partition(":")
    return Place(shard, int(sequence))


def _json(offset: MarkedOffset) -> dict[str, Any]:
    places = {"place": offset.place, "beginsBehind": offset.begins_behind}
    return {
        "resolved": offset.resolved,
        "system": offset.system,
        "begins": offset.begins,
        **{name: f"{place.shard}:{place.sequence}" for name, place in places.items() if place is not None},
    }


def _batches(records: Iterator[MarkedRecord], tables: frozenset[str] | None) -> Iterator[pa.RecordBatch]:
    decoder = decoder_for("wal2json")
    rows: list[tuple[Any, ...]] = []
    size = 0
    for found in records:
        what = decoder.summary(found.payload)
        named = None if what.table is None else str(Relation(what.schema or "", what.table))
        if tables is not None and named not in tables:
            continue
        position = StreamPosition.parse(found.position)
        rows.append(
            (
                found.position,
                position.timeline,
                position.commit_lsn,
                position.operation - 1,
                format_lsn(position.commit_lsn),
                named,
                what.action,
                found.payload,
                found.record.partition_key,
                found.shard,
                str(found.record.sequence),
                found.record.arrived,
            )
        )
        size += len(found.payload)
        if len(rows) >= _ROWS or size >= _BYTES:
            yield _batch(rows)
            rows, size = [], 0
    if rows:
        yield _batch(rows)


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
