"""Marks: what the next manifest has to say, gathered from what Kinesis has accepted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from penstock.kinesis.aws.outcome import Taken
from penstock.kinesis.marked.manifest import ACTION, Manifest
from penstock.kinesis.write.tally import MarkableRecord, Records, Tally
from penstock.model.lsn import format_lsn
from penstock.model.stream_position import History


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


class _Request(NamedTuple):
    """The records of a request that are not counted yet."""

    first: int
    """The lowest commit LSN."""
    last: int
    """The highest."""
    records: Records

    @classmethod
    def of(cls, records: Records) -> _Request:
        """One record at least."""
        return cls(min(records.places), max(records.places), records)


class Marks:
    """Gathers accepted records until a manifest that speaks of them is accepted itself. Pure.

    The problem. A manifest speaks of whole transactions, all that were committed from `since` up to a
    frontier. Records are accepted in any order, also those of transactions beyond the frontier; and a
    manifest may be refused, or its answer may be lost, when more has been accepted already.

    State. `_next`: what lies below the frontier and is in no manifest. `_spans`: tallies of transactions
    beyond the frontier, by commit LSN. `_uncounted`: requests beyond it that are not counted yet. `_drafted`:
    what is in the manifest that is under way.

    Rules.
    1. A record is added once, when its acceptance is marked in the AckTracker. The frontier that comes with
       it is the one behind that.
    2. `draft(frontier)` says what is to be told of everything with `since <= commit LSN < resolved`: that is
       complete, because the frontier passes a transaction only when all of it is accepted.
    3. `settle()`: the draft's manifest was accepted, and the next one begins where it ends. `take_back()`:
       it was not, or nobody knows; the next one has the same `since` and says all of it again.
    4. One draft at a time.
    5. Counting costs least when a request has just been answered, and many records are counted together. So
       of a request in the order of its transactions, what the frontier has passed is counted at once, and
       what is left if that is of a single transaction. But requests that are under way at the same time are
       answered in any order: one that has overtaken others is kept as it came, and counted, whole, when the
       frontier has passed it; one that the frontier stands in is cut, when somebody asks. A frontier that is
       far behind must not cost memory for each record beyond it: beyond `most_uncounted` records there are
       tallies, by transaction; and beyond `most_spans` of these, neighbours are put together, the newer ones.
       Then a frontier within a span resolves only what lies before it: less than it could, never more.
    """

    def __init__(self, since_lsn: int, *, most_spans: int = 2_000, most_uncounted: int = 5_000) -> None:
        self._since_lsn = since_lsn
        self._most_spans = most_spans
        self._most_uncounted = most_uncounted
        self._uncounted: list[_Request] = []
        self._uncounted_records = 0
        self._spans: list[_Span] = []
        """Sorted, and without a commit LSN in common."""
        self._passed_lsn: int | None = None
        """The frontier when tallies and requests were last looked through."""
        self._next = Tally()
        self._drafted: Draft | None = None
        self.told_records = 0
        """Records that accepted manifests speak of."""

    @property
    def since_lsn(self) -> int:
        """Everything before it is in an accepted manifest."""
        return self._since_lsn

    def is_waiting(self, frontier_lsn: int) -> bool:
        """Whether the next manifest would speak of records."""
        if self._next.records or (self._drafted is not None and self._drafted.tally.records):
            return True
        if self._spans and self._spans[0].last < frontier_lsn:
            return True
        complete_lsn = self.complete_lsn(frontier_lsn)
        return any(each.first < complete_lsn for each in self._uncounted)

    def accepted(self, events: Sequence[MarkableRecord], taken: Taken, frontier_lsn: int) -> None:
        """These events were accepted and marked, and the frontier is now there."""
        if not events:
            return
        records = Records.of(events, taken)
        self._pass_oldest(frontier_lsn)
        complete_lsn = self.complete_lsn(frontier_lsn)
        rest: Records | None = records
        if records.is_by_transaction:
            # Mostly all but its last transaction is complete.
            rest = self._count(records, complete_lsn)
            if rest is not None and rest.is_one_transaction:
                self._span(rest.places[0]).tally.add(rest)
                rest = None
        elif max(records.places) < complete_lsn:
            self._next.add(records)
            rest = None
        if rest is not None:
            self._keep(rest, frontier_lsn)

    def _count(self, records: Records, complete_lsn: int) -> Records | None:
        """Count those of complete transactions; returns the others, if there are any.

        They stand in the order of their transactions.
        """
        below = bisect_left(records.places, complete_lsn)
        if below == len(records.places):
            self._next.add(records)
            return None
        if not below:
            return records
        complete, rest = records.split(below)
        self._next.add(complete)
        return rest

    def _keep(self, records: Records, frontier_lsn: int) -> None:
        self._uncounted.append(_Request.of(records))
        self._uncounted_records += len(records.places)
        if self._uncounted_records > self._most_uncounted:
            self._pass(frontier_lsn)
            # More than has to be, so that not every request makes us look through all of them.
            while self._uncounted_records > self._most_uncounted // 2:
                oldest = self._uncounted.pop(0).records
                self._uncounted_records -= len(oldest.places)
                self._tally(oldest)

    def draft(self, frontier_lsn: int) -> Draft:
        """What is to be said of everything that is complete."""
        assert self._drafted is None, "one draft at a time"
        self._pass(frontier_lsn)
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
        index = bisect_left(self._spans, frontier_lsn, key=_last)
        return min(frontier_lsn, self._spans[index].first) if index < len(self._spans) else frontier_lsn

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
        """Make half as many of the newer half.

        The older ones are those that the frontier comes to first: if they grew with each new one, a frontier
        that keeps its distance would never leave one behind.
        """
        older = len(self._spans) // 2
        spans = self._spans[:older]
        for at in range(older, len(self._spans), 2):
            one, *other = self._spans[at : at + 2]
            for each in other:
                one.tally.merge(each.tally)
                one = one._replace(last=each.last)
            spans.append(one)
        self._spans = spans

    def _pass(self, frontier_lsn: int) -> None:
        """The frontier is there: count all that it has passed."""
        self._pass_oldest(frontier_lsn)
        complete_lsn = self.complete_lsn(frontier_lsn)
        requests, self._uncounted = self._uncounted, []
        for each in requests:
            if each.last < complete_lsn:
                self._count_whole(each)
            elif each.first >= complete_lsn:
                self._uncounted.append(each)
            elif (rest := self._count(each.records.by_transaction(), complete_lsn)) is not None:
                self._uncounted.append(_Request.of(rest))
                self._uncounted_records -= len(each.records.places) - len(rest.places)

    def _pass_oldest(self, frontier_lsn: int) -> None:
        """The frontier is there: count the tallies that it has passed, and the oldest requests."""
        if frontier_lsn == self._passed_lsn:
            return  # whatever has come since then lies beyond it
        self._passed_lsn = frontier_lsn
        count = bisect_left(self._spans, frontier_lsn, key=_last)
        for span in self._spans[:count]:
            self._next.merge(span.tally)
        del self._spans[:count]
        complete_lsn = self.complete_lsn(frontier_lsn)
        # Mostly they are passed in the order in which they came: the others wait until somebody asks.
        count = 0
        while count < len(self._uncounted) and self._uncounted[count].last < complete_lsn:
            self._count_whole(self._uncounted[count])
            count += 1
        del self._uncounted[:count]

    def _count_whole(self, request: _Request) -> None:
        self._next.add(request.records)
        self._uncounted_records -= len(request.records.places)

    def _tally(self, some: Records) -> None:
        """Count records by transaction, in as few steps as there are transactions."""
        some = some.by_transaction()
        start = 0
        while start < len(some.places):
            commit_lsn = some.places[start]
            end = bisect_right(some.places, commit_lsn, start)
            self._span(commit_lsn).tally.add(some.part(start, end))
            start = end


def _first(span: _Span) -> int:
    return span.first


def _last(span: _Span) -> int:
    return span.last


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
