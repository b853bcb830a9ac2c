"""The driver's side of a read of a marked stream: manifests, offsets and tasks."""

from __future__ import annotations

from collections import deque
from typing import Final

from penstock.decoding.plugins import decoder_for
from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.chain import Link
from penstock.kinesis.read.errors import RecordsExpired, StreamReadError
from penstock.kinesis.read.manifest_log import ManifestLog, Place
from penstock.kinesis.read.marked_plan import PATIENCE_S, MarkedOffset, MarkedPlan
from penstock.kinesis.read.marked_ranges import MarkedTask, ShardSpan, plan_tasks, read_span, read_task
from penstock.kinesis.read.shards import ShardInfo
from penstock.model.log_offset import LogOffset
from penstock.model.stream_position import StreamPosition
from penstock.sources.log_source import Layout
from penstock.sources.marked_query import EARLIEST, MarkedQuery
from penstock.sources.marked_rows import PLUGIN, Typed, is_pointer, of_tables

_LOOKED_AT: Final = 5
"""So many of a table's newest manifests tell its columns."""


class MarkedDriver:
    """The driver's side: manifests, offsets and tasks."""

    def __init__(self, query: MarkedQuery) -> None:
        self._query = query
        self._stream = query.open()
        self._log = ManifestLog(query.open(query.marks_stream), query.slot)
        self.plan = MarkedPlan(self._log.read, query.slot)
        self._looked_since: float | None = None

    def begin(self) -> MarkedOffset | None:
        """Where a new query begins; None if no manifest is there yet."""
        before: Place | None = None
        last: tuple[Place, Manifest] | None = None
        for place, manifest in self._log.read(None):
            last = place, manifest
            if self._query.start == EARLIEST and self._is_there(manifest):
                return MarkedOffset(manifest.since, before, manifest.system, manifest.since, before)
            before = place
        if last is None:
            return None
        place, manifest = last
        if self._query.start == EARLIEST:
            raise RecordsExpired(
                f"{self._query.stream}: the records of all {self._query.slot} manifests are gone: the"
                " stream's retention has passed them"
            )
        return MarkedOffset(manifest.resolved, place, manifest.system, manifest.resolved, place)

    def newest(self) -> str:
        """Where the newest manifest ends."""
        ends = [manifest.resolved for _, manifest in self._log.read(None)]
        if not ends:
            raise self.unmarked()
        return max(ends)

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

    def tasks(self, start: MarkedOffset, end: MarkedOffset, now: float) -> list[MarkedTask]:
        """What executors read for a batch."""
        links = [link for link in self.plan.links(start, end, now) if self._touches(link.manifest)]
        return plan_tasks(links, self._shards(), end.resolved) if links else []

    def look(self) -> Typed:
        """The columns and the key of the tables, by their newest changes."""
        newest: deque[Manifest] = deque(maxlen=_LOOKED_AT)
        newest += (each for _, each in self._log.read(None) if self._touches(each))
        layout = Layout(decoder_for(PLUGIN).cells)
        for manifest in newest:
            for task in plan_tasks([Link(manifest, manifest.since)], self._shards(), manifest.resolved):
                for relation, found in of_tables(
                    read_task(self._stream, task), frozenset(self._query.tables)
                ):
                    at = StreamPosition.parse(found.position)
                    if relation is not None and not is_pointer(found):
                        layout.take(relation, LogOffset(at.commit_lsn, at.operation - 1), found.payload)
        if not layout.columns:
            raise StreamReadError(
                f"{self._query.stream} has no changes of {', '.join(map(str, self._query.tables))} that tell"
                ' its columns. Fix: .option("raw", "true"), or begin when there are some'
            )
        return Typed(layout.columns, layout.key)

    def _touches(self, manifest: Manifest) -> bool:
        tables = manifest.tables
        return manifest.changes > 0 and (
            not self._query.tables
            or isinstance(tables, str)
            or any(str(table) in tables for table in self._query.tables)
        )

    def _shards(self) -> dict[str, ShardInfo]:
        return {shard.shard_id: shard for shard in self._stream.shards()}

    def _is_there(self, manifest: Manifest) -> bool:
        """Whether the first record that it speaks of is there in each shard."""
        shards = self._shards() if manifest.shards else {}
        for name, found in manifest.shards.items():
            first = int(found.first)
            if name not in shards:
                return False
            try:
                next(iter(read_span(self._stream, ShardSpan(name, first, first))))
            except RecordsExpired:
                return False
        return True
