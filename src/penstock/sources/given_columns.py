"""The columns of tables in a marked stream, as the user names them with `.schema(…)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from penstock.decoding.decoder import Cells, Unreadable
from penstock.decoding.plugins import STREAM_PLUGIN, decoder_for
from penstock.decoding.rows import (
    ABSENT,
    ACTION,
    OLD_KEY,
    OP_OFFSET,
    TX_OFFSET,
    ChangeDecoder,
    Column,
    LayoutChanged,
)
from penstock.decoding.type_map import lake_type
from penstock.decoding.widening import is_wider
from penstock.kinesis.read.errors import StreamReadError
from penstock.model.relation import Relation
from penstock.sources.log_source import LSN, RELATION, with_names

_OWN: Final = {
    TX_OFFSET: LongType(),
    OP_OFFSET: LongType(),
    LSN: StringType(),
    RELATION: StringType(),
    ACTION: StringType(),
    ABSENT: ArrayType(StringType()),
}
_STAND_INS: Final = {
    lake_type(name).spark: name
    for name in (
        "text",
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "boolean",
        "bytea",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    )
}
"""For each type in the lake one of Postgres: for a column that no change at hand has, and is null in all."""

Offset = tuple[int, int]


class _Run(NamedTuple):
    """Changes that follow each other and agree in the types of their columns."""

    start: int
    end: int
    types: dict[str, str]


class GivenColumns:
    """Reads the changes of tables as rows of a schema that the user has given.

    1. It begins with our own columns, as a schema that was found does. The fields of the old key are the key.
    2. A column that a change lacks is null, and named among the absent ones: a new column, or a dropped one.
    3. A column that the schema lacks ends the query: nothing is left out silently.
    4. A change may have a narrower type than the schema (an integer for a bigint): then it is as wide as
       that here. Any other type ends the query.
    """

    def __init__(self, schema: StructType) -> None:
        """StreamReadError if it isn't such a schema."""
        own = {field.name: field.dataType for field in schema.fields[: len(_OWN)]}
        key = schema.fields[len(_OWN)] if len(schema.fields) > len(_OWN) else None
        # Not `==` of the whole: who writes a schema doesn't say what can be null.
        is_ours = list(own) == list(_OWN) and all(
            own[name].simpleString() == kind.simpleString() for name, kind in _OWN.items()
        )
        if not is_ours or key is None or key.name != OLD_KEY or not isinstance(key.dataType, StructType):
            said = ", ".join(f"{name} {kind.simpleString()}" for name, kind in _OWN.items())
            raise StreamReadError(
                f".schema(…): it must begin with {said}, {OLD_KEY} struct<the key's columns>; then come the"
                " columns of the table (docs/spark.md)"
            )
        self._schema = schema
        columns = schema.fields[len(_OWN) + 1 :]
        self._types = {field.name: field.dataType.simpleString() for field in columns}
        self._key = tuple(key.dataType.names)
        self._stand_ins = {name: _stand_in(name, kind) for name, kind in self._types.items()}
        if lacking := sorted({*self._key} - self._types.keys()):
            raise StreamReadError(f".schema(…): {', '.join(lacking)} of {OLD_KEY} is no column of the table")

    def batches(
        self, relation: Relation, offsets: Sequence[Offset], payloads: Sequence[bytes]
    ) -> Iterator[pa.RecordBatch]:
        """The changes of a table as rows; LayoutChanged if the schema can't hold one."""
        try:
            frames = list(map(decoder_for(STREAM_PLUGIN).cells, payloads))
        except Unreadable:
            # It says which.
            self._decoder(relation, {}).decode(offsets, payloads)
            raise
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        for start, end, types in self._runs(relation, frames):
            changes = self._decoder(relation, types).decode_cells(offsets[start:end], frames[start:end])
            yield with_names(relation, changes, arrow)

    def _runs(self, relation: Relation, frames: Sequence[Cells]) -> Iterator[_Run]:
        start = 0
        types: dict[str, str] = {}
        for index, frame in enumerate(frames):
            cells = (*frame.columns, *frame.identity)
            news = {
                cell.name: cell.type
                for cell in cells
                if types.get(cell.name) != cell.type and cell.name in self._types
            }
            if any(lake_type(types.get(name, kind)) != lake_type(kind) for name, kind in news.items()):
                yield _Run(start, index, types)
                start, types = index, {}
                news = {cell.name: cell.type for cell in cells if cell.name in self._types}
            for name, kind in news.items():
                self._require_room(relation, name, kind)
            types.update(news)
        if frames:
            yield _Run(start, len(frames), types)

    def _require_room(self, relation: Relation, name: str, kind: str) -> None:
        given, found = self._types[name], lake_type(kind).spark
        if given != found and not is_wider(given, found):
            raise LayoutChanged(
                f"{relation}: column {name} is {given} in .schema(…), and a change has {kind} ({found})"
            )

    def _decoder(self, relation: Relation, types: dict[str, str]) -> ChangeDecoder:
        columns = [Column(name, types.get(name, unseen)) for name, unseen in self._stand_ins.items()]
        return ChangeDecoder(str(relation), columns, self._key, plugin=STREAM_PLUGIN)


def _stand_in(name: str, kind: str) -> str:
    if kind.startswith("decimal("):
        return kind.replace("decimal", "numeric")
    if kind not in _STAND_INS:
        raise StreamReadError(
            f".schema(…): column {name} is {kind}, and no column of Postgres is (docs/types.md)"
        )
    return _STAND_INS[kind]
