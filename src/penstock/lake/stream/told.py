"""What a marked stream tells: its changes, read once by executors and kept on their disks.

Whoever plans the reading hands over some manifests' tasks at a time, so that the driver never holds more than
those; a checkpoint behind each of them lets go of the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.decoding.plugins import STREAM_PLUGIN, decoder_for
from penstock.kinesis.marked.pointer import POINTER, action_of
from penstock.kinesis.read.marked_ranges import MarkedRecord, MarkedTask, read_task
from penstock.kinesis.read.record_table import table_of
from penstock.lake.spark.spark_session import plain_errors, saying_errors
from penstock.lake.stream.place import StreamPlace
from penstock.model.change import Action
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.stream_position import StreamPosition

RELATION: Final = "relation"
TX: Final = "tx_offset"
OP: Final = "op_offset"
ACTION: Final = "action"
PAYLOAD: Final = "payload"

_SCHEMA: Final = pa.schema(
    [
        pa.field(RELATION, pa.string()),
        pa.field(TX, pa.int64()),
        pa.field(OP, pa.int64()),
        pa.field(ACTION, pa.string()),
        pa.field(PAYLOAD, pa.binary()),
    ]
)
_ROWS: Final = 5_000
_BYTES: Final = 4 << 20


class TableTold(NamedTuple):
    """What the stream tells of one table, in a few numbers."""

    changes: int = 0
    quarantined: int = 0
    """Pointers to records that are not in the stream."""
    truncated_at: LogOffset | None = None
    """Its last truncate."""


class Told:
    """The changes of a stream, all tables together. All calls block."""

    def __init__(self, spark: SparkSession, place: StreamPlace) -> None:
        self._spark = spark
        self._place = place
        self._frames: list[DataFrame] = []

    @property
    def name(self) -> str:
        """The stream's."""
        return self._place.stream

    def read(self, tasks: Sequence[MarkedTask]) -> None:
        """Read what these tasks are about. Raises what a reader of the stream raises."""
        if not tasks:
            return
        place, shared = self._place, tuple(tasks)

        def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with saying_errors():
                client = place.open()
                try:
                    for batch in numbers:
                        for number in batch["id"].to_pylist():
                            yield from _batches(read_task(client, shared[number]))
                finally:
                    client.close()

        numbers = self._spark.range(len(shared), numPartitions=len(shared))
        with plain_errors(self.name):
            frame = numbers.mapInArrow(read, from_arrow_schema(_SCHEMA))
            self._frames.append(frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY))

    def forget(self) -> None:
        """Begin again, with nothing."""
        self._frames = []

    def tables(self) -> dict[str, TableTold]:
        """What is told of which table, by its name."""
        at = F.struct(TX, OP)
        told = (
            self._everything()
            .groupBy(RELATION)
            .agg(
                F.count(F.lit(1)),
                F.count_if(F.col(ACTION) == POINTER),
                F.max(F.when(F.col(ACTION) == Action.TRUNCATE.value, at)),
            )
        )
        with plain_errors(self.name):
            rows = told.collect()
        return {
            relation: TableTold(count, gone, None if at is None else LogOffset(*at))
            for relation, count, gone, at in rows
        }

    def of(self, relation: Relation) -> DataFrame:
        """The changes of one table or partition: TX, OP, ACTION and PAYLOAD, in no order."""
        return self._everything().where(F.col(RELATION) == str(relation)).drop(RELATION)

    def inserted(self, relation: Relation, told: TableTold) -> int:
        """Inserts less deletes since the last truncate."""
        since = told.truncated_at or LogOffset(-1, 0)
        changes = self.of(relation).where(
            F.struct(TX, OP) > F.struct(*(F.lit(each).cast("long") for each in since))
        )
        with plain_errors(self.name):
            (row,) = changes.select(
                F.count_if(F.col(ACTION) == Action.INSERT.value)
                - F.count_if(F.col(ACTION) == Action.DELETE.value)
            ).collect()
        return int(row[0])

    def _everything(self) -> DataFrame:
        if not self._frames:
            return self._spark.createDataFrame([], from_arrow_schema(_SCHEMA))
        return reduce(DataFrame.unionAll, self._frames)


def _batches(records: Iterator[MarkedRecord]) -> Iterator[pa.RecordBatch]:
    """The changes of tables, in batches of bounded size."""
    decoder = decoder_for(STREAM_PLUGIN)
    held: list[tuple[str, int, int, str | None, bytes]] = []
    size = 0
    for record in records:
        relation = table_of(decoder, record.payload, record.position)
        if relation is None:
            continue
        place = StreamPosition.parse(record.position)
        action = action_of(record.payload, decoder)
        held.append((str(relation), place.commit_lsn, place.operation - 1, action, record.payload))
        size += len(record.payload)
        if len(held) >= _ROWS or size >= _BYTES:
            yield _batch(held)
            held, size = [], 0
    if held:
        yield _batch(held)


def _batch(rows: Sequence[tuple[str, int, int, str | None, bytes]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
