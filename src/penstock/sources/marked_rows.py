"""Changes of a marked stream as rows: records as they are, or the typed columns of tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Self

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.decoding.plugins import STREAM_PLUGIN, decoder_for
from penstock.decoding.rows import ChangeDecoder, Column, LayoutChanged
from penstock.kinesis.marked.pointer import action_of, is_pointer
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.marked_ranges import MarkedRecord
from penstock.kinesis.read.record_table import table_of
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.stream_position import OPERATION_AT, StreamPosition
from penstock.sources.given_columns import GivenColumns, Offset
from penstock.sources.log_source import row_schema, with_names

_ROWS: Final = 5_000
_BYTES: Final = 4 << 20
_FIX_LAYOUT: Final = (
    "Fix: start the query again; it finds the columns when it starts, by the newest changes. If it ends here"
    " again, name the columns with .schema(…), those of this change too (docs/spark.md)"
)

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


class Typed(NamedTuple):
    """How the rows of tables are read."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def decoder(self, relation: Relation) -> ChangeDecoder:
        """For the changes of one table."""
        return ChangeDecoder(str(relation), self.columns, self.key, plugin=STREAM_PLUGIN)


def marked_schema(typed: Typed | None, tables: Sequence[Relation]) -> StructType:
    """The columns."""
    return from_arrow_schema(SCHEMA) if typed is None else row_schema(typed.decoder(tables[0]))


Columns = Typed | GivenColumns | None
"""Those that were found, those that the user has named, or records as they are."""
Found = tuple[Relation | None, MarkedRecord]


def of_tables(records: Iterator[MarkedRecord], tables: frozenset[Relation]) -> Iterator[Found]:
    """The records of these tables (none: all), each with its table.

    RecordsUnusable if there is one that may be of these tables or of others.
    """
    decoder = decoder_for(STREAM_PLUGIN)
    for record in records:
        if not tables:
            yield decoder.relation(record.payload), record
        elif (relation := table_of(decoder, record.payload, record.position)) in tables:
            yield relation, record


def _bounded(found: Iterator[Found]) -> Iterator[list[Found]]:
    held: list[Found] = []
    size = 0
    for each in found:
        held.append(each)
        size += len(each[1].payload)
        if len(held) >= _ROWS or size >= _BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


class _FoundColumns:
    """Reads the changes of tables as rows with the columns that were found."""

    def __init__(self, typed: Typed) -> None:
        self._typed = typed
        self._decoders: dict[Relation, ChangeDecoder] = {}

    def batches(
        self, relation: Relation, offsets: Sequence[Offset], payloads: Sequence[bytes]
    ) -> Iterator[pa.RecordBatch]:
        decoder = self._decoders.setdefault(relation, self._typed.decoder(relation))
        changes = decoder.decode(offsets, payloads)
        yield with_names(relation, changes, to_arrow_schema(row_schema(decoder), timezone="UTC"))


def typed_batches(found: Iterator[Found], columns: Typed | GivenColumns) -> Iterator[pa.RecordBatch]:
    """Typed rows, as those of a log directory."""
    rows = _FoundColumns(columns) if isinstance(columns, Typed) else columns
    for held in _bounded(found):
        for relation in dict.fromkeys(relation for relation, _ in held if relation is not None):
            mine = [record for each, record in held if each == relation]
            for record in mine:
                if is_pointer(record.payload):
                    raise StreamReadError(
                        f"a change of {relation} at {record.position} is in quarantine, and has no columns"
                        ' here. Fix: .option("raw", "true") tells where it is'
                    )
            places = [StreamPosition.parse(record.position) for record in mine]
            offsets = [(place.commit_lsn, place.operation - 1) for place in places]
            try:
                yield from rows.batches(relation, offsets, [record.payload for record in mine])
            except LayoutChanged as error:
                raise LayoutChanged(f"{error}. {_FIX_LAYOUT}") from None


class _Transaction(NamedTuple):
    """What a position says of its transaction."""

    timeline: int
    commit_lsn: int
    lsn: str

    @classmethod
    def of(cls, position: str) -> Self:
        place = StreamPosition.parse(position)
        return cls(place.timeline, place.commit_lsn, format_lsn(place.commit_lsn))


def raw_batches(found: Iterator[Found]) -> Iterator[pa.RecordBatch]:
    decoder = decoder_for(STREAM_PLUGIN)
    names: dict[Relation | None, str | None] = {None: None}
    known, transaction = "", _Transaction(0, 0, "")
    for held in _bounded(found):
        rows = []
        for relation, record in held:
            position = record.position
            if not position.startswith(known) or not known:
                known, transaction = position[:OPERATION_AT], _Transaction.of(position)
            if relation not in names:
                names[relation] = str(relation)
            rows.append(
                (
                    position,
                    *transaction[:2],
                    int(position[OPERATION_AT:], 16) - 1,
                    transaction.lsn,
                    names[relation],
                    action_of(record.payload, decoder),
                    record.payload,
                    record.record.partition_key,
                    record.shard,
                    str(record.record.sequence),
                    record.record.arrived,
                )
            )
        columns = [
            pa.array(values, field.type)
            for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
