"""Tally: what a manifest says of accepted records, in a size that doesn't grow with their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, Self

from penstock.kinesis.aws.outcome import Taken
from penstock.kinesis.marked.manifest import ShardRange, TableMark
from penstock.model.change import Truncate
from penstock.model.relation import Relation
from penstock.model.stream_position import History, StreamPosition, operation

MOST_TABLES: Final = 200
"""So many tables are listed in a manifest; more are `*`."""


class MarkableRecord(Protocol):
    """What a manifest has to know of a record."""

    @property
    def record_size_bytes(self) -> int:
        """What Kinesis counts."""

    @property
    def commit_lsn(self) -> int:
        """Its transaction."""

    @property
    def table(self) -> Relation | Truncate | None:
        """The table of a change, or its truncate; None for others."""


class Records(NamedTuple):
    """Accepted records, a list for each thing that a manifest has to know of them.

    No payload, which is bounded by those who still have to send it; and no object for each record, since this
    is the path of every change.
    """

    places: list[int]
    """Commit LSNs."""
    sizes: list[int]
    tables: list[Relation | Truncate | None]
    taken: Taken
    """Where they are."""

    @classmethod
    def of(cls, events: Sequence[MarkableRecord], taken: Taken) -> Self:
        """These events were accepted there."""
        assert len(events) == len(taken.entries), "an entry for each event"
        return cls(
            [event.commit_lsn for event in events],
            [event.record_size_bytes for event in events],
            [event.table for event in events],
            taken,
        )

    @property
    def is_by_transaction(self) -> bool:
        """Whether they stand in the order of their transactions."""
        return sorted(self.places) == self.places

    def by_transaction(self) -> Self:
        """The same, in the order of their transactions."""
        if self.is_by_transaction:
            return self
        places = self.places
        order = sorted(range(len(places)), key=places.__getitem__)
        return self._replace(
            places=sorted(places),
            sizes=[self.sizes[at] for at in order],
            tables=[self.tables[at] for at in order],
            taken=self.taken._replace(entries=[self.taken.entries[at] for at in order]),
        )

    @property
    def is_one_transaction(self) -> bool:
        """Whether all are of one; they stand in the order of their transactions."""
        return self.places[0] == self.places[-1]

    def part(self, start: int, end: int) -> Self:
        """Some of them."""
        return self._replace(
            places=self.places[start:end],
            sizes=self.sizes[start:end],
            tables=self.tables[start:end],
            taken=self.taken.of(self.taken.entries[start:end]),
        )

    def split(self, at: int) -> tuple[Self, Self]:
        """Those before this place, and the others."""
        before, behind = self.taken.split(at)
        return (
            type(self)(self.places[:at], self.sizes[:at], self.tables[:at], before),
            type(self)(self.places[at:], self.sizes[at:], self.tables[at:], behind),
        )


class _Range:
    """Where records stand in a shard. Sequence numbers have varying lengths, and compare by value."""

    __slots__ = ("count", "first", "last")

    def __init__(self, number: str) -> None:
        self.first = self.last = number
        self.count = 0

    def include(self, number: str) -> None:
        """One of the records stands there."""
        if _is_above(number, self.last):
            self.last = number
        elif _is_above(self.first, number):
            self.first = number


def _is_above(one: str, other: str) -> bool:
    return one > other if len(one) == len(other) else len(one) > len(other)


class Tally:
    """Counts of accepted records, and where they stand."""

    __slots__ = ("_shards", "_tables", "_truncated", "records", "size_bytes")

    def __init__(self) -> None:
        self.records = self.size_bytes = 0
        self._shards: dict[str, _Range] = {}
        self._tables: dict[Relation, int] = {}
        """Changes."""
        self._truncated: dict[Relation, tuple[int, int]] = {}
        """(commit LSN, op_offset) of the last truncate."""

    def add(self, some: Records) -> None:
        """These were accepted, too."""
        # In passes that the interpreter makes by itself: this is the path of every change.
        tables = some.tables
        self.records += len(tables)
        self.size_bytes += sum(some.sizes)
        # Mostly one table, and one object for it: that costs less than to hash each of them.
        if tables and tables.count(tables[0]) == len(tables):
            self._count(tables[0], len(tables))
        else:
            for table, count in Counter(tables).items():
                self._count(table, count)
        for shard, stand in some.taken.shards.items():
            self._place(shard, stand)

    def _place(self, shard: str, stand: ShardRange) -> None:
        known = self._shards.setdefault(shard, _Range(stand.first))
        known.count += stand.count
        known.include(stand.first)
        known.include(stand.last)

    def _count(self, table: Relation | Truncate | None, changes: int) -> None:
        if isinstance(table, Truncate):
            self._truncate(table.relation, (table.commit_lsn, table.op_offset))
            table = table.relation
        if table is not None:
            self._tables[table] = self._tables.get(table, 0) + changes

    def merge(self, other: Tally) -> None:
        """Take over what another one knows."""
        self.records += other.records
        self.size_bytes += other.size_bytes
        for name, shard in other._shards.items():
            self._place(name, ShardRange(shard.first, shard.last, shard.count))
        for relation, count in other._tables.items():
            self._count(relation, count)
        for relation, at in other._truncated.items():
            self._truncate(relation, at)

    def _truncate(self, relation: Relation, at: tuple[int, int]) -> None:
        self._truncated[relation] = max(at, self._truncated.get(relation, at))

    def shards(self) -> dict[str, ShardRange]:
        """For a manifest."""
        return {
            name: ShardRange(shard.first, shard.last, shard.count)
            for name, shard in sorted(self._shards.items())
        }

    def tables(self, history: History) -> dict[str, TableMark] | str:
        """For a manifest."""
        if len(self._tables) > MOST_TABLES:
            return "*"
        return {
            str(relation): TableMark(count, self._last_truncate(relation, history))
            for relation, count in sorted(self._tables.items())
        }

    def _last_truncate(self, relation: Relation, history: History) -> str | None:
        at = self._truncated.get(relation)
        return None if at is None else _position(history, *at)


def _position(history: History, commit_lsn: int, op_offset: int) -> str:
    return str(StreamPosition(history.of_record(commit_lsn), commit_lsn, operation(op_offset)))
