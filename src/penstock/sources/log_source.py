"""`spark.read.format("penstock")`: the log's changes as typed rows, for people's own queries (docs/log.md).

1. `load()` looks through the log once. It finds the plan, whole transactions only, and the table's layout:
   the columns and types that the frames themselves carry. The plan travels with the DataFrame, so whatever is
   asked of that later is answered from the same transactions.
2. Each part of a segment is a partition, decoded by the ChangeDecoder that flushes use.
3. The service goes on trimming and writing all the while. A look during which segments went is taken again; a
   DataFrame whose segments are gone fails with ChangeLogTrimmed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.changelog.errors import ChangeLogTrimmed, SegmentUnreadable
from penstock.changelog.index import SegmentRange
from penstock.changelog.scan import ScannedRun, scan_run
from penstock.changelog.segment import SUFFIX, read_segment
from penstock.decoding.decoder import Cell, Cells, Unreadable
from penstock.decoding.plugins import decoder_for
from penstock.decoding.rows import ChangeDecoder, Column, DecodeError
from penstock.decoding.type_map import lake_type
from penstock.errors import PenstockError
from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.model.lsn import format_lsn, parse_lsn
from penstock.model.relation import Relation

LSN: Final = "_penstock_lsn"
RELATION: Final = "_penstock_relation"

_PLUGIN: Final = "wal2json"
"""Whose frames a log has, unless the query says otherwise: the files don't tell."""
_OPTIONS: Final = ("path", "table", "run", "after", "up_to", "plugin")
COMMA_OUTSIDE_QUOTES: Final = re.compile(r',(?=(?:[^"]*"[^"]*")*[^"]*$)')
_BATCH_ROWS: Final = 10_000
_BATCH_BYTES: Final = 4 << 20


class LogQueryError(PenstockError):
    """The log can't answer what was asked; the message says what can be asked in its place."""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The options of a read."""

    directory: Path
    tables: tuple[Relation, ...]
    run: str | None = None
    """None: the one that was written last."""
    after: LogOffset | None = None
    up_to: LogOffset | None = None
    plugin: str = _PLUGIN
    """The output plugin that wrote the frames."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LogQuery:
        """Read the options; LogQueryError names a bad one."""
        for name in options:
            if name.lower() not in _OPTIONS:
                raise LogQueryError(f"unknown option {name}; there are {', '.join(_OPTIONS)}")
        if not options.get("path"):
            raise LogQueryError('no directory: say .load("<the log\'s directory>")')
        return cls(
            Path(options["path"]),
            tuple(map(_table, COMMA_OUTSIDE_QUOTES.split(options.get("table", "")))),
            options.get("run"),
            _end_of_transaction(options, "after"),
            _end_of_transaction(options, "up_to"),
            _plugin(options),
        )


def _table(text: str) -> Relation:
    try:
        return Relation.parse(text.strip())
    except ValueError as error:
        rule = 'say .option("table", "schema.table"), or several with commas between them'
        raise LogQueryError(f"option table, {text!r}: {error}; {rule}") from None


def _end_of_transaction(options: Mapping[str, str], name: str) -> LogOffset | None:
    text = options.get(name)
    try:
        return None if text is None else LogOffset(parse_lsn(text), OP_INFINITY)
    except ValueError as error:
        raise LogQueryError(f"option {name}: {error}") from None


def _plugin(options: Mapping[str, str]) -> str:
    plugin = options.get("plugin", _PLUGIN)
    try:
        return decoder_for(plugin).plugin
    except LookupError:
        raise LogQueryError(f"option plugin: no decoder reads frames of {plugin!r}") from None


