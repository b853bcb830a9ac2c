"""The driver's side of a read of a marked stream: manifests, offsets and tasks."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.marked.pointer import is_pointer
from penstock.kinesis.read.chain import Link
from penstock.kinesis.read.errors import AnotherStream, RecordsExpired, StreamReadError
from penstock.kinesis.read.joining import all_joined
from penstock.kinesis.read.manifest_ages import newest
from penstock.kinesis.read.manifest_log import Arrived, ManifestLog, Place
from penstock.kinesis.read.marked_plan import BOUNDED, PATIENCE_S, MarkedOffset, MarkedPlan
from penstock.kinesis.read.marked_ranges import MarkedTask, ShardSpan, has_begin, plan_tasks, read_task
from penstock.kinesis.read.shards import ShardInfo
from penstock.model.stream_position import StreamPosition
from penstock.sources.marked_layout import ENOUGH, MOST_LOOKED_AT, SeenFrames
from penstock.sources.marked_query import EARLIEST, LATEST, MarkedQuery
from penstock.sources.marked_rows import Typed, of_tables
from penstock.sources.marked_start import begin_at, newest_of

_LONGEST_STEP: Final = 1024
_TIP_EVERY_S: Final = 10.0
_PARTS: Final = 2
"""Fewer manifests tell a table's columns, if so many parts have no more of it: some ten minutes."""
_LOOKED_CHANGES: Final = 5_000
"""So many changes of a manifest, for each task: it may tell of a transaction of any size."""

_END_OF_ALL: Final = str(StreamPosition(2**32 - 1, 2**64 - 1))


class _Candidate(NamedTuple):
    """A manifest to begin with, and the place of the one before it."""

    behind: Place | None
    manifest: Manifest


