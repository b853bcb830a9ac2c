"""Readers of a marked stream that keep what they have applied, and forget all else when they die."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol, cast

from penstock.demo.stream_reader import StreamReader
from penstock.kinesis.marked.manifest import Manifest, partition_key
from penstock.kinesis.read.chain import Link
from penstock.kinesis.read.client import TRIM_HORIZON, Start, StreamClient
from penstock.kinesis.read.joining import joined
from penstock.kinesis.read.manifest_log import ManifestLog
from penstock.kinesis.read.marked_plan import PATIENCE_S, MarkedOffset, MarkedPlan, ReadLimits
from penstock.kinesis.read.marked_ranges import MarkedRecord, ShardSpan, has_begin, plan_tasks, read_task
from tests.marked_history.delayed_stream import DelayedStream
from tests.marked_history.leader import SLOT, SYSTEM

LONGEST_SILENCE = 10
"""So many empty pages, and nothing comes any more."""


class Reader(Protocol):
    """What it has applied, from where on, and up to where."""

    base: str | None
    transactions: list[list[int]]

    @property
    def applied(self) -> str | None:
        """Its W."""

    def begin_at(self, position: str | None) -> None:
        """Forget everything: there is a snapshot at this position; None: with the first that is there."""

    def poll(self, now: float, *, dies: bool = False) -> bool:
        """Apply what is there; whether anything was."""


class PlainReader:
    """The reader of the demo. What a manifest brings is stored together with `applied`, or it dies before."""

    def __init__(self, stream: DelayedStream, marks: DelayedStream, position: str | None) -> None:
        self._stream, self._marks = stream, marks
        self._place: tuple[str, int] | None = None
        self._moved_at = math.inf
        self.begin_at(position)

    def begin_at(self, position: str | None) -> None:
        self.base = self.applied = position
        self.transactions: list[list[int]] = []
        self._restart()

    def poll(self, now: float, *, dies: bool = False) -> bool:
        before = self.applied
        self._moved_at = min(self._moved_at, now)
        for found in self._manifests(TRIM_HORIZON if self._place is None else Start.after(self._place[1])):
            new = [[_serial(each) for each in changes] for changes in self._reader.transactions([found[2]])]
            self._place = found[:2]
            if dies:
                self._restart()
                return self.applied != before
            if self.applied is None and self._reader.applied is not None:
                self.base = json.loads(found[2])["since"]
            self.transactions += new
            self.applied = self._reader.applied
        if self.applied != before:
            self._moved_at = now
        elif now - self._moved_at >= PATIENCE_S:
            self._reader.end()
        return self.applied != before

    def _restart(self) -> None:
        self._reader = StreamReader(SYSTEM, SLOT, self._records, self.applied)
        self._place, self._moved_at = None, math.inf

    def _manifests(self, start: Start) -> Iterator[tuple[str, int, bytes]]:
        key = partition_key(SLOT)
        ours = sorted(shard.shard_id for shard in self._marks.shards() if shard.has_key(key))
        if self._place is not None and self._place[0] in ours:
            ours = ours[ours.index(self._place[0]) :]
        for shard in ours:
            is_here = self._place is not None and self._place[0] == shard
            for page in self._marks.pages(shard, start if is_here else TRIM_HORIZON):
                for record in page.records:
                    if record.partition_key == key:
                        yield shard, record.sequence, record.data
                if page.behind_ms == 0 and not page.is_last:
                    return

    def _records(self, shard: str, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        if shard not in self._stream.held:
            return found
        silence = 0
        for page in self._stream.pages(shard, Start.at(first)):
            silence = 0 if page.records else silence + 1
            if silence > LONGEST_SILENCE:
                break  # retention has taken it
            found += [(each.sequence, each.data) for each in page.records if each.sequence <= last]
            if any(each.sequence >= last for each in page.records):
                break
        return found


class ChainReader:
    """What Spark and shapes do: an end is planned and kept, then it is read by tasks, then it is applied."""

    def __init__(
        self, stream: DelayedStream, marks: DelayedStream, position: str, *, limits: ReadLimits, joins: bool
    ) -> None:
        """`joins`: links are put together where they can be, as shapes does."""
        self._stream = cast(StreamClient, stream)
        self._log = ManifestLog(cast(StreamClient, marks), SLOT)
        self._limits, self._joins = limits, joins
        self.begin_at(position)

    @property
    def applied(self) -> str | None:
        return None if self._offset is None else self._offset.resolved

    def begin_at(self, position: str | None) -> None:
        self.base = position
        self.transactions: list[list[int]] = []
        self._offset = None if position is None else MarkedOffset(position, None, SYSTEM, position)
        self._planned: MarkedOffset | None = None
        self._read_before: list[tuple[str, int]] | None = None
        self._restart()

    def poll(self, now: float, *, dies: bool = False) -> bool:
        start = self._offset or self._begin()
        if start is None:
            return False
        if self._planned is None:
            end = self._plan.advance(start, self._limits, now)
            if end == start:
                return False
            self._planned = end
        end = self._planned
        found = self._read(start, end, now)
        again, self._read_before = self._read_before, found
        assert again is None or again == found, "a batch has the same rows at every attempt"
        if dies:
            self._restart()
            return False
        self._offset, self._planned, self._read_before = end, None, None
        self.transactions += [
            [serial for _, serial in same] for _, same in groupby(found, lambda each: each[0][:25])
        ]
        return True

    def _begin(self) -> MarkedOffset | None:
        for _, manifest in self._log.read(None):
            if self._is_there(manifest):
                self.base = manifest.since
                self._offset = MarkedOffset(manifest.since, None, SYSTEM, manifest.since)
                return self._offset
        return None

    def _is_there(self, manifest: Manifest) -> bool:
        shards = {shard.shard_id for shard in self._stream.shards()}
        return all(
            name in shards and has_begin(self._stream, ShardSpan(name, int(said.first), int(said.first)))
            for name, said in manifest.shards.items()
        )

    def _restart(self) -> None:
        self._plan = MarkedPlan(self._log.read, SLOT)

    def _read(self, start: MarkedOffset, end: MarkedOffset, now: float) -> list[tuple[str, int]]:
        links = self._plan.links(start, end, now)
        if self._joins:
            links = _joined(links)
        links = [link for link in links if link.manifest.changes]
        shards = {shard.shard_id: shard for shard in self._stream.shards()}
        found: list[MarkedRecord] = []
        for task in plan_tasks(links, shards, end.resolved) if links else []:
            found += read_task(self._stream, task)
        assert_sent_by(found, links)
        return sorted((each.position, _serial(each.payload)) for each in found)


def assert_sent_by(found: Iterable[MarkedRecord], links: Sequence[Link]) -> None:
    """A manifest speaks of its own sender's records: another's at the same position is none of them."""
    ends = [link.manifest.resolved for link in links]
    for each in found:
        manifest = links[bisect_right(ends, each.position)].manifest
        assert each.record.data[54:66] == manifest.by.encode()


def _joined(links: Iterable[Link]) -> list[Link]:
    together: list[Link] = []
    for link in links:
        both = joined(together[-1], link) if together else None
        together = [*together[:-1], both] if both is not None else [*together, link]
    return together


def _serial(payload: bytes) -> int:
    return int(json.loads(payload)["serial"])