class Layout:
    """The columns and the key of a table, found by looking at its frames.

    1. Frames have their columns in the table's order, and any of them may lack some. A new one is put behind
       the one that it follows in its frame.
    2. A column has one type in the lake. With another the log has to be read in parts.
    3. The key is the primary key if all updates and deletes show it, else the columns that all of them show.
    """

    def __init__(self, cells: Callable[[bytes], Cells]) -> None:
        """`cells`: as a Decoder has it."""
        self._cells = cells
        self.frames = 0
        self._names: list[str] = []
        self._types: dict[str, str] = {}
        self._last_seen: dict[str, int] = {}
        self._primary_key: tuple[str, ...] = ()
        self._identity: set[str] | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column that a frame had."""
        return tuple(Column(name, self._types[name]) for name in self._names)

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns; none if no frame tells."""
        candidates = self._types.keys() if self._identity is None else self._identity
        if self._primary_key and candidates >= set(self._primary_key):
            return self._primary_key
        return tuple(name for name in self._names if name in (self._identity or ()))

    def take(self, relation: Relation, at: LogOffset, payload: bytes) -> None:
        """Look at the next frame; LogQueryError if a column has changed its type."""
        try:
            frame = self._cells(payload)
        except Unreadable as error:
            raise DecodeError(f"{relation} at {at}: {error}; {_parts(at.tx_offset, at.tx_offset)}") from None
        self.learn(relation, at, frame)

    def learn(self, relation: Relation, at: LogOffset, frame: Cells) -> None:
        """The same, of a frame that was read already."""
        self.frames += 1
        for cells in (frame.columns, frame.identity):
            before: str | None = None
            for cell in cells:
                if self._types.get(cell.name) != cell.type:
                    self._learn(relation, at.tx_offset, cell, before)
                self._last_seen[cell.name] = at.tx_offset
                before = cell.name
        if frame.identity:
            shown = {cell.name for cell in frame.identity}
            self._identity = shown if self._identity is None else self._identity & shown
        if frame.pk:
            self._primary_key = tuple(cell.name for cell in frame.pk)

    def _learn(self, relation: Relation, tx_offset: int, cell: Cell, before: str | None) -> None:
        known = self._types.setdefault(cell.name, cell.type)
        if lake_type(known) != lake_type(cell.type):
            self._retype(relation, tx_offset, cell)
        if cell.name not in self._last_seen:
            self._names.insert(0 if before is None else self._names.index(before) + 1, cell.name)

    def _retype(self, relation: Relation, tx_offset: int, cell: Cell) -> None:
        """A column that was seen before has another type in the lake now."""
        raise LogQueryError(
            f"column {cell.name} of {relation} was {self._types[cell.name]}, and is {cell.type} in the "
            f"transaction at {format_lsn(tx_offset)}; {_parts(self._last_seen[cell.name], tx_offset)}"
        )


def _parts(last_before: int, tx_offset: int) -> str:
    """How to ask for what is before a transaction, and for what is behind its beginning or its end."""
    up_to = format_lsn(tx_offset - 1)
    after = format_lsn(tx_offset) if last_before == tx_offset else up_to
    return f'read the log in parts, with .option("up_to", "{up_to}") and with .option("after", "{after}")'


class FoundChanges(NamedTuple):
    """What `load()` found: where the changes are, and how to read them."""

    plan: list[SegmentRange]
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    plugin: str

    def decoder(self, relation: Relation) -> ChangeDecoder:
        """A decoder for one relation of the plan."""
        return ChangeDecoder(str(relation), self.columns, self.key, plugin=self.plugin)


def look(query: LogQuery) -> FoundChanges:
    """Find the changes and their layout. Blocks, for as long as it takes to read them once."""
    run = _run(query)
    while True:
        segments = _segments(run)
        try:
            return _find(query, run)
        except SegmentUnreadable:
            if _segments(run) == segments:
                raise


def _find(query: LogQuery, run: Path) -> FoundChanges:
    scanned = scan_run(run)
    after = BEFORE_ALL if query.after is None else query.after
    if query.after is not None and after < scanned.begins_after:
        begins = format_lsn(scanned.begins_after.tx_offset)
        raise ChangeLogTrimmed(f"the log in {run} holds only what is after {begins}: the rest was trimmed")
    plan = scanned.read_plan({Relation(*table) for table in query.tables}, after, query.up_to)
    layout = Layout(decoder_for(query.plugin).cells)
    for part in plan:
        relations = dict(part.relations)
        for batch in read_segment(part):
            columns = (column.to_pylist() for column in batch.columns)
            for relation_id, tx_offset, op_offset, payload in zip(*columns, strict=True):
                layout.take(relations[relation_id], LogOffset(tx_offset, op_offset), payload)
    if not layout.frames:
        raise LogQueryError(_nothing_there(query, run, scanned))
    return FoundChanges(plan, layout.columns, layout.key, query.plugin)


