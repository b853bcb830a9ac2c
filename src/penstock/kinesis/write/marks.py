"""Marks: what the next manifest has to say, gathered from what Kinesis has accepted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from penstock.kinesis.aws.outcome import Entry
from penstock.kinesis.marked.manifest import ACTION, Manifest, ShardRange, TableMark
from penstock.kinesis.write.event import ChangeEvent
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.stream_position import History, StreamPosition, operation

MOST_TABLES: Final = 200
"""So many tables are listed in a manifest; more are `*`."""
_FEW_TRANSACTIONS: Final = 8
"""As many tallies cost less than to keep the records of a request."""


class MarkableRecord(Protocol):
    """What a manifest has to know of a record."""

    @property
    def record_size_bytes(self) -> int:
        """What Kinesis counts."""

    @property
    def commit_lsn(self) -> int:
        """Its transaction."""

    @property
    def op_offset(self) -> int:
        """Its place in that."""

    @property
    def relation(self) -> Relation | None:
        """The table of a change; None for others."""

    @property
    def truncates(self) -> bool:
        """Whether it is a truncate."""


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
    """What is known of some accepted records, in a size that doesn't grow with their number."""

    __slots__ = ("_shards", "_tables", "_truncated", "records", "size_bytes")

    def __init__(self) -> None:
        self.records = self.size_bytes = 0
        self._shards: dict[str, _Range] = {}
        self._tables: dict[Relation, int] = {}
        """Changes."""
        self._truncated: dict[Relation, tuple[int, int]] = {}
        """(commit LSN, op_offset) of the last truncate."""

    def add(self, events: Sequence[MarkableRecord], entries: Sequence[Entry]) -> None:
        """These events were accepted there."""
        assert len(events) == len(entries), "an entry for each event"
        # In passes that the interpreter makes by itself: this is the path of every change.
        self.records += len(events)
        self.size_bytes += sum([event.record_size_bytes for event in events])
        tables = [event.relation for event in events]
        # Mostly one table, and one object for it: that costs less than to hash each of them.
        if tables and tables.count(tables[0]) == len(tables):
            self._count(tables[0], len(tables))
        else:
            for table, count in Counter(tables).items():
                self._count(table, count)
        for event in [event for event in events if event.truncates]:
            if event.relation is not None:
                self._truncate(event.relation, (event.commit_lsn, event.op_offset))
        numbers: dict[str, list[str]] = {}
        for entry in entries:
            its_own = numbers.get(entry.shard)
            if its_own is None:
                numbers[entry.shard] = [entry.sequence]
            else:
                its_own.append(entry.sequence)
        for shard, its_own in numbers.items():
            self._place(shard, its_own)

    def _place(self, shard: str, numbers: list[str]) -> None:
        # By text, and then, as sorting is stable, by length: by value. They mostly ascend, so both are quick.
        numbers.sort()
        numbers.sort(key=len)
        known = self._shards.setdefault(shard, _Range(numbers[0]))
        known.count += len(numbers)
        known.include(numbers[0])
        known.include(numbers[-1])

    def _count(self, table: Relation | None, changes: int) -> None:
        if table is not None:
            self._tables[table] = self._tables.get(table, 0) + changes

    def merge(self, other: Tally) -> None:
        """Take over what another one knows."""
        self.records += other.records
        self.size_bytes += other.size_bytes
        for name, shard in other._shards.items():
            mine = self._shards.setdefault(name, _Range(shard.first))
            mine.count += shard.count
            mine.include(shard.first)
            mine.include(shard.last)
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


class Draft(NamedTuple):
    """What a manifest is to say: everything from `since_lsn` up to, not including, `resolved_lsn`."""

    since_lsn: int
    resolved_lsn: int
    tally: Tally


class _Span(NamedTuple):
    """Transactions beyond the frontier that are told of together."""

    first: int
    """The lowest commit LSN."""
    last: int
    """The highest."""
    tally: Tally


class _Kept(msgspec.Struct, gc=False, eq=False):
    """What is kept of an event: not its payload, which is bounded by those who still have to send it."""

    record_size_bytes: int
    commit_lsn: int
    op_offset: int
    relation: Relation | None
    truncates: bool


