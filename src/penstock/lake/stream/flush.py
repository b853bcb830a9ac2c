"""A flush into a stream: a shape's changes, one record each, never folded. Blocks.

1. Tasks read the changes, and those of a shape with a `where` decode both rows of each. Spark judges them.
   A change that doesn't carry its whole old row (old_row.py) can't be judged, and ends the flush.
2. Each becomes a record, or none (rendering.py), under the partition key that capture would give it; one that
   is too large becomes a pointer, or ends the flush before anything is sent (keeping.py).
3. Changes are brought together by key, a key in one task, in the order of the log, and published from there.
4. What comes back to the driver is where the records are, for the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.decoding.decoder import Unreadable
from penstock.decoding.plugins import STREAM_PLUGIN, decoder_for
from penstock.decoding.rows import DecodeError, RowIncomplete
from penstock.kinesis.marked.pointer import is_pointer
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.kinesis.write.client import KinesisClient
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.partition_key import Fallback, PartitionKeys, UnknownRelation
from penstock.lake.errors import StorageFailed
from penstock.lake.jobs.changes import ShapeLayout, share_out
from penstock.lake.ports import ChangePart
from penstock.lake.spark.spark_session import plain_errors, saying_errors
from penstock.lake.stream.keeping import Keeping, LargeRecords
from penstock.lake.stream.old_row import OldRow
from penstock.lake.stream.parts import Part, together
from penstock.lake.stream.place import StreamPlace
from penstock.lake.stream.publishing import TaskPublisher
from penstock.lake.stream.rendering import Sides, render
from penstock.model.change import Action, table_told
from penstock.model.key_indexes import KeyIndexes
from penstock.model.log_offset import LogOffset
from penstock.model.stream_position import History

CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0

_TX: Final = "_penstock_tx"
_OP: Final = "_penstock_op"
_PAYLOAD: Final = "_penstock_payload"
_KEY: Final = "_penstock_key"
_OLD: Final = "_penstock_old"
_NEW: Final = "_penstock_new"
_OLD_INSIDE: Final = "_penstock_old_inside"
_NEW_INSIDE: Final = "_penstock_new_inside"
_PART: Final = "_penstock_part"
_CHANGE: Final = (
    pa.field(_TX, pa.int64()),
    pa.field(_OP, pa.int64()),
    pa.field(_PAYLOAD, pa.binary()),
)
_RECORDS: Final = pa.schema([*_CHANGE, pa.field(_KEY, pa.string())])
_TASK_BYTES: Final = 8 << 20
_MOST_TASKS: Final = 16
_BEFORE_THE_ROW: Final = 5
"""A decoded batch has offsets, action, what is absent and an old key before the row's columns."""

_OF_OLD_ROWS: Final = frozenset({Action.UPDATE.value, Action.DELETE.value})

_Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Flush(NamedTuple):
    """What is told by a flush, and how."""

    place: StreamPlace
    layout: ShapeLayout
    indexes: KeyIndexes
    kept: frozenset[str] | None
    """The shape's columns; None: all."""
    history: History
    by: str
    shape: str
    keeping: Keeping
    old_row: OldRow


