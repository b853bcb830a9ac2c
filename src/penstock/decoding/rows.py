"""Rows: what Postgres says about them, as typed Arrow columns. Frames of the stream, and COPY's text.

`ChangeDecoder` turns the frames of one table into record batches with these columns:

    _penstock_tx_offset, _penstock_op_offset   the change's LogOffset
    _penstock_action                           insert, update, delete or truncate
    _penstock_absent                           the columns that the change doesn't carry; null if none
    _penstock_old_key                          the key's old values; on the insert half of a key change only
    the table's columns                        typed (type_map.py); a delete has only the key, a truncate none

1. An update leaves out unchanged TOAST columns, and every change leaves out columns dropped since. Absent
   is not null: an update keeps the value that the row had. Absence is rare, so it is a list that is nearly
   always null: it costs a bit a row, Spark learns by one `is not null` whether a batch needs the column-wise
   fold at all, and names (unlike bit positions) mean the same in batches of different layouts.
2. A value that is absent from the new row and present in `identity` (REPLICA IDENTITY FULL, a TOASTed key)
   hasn't changed: it is taken from there, and the column isn't absent.
3. An update whose `identity` shows another key than its row becomes a delete of the old key at `op_offset`
   and an insert of the new one at `op_offset + 1`. What that insert lacks is in the old key's row.
4. A row that was inserted before a column was added has the column's `missing` value, which its frame can't
   carry. An update that lacks the column keeps what the row has, as in 1. In a shape with a `where` it may
   be what brings the row in, so there it has the value, too.
5. A change that doesn't carry its key can't be applied. Nor can an update be judged by a `where` without an
   unchanged TOAST column. Both come of a replica identity that the table had for a while: RowIncomplete.
6. Keys are compared as text. So `1.0` to `1.00` is a key change too, and still ends with the right row.
7. A type's name without a schema is that of the column's type in whatever schema: capture, which writes
   marked streams, has the search_path of its role, and the catalog is asked without one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoding.decoder import Cell, Cells, Unreadable
from penstock.decoding.plugins import decoder_for
from penstock.decoding.type_map import LakeType, copy_texts, is_nan, json_texts, lake_type
from penstock.decoding.widening import has_more_digits
from penstock.errors import PenstockError
from penstock.model.log_offset import LogOffset

TX_OFFSET: Final = "_penstock_tx_offset"
OP_OFFSET: Final = "_penstock_op_offset"
ACTION: Final = "_penstock_action"
ABSENT: Final = "_penstock_absent"
OLD_KEY: Final = "_penstock_old_key"

_NULL: Final = msgspec.Raw(b"null")
# A value that the frame lacks. It reads as null too, but a decoded null never has the blank.
_ABSENT: Final = msgspec.Raw(b"null ")
_SCHEMA: Final = re.compile(r'^(?:"(?:[^"]|"")*"|[^".]+)\.')
_MISFITS: Final = (ValueError, LookupError, OverflowError, msgspec.DecodeError)


class DecodeError(PenstockError):
    """A change that can't be read as its table's types say. Names the place, never the value."""


class LayoutChanged(DecodeError):
    """A frame has a column, or a column's type, that the decoder wasn't made for: the table was altered."""


class RowIncomplete(DecodeError):
    """A change lacks what tells its row, or whether that belongs to the shape. Nothing in the log has it."""


class NanRefused(DecodeError):
    """NaN came for a column whose type in the lake has none. Says how to find such rows, and what to do."""


class Column(NamedTuple):
    """A column of the table, as the catalog has it."""

    name: str
    type: str
    """As `format_type` prints it; of a domain, the domain's name."""
    base: str = ""
    """What a domain stands on, down to a type that is none."""
    not_null: bool = False
    missing: str | None = None
    """What rows have that are older than the column, as Postgres prints it (`attmissingval`); None: null."""
    nan_as_null: bool = False
    """Whether a NaN is stored as null where the lake's type has none."""

    @property
    def lake(self) -> LakeType:
        """How the column is stored."""
        return lake_type(self.base or self.type)

    @property
    def loses_nan(self) -> bool:
        """Whether null stands for NaN too."""
        return self.nan_as_null and self.lake.lacks_nan

    def parse(self, texts: pa.StringArray) -> pa.Array:
        """The values in Postgres' texts, as LakeType.parse gives them."""
        return self.lake.parse(pc.if_else(is_nan(texts), None, texts) if self.loses_nan else texts)


