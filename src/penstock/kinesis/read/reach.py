"""reach: how far a shard can be read, found without reading it.

Kinesis doesn't tell a shard's newest sequence number. But it finds records by their time of arrival, and any
record that GetRecords has shown will do as the end of a range. So one record near the wanted end is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

from penstock.kinesis.read.client import MOST_RECORDS, TRIM_HORIZON, Page, ReadRecord, Start
from penstock.kinesis.read.look import Reached, Task
from penstock.kinesis.read.shards import ShardInfo
from penstock.kinesis.read.stream_offset import ShardPosition

_GLANCE_RECORDS: Final = 250
"""The first page of a look: all that there is, as a rule, in a shard with little traffic."""
_SETTLED: Final = timedelta(seconds=1)
"""How far before the newest record to look for an end: there is one, if the shard is busy."""
_SMALLEST_JUMP: Final = timedelta(seconds=2)


class Pages(Protocol):
    """What is needed of a StreamClient."""

    def shards(self) -> list[ShardInfo]:
        """Every shard that retention still has."""

    def pages(self, shard_id: str, start: Start, *, most: int = MOST_RECORDS) -> Iterator[Page]:
        """Pages of a shard."""


class Limit(NamedTuple):
    """How much a batch may take; a single record may exceed it."""

    records: int | None = None
    size_bytes: int | None = None
    seconds: int | None = None
    """The time in which the records of a shard arrived."""

    @property
    def counts(self) -> bool:
        """Whether records have to be read to know where it is reached."""
        return self.records is not None or self.size_bytes is not None

    def share(self, shards: int) -> Limit:
        """What each of some shards may take."""
        return self._replace(
            records=None if self.records is None else max(1, self.records // max(1, shards)),
            size_bytes=None if self.size_bytes is None else max(1, self.size_bytes // max(1, shards)),
        )


UNLIMITED: Final = Limit()


def reach(client: Pages, task: Task, limit: Limit, *, to_tip: bool = False) -> Reached:
    """How far a shard can be read from a position on.

    `to_tip`: to the last record that is there now, whatever it costs. Otherwise to one not far from it.
    """
    return _Reach(client, task, limit).run(to_tip=to_tip)


class _Reach:
    """1. A page from the position on. If it ends the shard, or has its newest record, all is known.
    2. Otherwise jump: ask for one record near the goal, which is the newest record or where the limit is. If
       nothing arrived that late, ask for half the way.
    3. A limit that counts is found only by counting: pages up to it, and no jumps.
    """

    def __init__(self, client: Pages, task: Task, limit: Limit) -> None:
        self._client = client
        self._task = task
        self._shard = task.shard
        self._limit = limit
        self._first: ReadRecord | None = None
        self._last: ReadRecord | None = None
        self._is_proven = False
        self._most = MOST_RECORDS
        self._records = 0
        self._size = 0

    def run(self, *, to_tip: bool) -> Reached:
        self._most = MOST_RECORDS if self._limit.counts else _GLANCE_RECORDS
        start = _start(self._task.position, with_last=self._task.needs_proof)
        pages = self._client.pages(self._shard.shard_id, start, most=self._most)
        newest: datetime | None = None
        while True:
            page = next(pages)
            if not self._take(page.records):
                return self._reached(page)
            if page.is_last:
                return self._reached(page, is_finished=True)
            if self._is_tip(page):
                return self._reached(page, is_tip=True)
            if not page.records or page.behind_ms == 0 or self._limit.counts:
                continue
            if self._last is None or self._first is None:
                continue
            newest = newest or self._last.arrived + timedelta(milliseconds=page.behind_ms)
            if to_tip and self._last.arrived > newest:
                return self._reached(page)
            landed = self._jump(self._last, self._goal(self._first, newest))
            if landed is not None:
                if landed.records:
                    self._last = landed.records[0]
                if landed.is_last:
                    is_whole = bool(landed.records)
                    return self._reached(landed, is_finished=True, is_whole=is_whole)
            if not to_tip:
                return self._reached(landed or page)
            self._most = MOST_RECORDS
            pages = self._client.pages(self._shard.shard_id, Start.after(self._last.sequence))

    def _take(self, records: list[ReadRecord]) -> bool:
        """Take records; False: the limit came first."""
        position = self._task.position
        for record in records:
            if record.sequence == position.after:
                self._is_proven = True
                continue
            if self._first is None and position.since is not None and record.arrived < position.since:
                continue
            if self._is_over(record):
                return False
            self._first = self._first or record
            self._last = record
            self._records += 1
            self._size += len(record.data)
        return True

    def _is_over(self, record: ReadRecord) -> bool:
        if self._first is None:
            return False
        limit, waited = self._limit, record.arrived - self._first.arrived
        return (
            (limit.records is not None and self._records >= limit.records)
            or (limit.size_bytes is not None and self._size + len(record.data) > limit.size_bytes)
            or (limit.seconds is not None and waited > timedelta(seconds=limit.seconds))
        )

    def _goal(self, first: ReadRecord, newest: datetime) -> datetime:
        if self._limit.seconds is None:
            return newest - _SETTLED
        return min(newest - _SETTLED, first.arrived + timedelta(seconds=self._limit.seconds))

    def _jump(self, last: ReadRecord, goal: datetime) -> Page | None:
        """A page with one record behind the last, or with the shard's end; None: there is none to jump to."""
        while goal - last.arrived >= _SMALLEST_JUMP:
            page = self._landing(goal)
            if page.records:
                return page if page.records[0].sequence > last.sequence else None
            if page.is_last:
                return page
            goal = last.arrived + (goal - last.arrived) / 2
        return None

    def _landing(self, goal: datetime) -> Page:
        for page in self._client.pages(self._shard.shard_id, Start.arrived(goal), most=1):
            if page.records or page.is_last or self._is_tip(page):
                return page
        raise AssertionError("pages end with one that says so")

    def _is_tip(self, page: Page) -> bool:
        # A closed shard goes on until Kinesis says that it ends, and a full page may lack what arrived in the
        # same millisecond.
        return page.behind_ms == 0 and len(page.records) < self._most and not self._shard.is_closed

    def _reached(
        self, page: Page, *, is_finished: bool = False, is_tip: bool = False, is_whole: bool = True
    ) -> Reached:
        return Reached(
            None if self._first is None else self._first.sequence,
            None if self._last is None or not is_whole else self._last.sequence,
            is_finished,
            is_tip,
            self._is_proven,
            page.behind_ms,
        )


def _start(position: ShardPosition, *, with_last: bool) -> Start:
    if position.after is not None:
        return Start.at(position.after) if with_last else Start.after(position.after)
    return TRIM_HORIZON if position.since is None else Start.arrived(position.since)