def publish(spark: SparkSession, flush: Flush, ranges: Sequence[ChangePart]) -> Part:
    """Publish what these ranges hold; where it is. StorageFailed, and what the decoder and the log raise."""
    tasks = min(_MOST_TASKS, 1 + sum(part.wanted_bytes for part in ranges) // _TASK_BYTES)
    with plain_errors(f"stream {flush.place.stream}"):
        judged = _judged(_changes(spark, flush, ranges), flush.layout)
        records = judged.mapInArrow(rendering(flush), from_arrow_schema(_RECORDS))
        ordered = records.repartition(tasks, _KEY).sortWithinPartitions(_TX, _OP)
        published = ordered.mapInArrow(_publishing(flush), f"{_PART} binary").collect()
    return together(Part.decode(row[_PART]) for row in published)


def open_client(place: StreamPlace, marks_stream: str | None = None) -> KinesisClient:
    """A client that writes to a stream."""
    return KinesisClient(
        stream=place.stream,
        region=place.region,
        endpoint_url=place.endpoint_url,
        connect_timeout_s=CONNECT_S,
        read_timeout_s=ANSWER_S,
        marks_stream=marks_stream,
    )


def _changes(spark: SparkSession, flush: Flush, ranges: Sequence[ChangePart]) -> DataFrame:
    """All changes; of a layout with a `where`, with both rows of each."""
    tasks, layout, old_row = share_out(ranges), flush.layout, flush.old_row

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with saying_errors():
            for number in (number for batch in numbers for number in batch["id"].to_pylist()):
                for part in tasks[number]:
                    for batch in part.read():
                        yield both_rows(batch, layout, old_row)

    numbers = spark.range(len(tasks), numPartitions=len(tasks))
    return numbers.mapInArrow(read, from_arrow_schema(_schema(layout), prefer_timestamp_ntz=True))


def _schema(layout: ShapeLayout) -> pa.Schema:
    if layout.where is None:
        return pa.schema(_CHANGE)
    row = pa.struct(list(layout.decoder().schema)[_BEFORE_THE_ROW:])
    return pa.schema([*_CHANGE, pa.field(_OLD, row), pa.field(_NEW, row)])


def both_rows(batch: pa.RecordBatch, layout: ShapeLayout, old_row: OldRow) -> pa.RecordBatch:
    """The changes; of a layout with a `where`, each with its old and its new row. DecodeError.

    RowIncomplete if one lacks some of its old row: nothing tells then whether it was the shape's.
    """
    schema = _schema(layout)
    change = [batch["tx_offset"], batch["op_offset"], batch["payload"].cast(pa.binary())]
    if layout.where is None:
        return pa.RecordBatch.from_arrays(change, schema=schema)
    decoder, cells = layout.decoder(), decoder_for(layout.plugin).cells
    at = list(zip(batch["tx_offset"].to_pylist(), batch["op_offset"].to_pylist(), strict=True))
    frames = []
    for offset, payload in zip(at, batch["payload"].to_pylist(), strict=True):
        try:
            frames.append(cells(payload))
        except Unreadable as error:
            raise _unreadable(layout, offset, error) from None
    sides = [Sides(frame) for frame in frames]
    rows = []
    for each_side in ([each.old for each in sides], [each.new for each in sides]):
        decoded = decoder.decode_cells(at, each_side)
        columns = decoded.columns[_BEFORE_THE_ROW:]
        rows.append(pa.StructArray.from_arrays(columns, fields=list(schema.field(_OLD).type)))
    for offset, frame in zip(at, frames, strict=True):
        if frame.action in _OF_OLD_ROWS and (lacking := old_row.lacking(frame)):
            raise RowIncomplete(
                f"{layout.relation} at {LogOffset(*offset)}: the change lacks {', '.join(lacking)} of its old"
                " row, so where can't judge it: the table was not REPLICA IDENTITY FULL"
            )
    return pa.RecordBatch.from_arrays([*change, *rows], schema=schema)


def _judged(changes: DataFrame, layout: ShapeLayout) -> DataFrame:
    """Each change with whether its rows are the shape's."""
    if layout.where is None:
        return changes.withColumns({_OLD_INSIDE: F.lit(True), _NEW_INSIDE: F.lit(True)})
    known = [_TX, _OP, _PAYLOAD]
    inside = F.coalesce(F.expr(layout.where), F.lit(False))
    old = changes.select(*known, _NEW, f"{_OLD}.*").select(*known, _NEW, inside.alias(_OLD_INSIDE))
    new = old.select(*known, _OLD_INSIDE, f"{_NEW}.*")
    return new.select(*known, _OLD_INSIDE, inside.alias(_NEW_INSIDE))


def rendering(flush: Flush) -> _Work:
    """Makes the records, with their partition keys, of changes that were judged."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read, written = decoder_for(flush.layout.plugin), decoder_for(STREAM_PLUGIN)
        keys = PartitionKeys(written, by_primary_key=True, fallback=Fallback.TABLE)
        large = LargeRecords(
            flush.keeping,
            shape=flush.shape,
            region=flush.place.region,
            decoder=written,
            indexes=flush.indexes,
        )
        with saying_errors():
            for batch in batches:
                rows = []
                columns = (batch[name].to_pylist() for name in (_TX, _OP, _PAYLOAD, _OLD_INSIDE, _NEW_INSIDE))
                for tx, op, payload, old, new in zip(*columns, strict=True):
                    try:
                        record = render(read, payload, old_inside=old, new_inside=new, kept=flush.kept)
                    except Unreadable as error:
                        raise _unreadable(flush.layout, (tx, op), error) from None
                    if record is not None:
                        key = _key(keys, record, tx, flush.indexes)
                        rows.append((tx, op, large.fitting(record, key, LogOffset(tx, op)), key))
                arrays = [
                    pa.array([row[place] for row in rows], field.type) for place, field in enumerate(_RECORDS)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=_RECORDS)

    return work


def _unreadable(layout: ShapeLayout, offset: tuple[int, int], error: Unreadable) -> DecodeError:
    return DecodeError(f"{layout.relation} at {LogOffset(*offset)}: {error}")


def _key(keys: PartitionKeys, record: bytes, tx: int, indexes: KeyIndexes) -> str:
    try:
        return keys.key(record, tx)
    except UnknownRelation as unknown:
        keys.learn(unknown.relation, indexes)
        return keys.key(record, tx)


def _publishing(flush: Flush) -> _Work:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with saying_errors():
            client = open_client(flush.place)
            pointers = 0

            def events() -> Iterator[ChangeEvent]:
                nonlocal pointers
                for event in _events(flush, batches):
                    pointers += event.is_pointer
                    yield event

            try:
                tally = TaskPublisher(flush.place.stream, client).publish(events())
            finally:
                client.close()
            part = Part.of(tally, flush.history, pointers).encode()
            yield pa.RecordBatch.from_arrays([pa.array([part], pa.binary())], names=[_PART])

    return work


def _events(flush: Flush, batches: Iterator[pa.RecordBatch]) -> Iterator[ChangeEvent]:
    decoder = decoder_for(STREAM_PLUGIN)
    prefix = MarkPrefix(flush.history, flush.by)
    number = 0
    for batch in batches:
        columns = (batch[name].to_pylist() for name in (_TX, _OP, _PAYLOAD, _KEY))
        for tx, op, payload, key in zip(*columns, strict=True):
            data = prefix.put(payload, tx, op)
            if data is None:
                raise StorageFailed(f"a change of {flush.layout.relation} is no JSON object")
            number += 1
            yield ChangeEvent(
                ack_id=number,
                payload=data,
                partition_key=key,
                record_size_bytes=len(data) + len(key.encode()),
                commit_lsn=tx,
                op_offset=op,
                received_at=0.0,
                is_pointer=is_pointer(payload),
                table=table_told(decoder.relation(payload), decoder.action(payload), tx, op),
            )