_Row = list[msgspec.Raw]
_Place = tuple[int, int]


class _Changes:
    """The changes of one batch, column by column but for the rows' own values."""

    __slots__ = ("absent", "actions", "old_keys", "op_offsets", "rows", "tx_offsets")

    def __init__(self) -> None:
        self.tx_offsets: list[int] = []
        self.op_offsets: list[int] = []
        self.actions: list[str] = []
        self.absent: list[list[str] | None] = []
        self.rows: list[_Row] = []
        self.old_keys: dict[int, _Row] = {}
        """By the index of the change that has one."""

    def add(self, at: _Place, action: str, row: _Row, absent: list[str] | None = None) -> None:
        self.tx_offsets.append(at[0])
        self.op_offsets.append(at[1])
        self.actions.append(action)
        self.absent.append(absent)
        self.rows.append(row)

    def offset_of(self, index: int) -> _Place:
        return self.tx_offsets[index], self.op_offsets[index]


class ChangeDecoder:
    """Decodes the frames of one table.

    `relation` is its name for messages, `columns` are those to decode, `key` names the key's. Columns with
    the names `others` are passed over (a shape that lists its columns); any more mean LayoutChanged.
    `filtered`: a `where` will judge the rows. Then an update without one of the columns `must_come`, whose
    identity has no more than the key (so that it isn't FULL), is RowIncomplete. `plugin` wrote the frames.
    """

    def __init__(
        self,
        relation: str,
        columns: Sequence[Column],
        key: Sequence[str],
        *,
        plugin: str,
        others: Collection[str] = (),
        filtered: bool = False,
        must_come: Collection[str] = (),
    ) -> None:
        self._plugin = plugin
        self._relation = relation
        self._columns = tuple(columns)
        self._others = frozenset(others)
        self._blank: _Row = [_ABSENT] * len(columns)
        self._new: _Row = [_missing(column) for column in columns]
        self._places = {column.name: place for place, column in enumerate(columns)}
        self._key = tuple(self._places[name] for name in key)
        self._key_names = frozenset(key)
        self._otherwise = self._new if filtered else self._blank
        self._must_come = frozenset(must_come)
        self._known: dict[tuple[str, str], int | None] = {
            (column.name, column.type): place for place, column in enumerate(columns)
        }
        fields = [pa.field(column.name, column.lake.arrow) for column in columns]
        self._old_key = pa.struct([fields[place] for place in self._key])
        self.schema: Final = pa.schema(
            [
                pa.field(TX_OFFSET, pa.int64(), nullable=False),
                pa.field(OP_OFFSET, pa.int64(), nullable=False),
                pa.field(ACTION, pa.string(), nullable=False),
                pa.field(ABSENT, pa.list_(pa.string())),
                pa.field(OLD_KEY, self._old_key),
                *fields,
            ]
        )

    def decode(self, offsets: Iterable[tuple[int, int]], payloads: Iterable[bytes]) -> pa.RecordBatch:
        """The changes in these frames, in order; `offsets` are LogOffsets. At most 2 GiB in one call."""
        changes = _Changes()
        cells = decoder_for(self._plugin).cells
        for at, payload in zip(offsets, payloads, strict=True):
            try:
                frame = cells(payload)
            except Unreadable as error:
                raise self._error(at, str(error)) from None
            self._add(changes, at, frame)
        return self._batch(changes)

    def _add(self, changes: _Changes, at: _Place, frame: Cells) -> None:
        match frame.action:
            case "I":
                row = self._row(at, frame.columns, self._new)
                self._require_key(at, row)
                changes.add(at, "insert", row, self._absent(row))
            case "U":
                self._add_update(changes, at, frame)
            case "D":
                old = self._row(at, frame.identity, self._blank)
                self._require_key(at, old)
                changes.add(at, "delete", self._key_only(old))
            case "T":
                changes.add(at, "truncate", self._blank)
            case _:
                raise self._error(at, "the frame is no insert, update, delete or truncate")

    def _add_update(self, changes: _Changes, at: _Place, frame: Cells) -> None:
        row = self._row(at, frame.columns, self._blank)
        old = self._row(at, frame.identity, self._blank)
        self._require_key(at, old)
        if _ABSENT in row:
            row = _first_there(row, old)
            self._require_judgeable(at, row, frame.identity)
            row = _first_there(row, self._otherwise)
        absent = self._absent(row)
        if all(row[place] == old[place] for place in self._key):
            changes.add(at, "update", row, absent)
            return
        changes.add(at, "delete", self._key_only(old))
        changes.old_keys[len(changes.rows)] = old
        changes.add((at[0], at[1] + 1), "insert", row, absent)

    def _row(self, at: _Place, cells: list[Cell], otherwise: _Row) -> _Row:
        row = otherwise.copy()
        known = self._known
        for cell in cells:
            try:
                place = known[cell.name, cell.type]
            except KeyError:
                place = self._place_of(at, cell)
            if place is not None:
                row[place] = cell.value
        return row

    def _place_of(self, at: _Place, cell: Cell) -> int | None:
        """Where a column goes that is met for the first time: None if it isn't wanted."""
        place = self._places.get(cell.name)
        if place is None and cell.name not in self._others:
            raise self._error(at, f"column {cell.name} ({cell.type}) is new", LayoutChanged)
        if place is not None and not _is_of(self._columns[place], cell.type):
            was = self._columns[place].type
            raise self._error(at, f"column {cell.name} was {was} and is {cell.type}", LayoutChanged)
        # Another name for the same type in the lake, as varchar(20) to text, changes nothing. Nor do fewer
        # digits, from before the column got more.
        self._known[cell.name, cell.type] = place
        return place

    def _require_key(self, at: _Place, row: _Row) -> None:
        for place in self._key:
            if row[place] == _ABSENT:
                name = self._columns[place].name
                raise self._error(at, f"the frame lacks the key's column {name}", RowIncomplete)

    def _require_judgeable(self, at: _Place, row: _Row, identity: list[Cell]) -> None:
        lacking = self._must_come.intersection(self._absent(row) or ())
        if lacking and self._key_names.issuperset(cell.name for cell in identity):
            what = f"the frame lacks {', '.join(sorted(lacking))}, so where can't judge the row"
            raise self._error(at, what, RowIncomplete)

    def _key_only(self, old: _Row) -> _Row:
        row = self._blank.copy()
        for place in self._key:
            row[place] = old[place]
        return row

    def _absent(self, row: _Row) -> list[str] | None:
        if _ABSENT not in row:
            return None
        pairs = zip(self._columns, row, strict=True)
        return [column.name for column, value in pairs if value == _ABSENT]

    def _batch(self, changes: _Changes) -> pa.RecordBatch:
        columns = zip(*changes.rows, strict=True) if changes.rows else [()] * len(self._columns)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(changes.tx_offsets, pa.int64()),
                pa.array(changes.op_offsets, pa.int64()),
                pa.array(changes.actions, pa.string()),
                pa.array(changes.absent, pa.list_(pa.string())),
                self._old_keys(changes),
                *(
                    self._values(column, cells, changes)
                    for column, cells in zip(self._columns, columns, strict=True)
                ),
            ],
            schema=self.schema,
        )

    def _old_keys(self, changes: _Changes) -> pa.Array:
        if not changes.old_keys:
            return pa.nulls(len(changes.rows), self._old_key)
        none = self._blank
        olds = [changes.old_keys.get(index, none) for index in range(len(changes.rows))]
        values = [
            self._values(self._columns[place], [old[place] for old in olds], changes) for place in self._key
        ]
        return pa.StructArray.from_arrays(
            values, fields=list(self._old_key), mask=pa.array([old is none for old in olds])
        )

    def _values(self, column: Column, cells: Sequence[msgspec.Raw], changes: _Changes) -> pa.Array:
        lake = column.lake
        try:
            values = column.parse(json_texts(cells, bare=lake.bare))
        except _MISFITS:
            index = next(index for index, cell in enumerate(cells) if not _fits(column, cell))
            at = changes.offset_of(index)
            if lake.lacks_nan and is_nan(pa.array([bytes(cells[index]).decode().strip('"')]))[0].as_py():
                raise self._error(at, _nan(self._relation, column), NanRefused) from None
            raise self._error(at, _misfit(column)) from None
        if column.not_null and lake.null_may_be_nan and values.null_count and not column.loses_nan:
            self._refuse_nan(column, cells, changes)
        return values

    def _refuse_nan(self, column: Column, cells: Sequence[msgspec.Raw], changes: _Changes) -> None:
        for index, cell in enumerate(cells):
            if cell != _NULL:
                continue
            what = (
                f"column {column.name} ({column.type}) is NOT NULL and null came: NaN or an infinity, which"
                " wal2json before 2.6 can't write"
            )
            at = changes.offset_of(index)
            if column.lake.lacks_nan:
                raise self._error(at, f"{what}. {_nan_fix(self._relation, column)}", NanRefused)
            raise self._error(at, what)

    def _error(self, at: _Place, what: str, kind: type[DecodeError] = DecodeError) -> DecodeError:
        return kind(f"{self._relation} at {LogOffset(*at)}: {what}")