class MarkedDriver:
    """The driver's side: manifests, offsets and tasks."""

    def __init__(self, query: MarkedQuery) -> None:
        self._query = query
        self._stream = query.open()
        self._log = ManifestLog(query.open(query.marks_stream), query.slot)
        self.plan = MarkedPlan(self._fetch, query.slot)
        self._furthest: Arrived | None = None
        """Of the manifests that were read."""
        self._tip_read_at = float("-inf")
        self._looked_since: float | None = None
        self._known: dict[str, ShardInfo] = {}

    def begin(self) -> MarkedOffset | None:
        """Where a new query begins; None if no manifest is there yet."""
        start = self._query.start
        if start == EARLIEST:
            return self._earliest()
        return newest_of(self._log).offset if start == LATEST else begin_at(self._log, start)

    def _earliest(self) -> MarkedOffset | None:
        """The first manifest whose records are there, or empty ones directly before it.

        What is there once stays there for as long as what comes later: so not every one is tried, but after
        a failure the second behind it, then the fourth, and so on; and those between if that is there.
        """
        before: Place | None = None
        waiting: list[_Candidate] = []
        """Behind the last one whose records are gone. Of empty ones in a row, the first stands for all."""
        full, step, has_any = 0, 1, False
        for place, manifest in self._log.read(None):
            has_any = True
            if manifest.changes or not waiting or waiting[-1].manifest.changes:
                waiting.append(_Candidate(before, manifest))
            before = place
            full += manifest.changes > 0
            if full < step:
                continue
            if self._is_there(manifest):
                return self._first_of(waiting)
            waiting, full, step = [], 0, min(2 * step, _LONGEST_STEP)
        if waiting:
            return self._first_of(waiting)
        if has_any:
            raise self._all_gone()
        return None

    def _first_of(self, candidates: Sequence[_Candidate]) -> MarkedOffset:
        """Behind the last of these whose records are gone."""
        full = [place for place, each in enumerate(candidates) if each.manifest.changes]
        gone = bisect_left(full, True, key=lambda place: self._is_there(candidates[place].manifest))
        first = 0 if gone == 0 else full[gone - 1] + 1
        if first == len(candidates):
            raise self._all_gone()
        behind, manifest = candidates[first]
        return MarkedOffset(manifest.since, behind, manifest.system, manifest.since, behind)

    def _all_gone(self) -> RecordsExpired:
        return RecordsExpired(
            f"{self._query.stream}: the records of all {self._query.slot} manifests are gone: the stream's"
            " retention has passed them"
        )

    def newest(self, offset: MarkedOffset) -> str:
        """Where the newest manifest behind an offset ends."""
        ends = (manifest.resolved for _, manifest in self._log.read(offset.place))
        return max(ends, default=offset.resolved)

    def tip(self, now: float) -> Arrived | None:
        """The manifest that reaches furthest, at most some seconds ago; None: none was read yet.

        The plan stops reading where a batch is full. Then the end of the manifests is looked at, which takes
        a call or two: not with every batch.
        """
        if not self.plan.is_at_tip and now - self._tip_read_at >= _TIP_EVERY_S:
            self._tip_read_at = now
            # Whoever only wants to know how far behind a query is must not end it.
            with suppress(StreamReadError):
                self._note(newest(self._log))
        return self._furthest

    def _fetch(self, after: Place | None) -> Iterator[tuple[Place, Manifest]]:
        for found in self._log.arrivals(after):
            self._note(found)
            yield found.place, found.manifest

    def _note(self, found: Arrived | None) -> None:
        known = self._furthest
        if found is not None and (known is None or found.manifest.resolved >= known.manifest.resolved):
            self._furthest = found

    def begin_patiently(self, now: float) -> MarkedOffset | None:
        """The same; an error if none has come for long."""
        found = self.begin()
        if found is not None:
            self._looked_since = None
            return found
        if self._looked_since is None:
            self._looked_since = now
        if now - self._looked_since > PATIENCE_S:
            raise self.unmarked()
        return None

    def unmarked(self) -> StreamReadError:
        """There are no manifests."""
        return StreamReadError(
            f"{self._query.marks_stream} has no manifests of the slot {self._query.slot}. Fix: let penstock"
            " capture write it with KINESIS_MARKED_STREAM=true; name its REPLICATION_SLOT as slot, and its"
            " KINESIS_MARKS_STREAM, if there is one, as kinesis.marksStreamName"
        )

    def everything(self, now: float) -> list[MarkedTask]:
        """What executors read for all that is there."""
        end = self.begin()
        if end is None:
            raise self.unmarked()
        # One reading: it ends with what is there when it comes to the end, however fast more is written.
        reading = self._log.read(end.place)
        plan = MarkedPlan(lambda _after: reading, self._query.slot)
        found: list[MarkedTask] = []
        while True:
            start, end = end, plan.advance(end, BOUNDED, now, up_to=_END_OF_ALL)
            if end == start:
                return found
            found += self._tasks(plan.links(start, end, now), end)

    def tasks(self, start: MarkedOffset, end: MarkedOffset, now: float) -> list[MarkedTask]:
        """What executors read for a batch."""
        return self._tasks(self.plan.links(start, end, now), end)

    def _tasks(self, links: Sequence[Link], end: MarkedOffset) -> list[MarkedTask]:
        # Those without changes hold those together that they stand between.
        wanted = (link for link in links if self._touches(link.manifest) or not link.manifest.changes)
        ours = [link for link in all_joined(wanted) if link.manifest.changes]
        return plan_tasks(ours, self._shards_of(link.manifest for link in ours), end.resolved) if ours else []

    def look(self) -> Typed:
        """The columns and the key of the tables, by their newest changes.

        By a few manifests, and further back for as long as these have no insert or update. What is gone,
        and all before it, tells nothing.
        """
        seen, looked_at = SeenFrames(), 0
        for count, part in enumerate(self._log.backwards(), start=1):
            touching = deque((each for _, each in part if self._touches(each)), maxlen=MOST_LOOKED_AT)
            while touching and looked_at < (ENOUGH if seen.has_rows else MOST_LOOKED_AT):
                looked_at += 1
                try:
                    self._look_at(touching.pop(), seen)
                except (AnotherStream, RecordsExpired):
                    return self._typed(seen)
            if seen.has_rows and (looked_at >= ENOUGH or count >= _PARTS):
                break
            if looked_at >= MOST_LOOKED_AT:
                raise self._untold(f"the {looked_at} newest manifests have only deletes and truncates")
        return self._typed(seen)

    def _typed(self, seen: SeenFrames) -> Typed:
        layout = seen.layout()
        if not layout.columns:
            raise self._untold("there are no changes")
        return Typed(layout.columns, layout.key)

    def _untold(self, why: str) -> StreamReadError:
        tables = ", ".join(map(str, self._query.tables))
        return StreamReadError(
            f"{self._query.stream}: {why} of {tables}, so that nothing tells its columns. Fix: name them with"
            ' .schema(…) (docs/spark.md), or .option("raw", "true"), or begin when there are some'
        )

    def _look_at(self, manifest: Manifest, seen: SeenFrames) -> None:
        tables = frozenset(self._query.tables)
        links, shards = [Link(manifest, manifest.since)], self._shards_of([manifest])
        for task in plan_tasks(links, shards, manifest.resolved):
            for relation, found in islice(of_tables(read_task(self._stream, task), tables), _LOOKED_CHANGES):
                if relation is not None and not is_pointer(found.payload):
                    seen.take(relation, found.position, found.payload)

    def _touches(self, manifest: Manifest) -> bool:
        tables = manifest.tables
        return manifest.changes > 0 and (
            not self._query.tables
            or isinstance(tables, str)
            or any(str(table) in tables for table in self._query.tables)
        )

    def _shards_of(self, manifests: Iterable[Manifest]) -> dict[str, ShardInfo]:
        """Those that these manifests name, among others. A shard's keys never change, so they are kept."""
        if not {name for manifest in manifests for name in manifest.shards} <= self._known.keys():
            self._known = self._shards()
        return self._known

    def _shards(self) -> dict[str, ShardInfo]:
        return {shard.shard_id: shard for shard in self._stream.shards()}

    def _is_there(self, manifest: Manifest) -> bool:
        """Whether the first record of its range is there in each shard."""
        shards = self._shards() if manifest.shards else {}
        return all(
            name in shards and has_begin(self._stream, ShardSpan(name, int(found.first), int(found.first)))
            for name, found in manifest.shards.items()
        )
