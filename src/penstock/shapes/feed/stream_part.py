"""StreamPart: changes of a marked stream, as a job reads them, on the driver or on an executor."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from penstock.decoding.plugins import STREAM_PLUGIN, decoder_for
from penstock.kinesis.marked.pointer import POINTER, action_of
from penstock.kinesis.read.errors import RecordsUnusable
from penstock.kinesis.read.marked_ranges import MarkedRecord, MarkedTask, read_task
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.kinesis.read.record_table import table_of
from penstock.model.change import Action
from penstock.model.log_offset import LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.stream_position import COMMIT_LSN, OPERATION_AT

_TRUNCATE: Final = Action.TRUNCATE.value
_SMALL_BLOCK: Final = 1 << 20
_RECENT_BYTES: Final = 64 << 20
_ROWS: Final = 10_000
_BYTES: Final = 4 << 20

SCHEMA: Final = pa.schema(
    [
        pa.field("relation", pa.string()),
        pa.field("action", pa.string()),
        pa.field("tx_offset", pa.int64()),
        pa.field("op_offset", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)


class StreamBlock(NamedTuple):
    """Manifests that follow each other, as tasks."""

    tasks: tuple[MarkedTask, ...]
    """Each reads shards that no other one has to look at."""
    up_to: LogOffset
    """What lies behind this is not wanted of it."""
    size_bytes: int
    name: str
    """No other block has it."""
    readers: int
    """How many shapes it has changes for."""

    @property
    def changes(self) -> int:
        """How many records there are."""
        return sum(portion.changes for task in self.tasks for portion in task.portions)


class RecentBlocks:
    """Small blocks as the driver read them, for all shapes that are due together. Safe for threads."""

    def __init__(self, most_bytes: int = _RECENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._tables: OrderedDict[tuple[MarkedTask, ...], Future[pa.Table]] = OrderedDict()
        self._turn = Lock()

    def read(self, tasks: tuple[MarkedTask, ...], load: Callable[[], pa.Table]) -> pa.Table:
        """What these tasks have; one of those who ask at the same time loads it. Blocks."""
        with self._turn:
            known = self._tables.get(tasks)
            ours: Future[pa.Table] = Future()
            if known is None:
                self._tables[tasks] = ours
        if known is not None:
            return known.result()
        try:
            table = load()
        except BaseException as error:
            with self._turn:
                del self._tables[tasks]
            ours.set_exception(error)
            raise
        ours.set_result(table)
        self._forget()
        return table

    def _forget(self) -> None:
        with self._turn:
            done = [(tasks, each.result().nbytes) for tasks, each in self._tables.items() if each.done()]
            size = sum(nbytes for _, nbytes in done)
            for tasks, nbytes in done:
                if size <= self._most_bytes:
                    return
                del self._tables[tasks]
                size -= nbytes


@dataclass(frozen=True)
class StreamPart:
    """See SharedPart. Travels to executors with addresses only: they read the stream themselves."""

    address: StreamAddress
    tasks: tuple[MarkedTask, ...]
    wanted: frozenset[Relation]
    """The table that is read, and its partitions."""
    after: LogOffset
    up_to: LogOffset
    size_bytes: int
    recent: RecentBlocks | None = None
    """Where the driver keeps small blocks; None: each reading asks the stream."""
    place: str = ""
    """See SharedPart."""

    @property
    def wanted_bytes(self) -> int:
        """See ChangePart: whatever is wanted of it, all of it has to be read."""
        return self.size_bytes

    def behind(self, offset: LogOffset) -> Self:
        """See ChangePart."""
        return replace(self, after=max(self.after, offset))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "recent": None}

    def read(self) -> Iterator[pa.RecordBatch]:
        """See ChangePart. StreamReadError if the stream doesn't have it."""
        if self.recent is None:
            found = self.read_place()
        else:
            found = iter(self.recent.read(self.tasks, self._load).to_batches())
        for batch in found:
            selected = self.select(batch)
            if selected.num_rows:
                yield selected

    @property
    def place_schema(self) -> pa.Schema:
        """See SharedPart."""
        return SCHEMA

    def _load(self) -> pa.Table:
        return pa.Table.from_batches(self.read_place(), SCHEMA)

    def read_place(self) -> Iterator[pa.RecordBatch]:
        """See SharedPart."""
        with self.address.lend() as client:
            for task in self.tasks:
                yield from _batches(read_task(client, task))

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See SharedPart. RecordsUnusable if there is something that only a snapshot tells."""
        names = pa.array(sorted(map(str, self.wanted)), pa.string())
        at = batch["tx_offset"]
        is_within = pc.and_(pc.greater(at, self.after.tx_offset), pc.less_equal(at, self.up_to.tx_offset))
        ours = batch.filter(pc.and_(pc.is_in(batch["relation"], names), is_within))
        if ours.num_rows:
            self._refuse_unusable(ours)
        return ours.select(["tx_offset", "op_offset", "payload"])

    def _refuse_unusable(self, ours: pa.RecordBatch) -> None:
        table = min(map(str, self.wanted))
        for action, sentence in (
            (POINTER, f"a change of {table} is in quarantine, and not in the stream"),
            (_TRUNCATE, f"{table} or a partition of it was truncated"),
        ):
            if action == _TRUNCATE and len(self.wanted) == 1:
                continue
            found = ours.filter(pc.equal(ours["action"], action))
            if found.num_rows:
                at = format_lsn(found["tx_offset"][0].as_py())
                raise RecordsUnusable(f"{sentence}, at {at}: only a snapshot tells its rows")


def parts_of(
    address: StreamAddress,
    recent: RecentBlocks,
    block: StreamBlock,
    relations: frozenset[Relation],
    after: LogOffset,
) -> Sequence[StreamPart]:
    """What a reader of these relations reads of a block.

    A small one is a single part, which the driver reads once for everybody. Of a large one each task is a
    part, for executors; if several shapes read it, Spark keeps what they have read.
    """
    if block.size_bytes <= _SMALL_BLOCK:
        return [StreamPart(address, block.tasks, relations, after, block.up_to, block.size_bytes, recent)]
    each_bytes = block.size_bytes / max(1, block.changes)
    return [
        StreamPart(
            address,
            (task,),
            relations,
            after,
            block.up_to,
            round(each_bytes * sum(portion.changes for portion in task.portions)),
            place=block.name if block.readers > 1 else "",
        )
        for task in block.tasks
    ]


def _batches(records: Iterator[MarkedRecord]) -> Iterator[pa.RecordBatch]:
    decoder = decoder_for(STREAM_PLUGIN)
    names: dict[Relation, str] = {}
    columns: tuple[list[Any], ...] = ([], [], [], [], [])
    size = 0
    for record in records:
        relation = table_of(decoder, record.payload, record.position)
        if relation is None:
            continue
        if relation not in names:
            names[relation] = str(relation)
        columns[0].append(names[relation])
        columns[1].append(action_of(record.payload, decoder))
        columns[2].append(int(record.position[COMMIT_LSN], 16))
        columns[3].append(int(record.position[OPERATION_AT:], 16) - 1)
        columns[4].append(record.payload)
        size += len(record.payload)
        if len(columns[0]) >= _ROWS or size >= _BYTES:
            yield _batch(columns)
            columns, size = ([], [], [], [], []), 0
    if columns[0]:
        yield _batch(columns)


def _batch(columns: tuple[list[Any], ...]) -> pa.RecordBatch:
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