def decode_copy(relation: str, columns: Sequence[Column], data: bytes) -> pa.RecordBatch:
    """Rows of `COPY (SELECT column, …) TO STDOUT` in text format: whole lines, below 2 GiB."""
    try:
        texts = copy_texts(data, len(columns))
    except _MISFITS:
        raise DecodeError(f"{relation}: COPY's text does not have {len(columns)} columns of UTF-8") from None
    arrays = []
    for column, each in zip(columns, texts, strict=True):
        try:
            arrays.append(column.parse(each))
        except _MISFITS:
            if column.lake.lacks_nan and pc.any(is_nan(each)).as_py():
                raise NanRefused(f"{relation} in its snapshot: {_nan(relation, column)}") from None
            raise DecodeError(f"{relation} in its snapshot: {_misfit(column)}") from None
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _first_there(row: _Row, otherwise: _Row) -> _Row:
    """The row, with the other's values where it has none."""
    return [other if value == _ABSENT else value for value, other in zip(row, otherwise, strict=True)]


def _missing(column: Column) -> msgspec.Raw:
    return _ABSENT if column.missing is None else msgspec.Raw(msgspec.json.encode(column.missing))


def _is_of(column: Column, frame_type: str) -> bool:
    """Whether the column's type in the lake holds what a frame has under this type."""
    lake, of_frame = column.lake, lake_type(frame_type)
    is_same = lake == of_frame or has_more_digits(lake.spark, of_frame.spark)
    return is_same or frame_type == _SCHEMA.sub("", column.type).strip('"')


def _fits(column: Column, cell: msgspec.Raw) -> bool:
    try:
        column.parse(json_texts([cell], bare=column.lake.bare))
    except _MISFITS:
        return False
    return True


def _misfit(column: Column) -> str:
    return f"column {column.name} ({column.type}): a value does not fit the lake's {column.lake.spark}"


def _nan(relation: str, column: Column) -> str:
    what = f"column {column.name} ({column.type}): NaN does not fit the lake's {column.lake.spark}"
    return f"{what}. {_nan_fix(relation, column)}"


def _nan_fix(relation: str, column: Column) -> str:
    name = '"' + column.name.replace('"', '""') + '"'
    query = " ".join(("SELECT * FROM", relation, "WHERE", name, "= 'NaN'"))
    return (
        f"Fix: change the rows that {query} finds; or, if the column is not of the key, write"
        ' numeric_nan = "null" into the shape, and start again or send SIGHUP'
    )