def _nothing_there(query: LogQuery, run: Path, scanned: ScannedRun) -> str:
    there = ", ".join(sorted(str(relation) for relation in scanned.index.relation_ids))
    is_part = query.after is not None or query.up_to is not None
    return (
        f"the log in {run} has no changes of {', '.join(map(str, query.tables))}"
        f"{' in that part' if is_part else ''}; it has changes of: {there or 'nothing'}"
    )


def _run(query: LogQuery) -> Path:
    """The directory of the run that was asked for."""
    directory = query.directory
    written: dict[str, float] = {}
    try:
        for run in directory.iterdir():
            for newest in _segments(run)[-1:]:
                # It may be trimmed, or its run removed, at any moment.
                with suppress(FileNotFoundError):
                    written[run.name] = newest.stat().st_mtime
    except OSError as error:
        raise LogQueryError(f"can't read the log's directory {directory}: {error.strerror}") from None
    if not written:
        raise LogQueryError(f"{directory} holds no run with segments that this user may read")
    name = max(written, key=lambda name: (written[name], name)) if query.run is None else query.run
    if name not in written:
        raise LogQueryError(f"no run {name} in {directory}; there are: {', '.join(sorted(written))}")
    return directory / name


def _segments(run: Path) -> list[Path]:
    return sorted(run.glob(f"*{SUFFIX}"))


class ChangesSource(DataSource):
    """The data source that `penstock.spark.register` registers."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._query = LogQuery.parse(options)
        self._found: FoundChanges | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "penstock"

    def schema(self) -> StructType:
        """The columns. Spark keeps this object, so what was found here is what will be read."""
        self._found = look(self._query)
        return row_schema(self._found.decoder(self._found.plan[0].relations[0][1]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what `schema` found."""
        if self._found is None:
            raise LogQueryError("the log itself says the columns and their types: leave out .schema()")
        return ChangesReader(self._found, schema)


class ChangesReader(DataSourceReader):
    """Reads a plan, a part of a segment a task."""

    def __init__(self, found: FoundChanges, schema: StructType) -> None:
        self._found = found
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The parts of the segments."""
        return [InputPartition(part) for part in self._found.plan]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The changes of a part, as Arrow batches."""
        part: SegmentRange = partition.value
        schema = to_arrow_schema(self._schema, timezone="UTC")
        decoders = {number: (name, self._found.decoder(name)) for number, name in part.relations}
        try:
            for frames in _bounded(read_segment(part)):
                for number, (relation, decoder) in decoders.items():
                    mine = frames.filter(pc.equal(frames["relation_id"], number))
                    if mine.num_rows:
                        _, tx_offsets, op_offsets, payloads = (column.to_pylist() for column in mine.columns)
                        changes = decoder.decode(zip(tx_offsets, op_offsets, strict=True), payloads)
                        yield with_names(relation, changes, schema)
        except SegmentUnreadable as error:
            if Path(part.path).exists():
                raise
            raise ChangeLogTrimmed(f"{part.path} was trimmed since load(): load the log again") from error


def _bounded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows: small batches together, large ones in pieces."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            waiting.append(batch.slice(start, _BATCH_ROWS))
            rows, size = rows + waiting[-1].num_rows, size + waiting[-1].nbytes
            if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def row_schema(decoder: ChangeDecoder) -> StructType:
    """The decoder's columns, with the LSN and the relation for people."""
    own = [pa.field(LSN, pa.string()), pa.field(RELATION, pa.string())]
    fields = list(decoder.schema)
    return from_arrow_schema(pa.schema([*fields[:2], *own, *fields[2:]]))


def with_names(relation: Relation, changes: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The decoder's batch, with the LSN and the relation for people, in the types that Spark wants."""
    tx_offsets = changes.column(0).dictionary_encode()
    lsns = pa.array(map(format_lsn, tx_offsets.dictionary.to_pylist()), pa.string()).take(tx_offsets.indices)
    names = pa.repeat(str(relation), changes.num_rows)
    columns = [*changes.columns[:2], lsns, names, *changes.columns[2:]]
    typed = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=schema)