def _kept(event: MarkableRecord) -> _Kept:
    return _Kept(event.record_size_bytes, event.commit_lsn, event.op_offset, event.relation, event.truncates)


class _Overtaking(NamedTuple):
    """The records of a request that was answered before an older one."""

    first: int
    """The lowest commit LSN."""
    last: int
    """The highest."""
    events: list[_Kept]
    entries: list[Entry]

    @classmethod
    def of(cls, events: list[_Kept], entries: list[Entry]) -> _Overtaking:
        """These records, one at least."""
        places = [event.commit_lsn for event in events]
        return cls(min(places), max(places), events, entries)

    def cut(self, lsn: int) -> tuple[_Overtaking, _Overtaking]:
        """Those below, and the others: there are some of both."""
        below = [at for at, event in enumerate(self.events) if event.commit_lsn < lsn]
        above = [at for at, event in enumerate(self.events) if event.commit_lsn >= lsn]
        return self._part(below), self._part(above)

    def _part(self, places: Sequence[int]) -> _Overtaking:
        return _Overtaking.of([self.events[at] for at in places], [self.entries[at] for at in places])


class Marks:
    """Gathers accepted records until a manifest that speaks of them is accepted itself. Pure.

    The problem. A manifest speaks of whole transactions, all that were committed from `since` up to a
    frontier. Records are accepted in any order, also those of transactions beyond the frontier; and a
    manifest may be refused, or its answer may be lost, when more has been accepted already.

    State. `_overtaking`: records beyond the frontier, by request. `_spans`: tallies of transactions beyond
    the frontier, by commit LSN. `_next`: what lies below the frontier and is in no manifest. `_drafted`: what
    is in the manifest that is under way.

    Rules.
    1. A record is added once, when its acceptance is marked in the AckTracker. The frontier that comes with
       it is the one behind that.
    2. `draft(frontier)` says what is to be told of everything with `since <= commit LSN < resolved`: that is
       complete, because the frontier passes a transaction only when all of it is accepted.
    3. `settle()`: the draft's manifest was accepted, and the next one begins where it ends. `take_back()`:
       it was not, or nobody knows; the next one has the same `since` and says all of it again.
    4. One draft at a time.
    5. Requests that are under way at the same time are answered in any order, and a moment later the frontier
       has passed them all. So records of many small transactions beyond it are kept as they came, and counted
       then; those of few transactions are tallied at once. A frontier that stands still while others overtake
       it must not cost memory for each of them: beyond `most_overtaking` records there are tallies, by
       transaction; and beyond `most_spans` of these, neighbours are put together. Then a frontier within a
       span resolves only what lies before it: less than it could, never more.
    """

    def __init__(self, since_lsn: int, *, most_spans: int = 2_000, most_overtaking: int = 5_000) -> None:
        self._since_lsn = since_lsn
        self._most_spans = most_spans
        self._most_overtaking = most_overtaking
        self._overtaking: list[_Overtaking] = []
        self._spans: list[_Span] = []
        """Sorted, and without a commit LSN in common."""
        self._next = Tally()
        self._drafted: Draft | None = None
        self.told_records = 0
        """Records that accepted manifests speak of."""

    @property
    def since_lsn(self) -> int:
        """Everything before it is in an accepted manifest."""
        return self._since_lsn

    @property
    def waiting_records(self) -> int:
        """Records that no accepted manifest speaks of, and the next one will."""
        return self._next.records + (0 if self._drafted is None else self._drafted.tally.records)

    def accepted(self, events: Sequence[ChangeEvent], entries: Sequence[Entry], frontier_lsn: int) -> None:
        """These events were accepted and marked, and the frontier is now there."""
        self.passed(frontier_lsn)
        complete = self.complete_lsn(frontier_lsn)
        places = [event.commit_lsn for event in events]
        if max(places, default=0) < complete:
            self._next.add(events, entries)
            return
        if len(set(places)) <= _FEW_TRANSACTIONS:
            self._tally(events, entries, places, complete)
            return
        self._overtaking.append(_Overtaking.of([_kept(event) for event in events], list(entries)))
        self._release(complete)
        while sum(len(each.events) for each in self._overtaking) > self._most_overtaking:
            first = self._overtaking.pop(0)
            self._tally(first.events, first.entries, [event.commit_lsn for event in first.events], complete)

    def draft(self, frontier_lsn: int) -> Draft:
        """What is to be said of everything that is complete."""
        assert self._drafted is None, "one draft at a time"
        self.passed(frontier_lsn)
        self._drafted = Draft(self._since_lsn, self.complete_lsn(frontier_lsn), self._next)
        self._next = Tally()
        return self._drafted

    def settle(self) -> None:
        """The draft's manifest was accepted."""
        assert self._drafted is not None, "there is a draft"
        self._since_lsn = self._drafted.resolved_lsn
        self.told_records += self._drafted.tally.records
        self._drafted = None

    def take_back(self) -> None:
        """The draft's manifest was not accepted, as far as anybody knows."""
        assert self._drafted is not None, "there is a draft"
        self._next.merge(self._drafted.tally)
        self._drafted = None

    def complete_lsn(self, frontier_lsn: int) -> int:
        """What the next draft would resolve with this frontier."""
        return min(frontier_lsn, self._spans[0].first) if self._spans else frontier_lsn

    def _span(self, commit_lsn: int) -> _Span:
        index = bisect_right(self._spans, commit_lsn, key=_first)
        if index and commit_lsn <= self._spans[index - 1].last:
            return self._spans[index - 1]
        span = _Span(commit_lsn, commit_lsn, Tally())
        self._spans.insert(index, span)
        if len(self._spans) > self._most_spans:
            self._put_together()
            return self._span(commit_lsn)
        return span

    def _put_together(self) -> None:
        """Halve the number of spans."""
        spans = []
        for at in range(0, len(self._spans), 2):
            one, *other = self._spans[at : at + 2]
            for each in other:
                one.tally.merge(each.tally)
                one = one._replace(last=each.last)
            spans.append(one)
        self._spans = spans

    def passed(self, frontier_lsn: int) -> None:
        """The frontier is there: what it has passed is complete."""
        count = 0
        for span in self._spans:
            if span.last >= frontier_lsn:
                break
            self._next.merge(span.tally)
            count += 1
        del self._spans[:count]
        if self._overtaking:
            self._release(self.complete_lsn(frontier_lsn))

    def _release(self, complete_lsn: int) -> None:
        """Count the records that overtake nothing any more."""
        left = []
        for each in self._overtaking:
            if each.last < complete_lsn:
                self._next.add(each.events, each.entries)
            elif each.first >= complete_lsn:
                left.append(each)
            else:
                below, above = each.cut(complete_lsn)
                self._next.add(below.events, below.entries)
                left.append(above)
        self._overtaking = left

    def _tally(
        self,
        events: Sequence[MarkableRecord],
        entries: Sequence[Entry],
        places: list[int],
        complete_lsn: int,
    ) -> None:
        """Count records by transaction, in as few steps as there are transactions (`places`)."""
        ascending = sorted(places)
        if ascending != places:
            # What waited for older changes of its keys is sent with younger transactions.
            order = sorted(range(len(places)), key=places.__getitem__)
            events, entries, places = [events[at] for at in order], [entries[at] for at in order], ascending
        start = bisect_left(places, complete_lsn)
        self._next.add(events[:start], entries[:start])
        while start < len(places):
            end = bisect_right(places, places[start], start)
            self._span(places[start]).tally.add(events[start:end], entries[start:end])
            start = end


def _first(span: _Span) -> int:
    return span.first


class Signature(NamedTuple):
    """Who sends manifests, and in which history."""

    system: str
    slot: str
    by: str
    history: History

    def manifest(self, draft: Draft) -> Manifest:
        """What a draft says, signed."""
        return Manifest(
            action=ACTION,
            system=self.system,
            slot=self.slot,
            by=self.by,
            since=str(self.history.boundary(draft.since_lsn)),
            resolved=str(self.history.boundary(draft.resolved_lsn)),
            changes=draft.tally.records,
            bytes=draft.tally.size_bytes,
            shards=draft.tally.shards(),
            tables=draft.tally.tables(self.history),
            history=[(old, format_lsn(lsn)) for old, lsn in sorted(self.history.switch_points.items())],
        )
