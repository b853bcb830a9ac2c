"""StreamJobs: the jobs of shapes whose storage is a Kinesis stream.

A stream has no rows to replace: all that is kept of a shape is its position, the end of its last manifest.

1. A *flush* publishes the changes, one record each, and then a manifest. Records accepted ─▶ manifest
   accepted ─▶ read back ─▶ its offset is returned. `by` is the flush's own: what a flush that died has left
   belongs to nobody.
2. A *snapshot* copies nothing. It is a manifest that begins where the snapshot's cut is, and so tells readers
   honestly that what lies before it is not here: for those who were further back it is a gap.
3. A shape at *rest* repeats where it is, so that retention never takes its last manifest.

Manifests are sent only while the leader's line is fresh, and none after a leadership has ended. Still, one
that was on its way when its leader froze may come late. It tells of its own records, which are there, and of
the same history: readers are exact with it and without it. But it may be the last one, and reach less far: so
whoever asks where a shape is looks behind it, too (shape_marks.py).
"""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.kinesis.aws.outcome import Failed
from penstock.kinesis.marked.manifest import ACTION, Manifest
from penstock.kinesis.write.client import KinesisClient
from penstock.lake.errors import ChangesUnusable, ForeignCommit, StorageFailed
from penstock.lake.jobs.changes import behind
from penstock.lake.jobs.shape_jobs import cancel_jobs, layout_of, noticing_the_end, working
from penstock.lake.ports import ChangePart, JobDone, TableState
from penstock.lake.spark.spark_session import shape_session
from penstock.lake.stream.flush import Flush, open_client, publish
from penstock.lake.stream.keeping import Keeping
from penstock.lake.stream.old_row import OldRow
from penstock.lake.stream.parts import Part
from penstock.lake.stream.place import StreamPlace
from penstock.lake.stream.shape_marks import REST_S, ShapeMarks
from penstock.model.key_indexes import KeyIndexes
from penstock.model.lsn import format_lsn
from penstock.model.shape import Shape
from penstock.model.stream_position import History, StreamPosition
from penstock.postgres.catalog.partition_bounds import Bounds
from penstock.postgres.catalog.table_facts import FULL, ColumnFacts, TableFacts
from penstock.postgres.snapshot.export import SnapshotPart

_REST_LOOK_S: Final = 30.0

_log = structlog.get_logger()


class StreamStorage(NamedTuple):
    """Where shapes are published."""

    place: StreamPlace
    marks_stream: str
    system: str
    history: History
    plugin: str
    keeping: Keeping


class _Kept:
    """One shape: how far it is, and since when nothing was said of it."""

    def __init__(self, marks: ShapeMarks) -> None:
        self.marks = marks
        self.turn = threading.Lock()
        self.at: StreamPosition | None = None
        self.said_at = time.monotonic()


class StreamJobs:
    """See ShapeJobs. For one leadership."""

    def __init__(self, spark: SparkSession, shapes: Sequence[Shape], storage: StreamStorage) -> None:
        self._spark = spark
        self._storage = storage
        self._group = f"penstock-{secrets.token_hex(4)}"
        self._may_write: Callable[[], bool] = lambda: False
        self._is_over = threading.Event()
        with noticing_the_end():
            self._sessions = {shape.name: shape_session(spark) for shape in shapes}
        self._client = open_client(storage.place, storage.marks_stream)
        reader = storage.place._replace(stream=storage.marks_stream).open()
        self._kept = {
            shape.name: _Kept(ShapeMarks(reader, shape.name, storage.system, self._client))
            for shape in shapes
        }
        for client in (self._client, reader):
            weakref.finalize(self, client.close)

    def lead(self, may_write: Callable[[], bool]) -> None:
        """See ShapeJobs: shapes at rest say where they are, too."""
        self._may_write = may_write
        threading.Thread(
            target=_keep_saying, args=(weakref.ref(self), self._is_over), name="penstock-rest", daemon=True
        ).start()

    def end(self) -> None:
        """See ShapeJobs."""
        self._is_over.set()

    def state(self, shape: Shape, known: int | None = None) -> TableState:
        """See ShapeJobs: the end of its last manifest."""
        kept = self._kept[shape.name]
        with kept.turn:
            refuse_unfit(self._client)
            last = kept.marks.last(known)
            if last is None:
                return TableState(False, None)
            kept.at = last.resolved_position
            return TableState(True, _offset(kept.at))

    def flush(
        self,
        shape: Shape,
        facts: TableFacts,
        ranges: Sequence[ChangePart],
        up_to: int,
        added: Sequence[ColumnFacts] = (),
    ) -> JobDone:
        """See ShapeJobs. New columns are simply in the next records."""
        kept = self._kept[shape.name]
        with self._working(shape, "flush"), kept.turn:
            if kept.at is None:
                raise ChangesUnusable(f"shape {shape.name} has no manifest in {self._storage.place.stream}")
            since, offset = kept.at, _offset(kept.at)
            new = behind(ranges, offset)
            if not new or up_to <= offset:
                return JobDone(offset, 0)
            refuse_unjudgeable(shape, facts)
            by = secrets.token_hex(6)
            told = publish(self._sessions[shape.name], self._flush(shape, facts, by), new)
            self._say(kept, shape, by, since, up_to + 1, told)
            return JobDone(_offset(kept.at), told.records, quarantined=told.quarantined)

    def snapshot(
        self, shape: Shape, facts: TableFacts, parts: Sequence[SnapshotPart], snapshot: str, tx_offset: int
    ) -> JobDone:
        """See ShapeJobs: nothing is copied, the stream begins again here."""
        kept = self._kept[shape.name]
        with self._working(shape, "snapshot"), kept.turn:
            refuse_unjudgeable(shape, facts)
            refuse_unfit(self._client)
            begin = self._storage.history.boundary(tx_offset + 1)
            self._say(kept, shape, secrets.token_hex(6), begin, tx_offset + 1, Part())
            return JobDone(tx_offset, 0)

    def delete_within(self, shape: Shape, facts: TableFacts, bounds: Bounds, tx_offset: int) -> int:
        """See ShapeJobs. Nobody knows which rows readers have: they have to begin again."""
        raise ForeignCommit(
            f"a partition of {shape.table} is gone, and a stream can't tell which of its rows to delete"
        )

    def foreign(self, shape: Shape) -> str | None:
        """See ShapeJobs: a stream's records stay as they are."""
        return None

    def may_widen(self, shape: Shape) -> bool:
        """See ShapeJobs: records name the types of their own."""
        return True

    def upkeep(self, shape: Shape) -> None:
        """See ShapeJobs: retention does it."""

    def cancel(self) -> None:
        """See ShapeJobs."""
        cancel_jobs(self._spark, self._group)

    def cancel_of(self, shape: Shape) -> None:
        """See ShapeJobs."""
        cancel_jobs(self._spark, self._group, shape)

    def say_again(self, now: float) -> None:
        """Repeat where shapes are of which nothing was said for long; those that are flushed need none."""
        for name, kept in self._kept.items():
            if not self._may_send():
                return
            if kept.at is None or now - kept.said_at < REST_S or not kept.turn.acquire(blocking=False):
                continue
            try:
                self._put(kept, self._manifest(name, secrets.token_hex(6), kept.at, kept.at, Part()))
                kept.said_at = now
            except PenstockError as error:
                _log.warning("rest_manifest_failed", shape=name, detail=str(error))
            finally:
                kept.turn.release()

    def _say(
        self, kept: _Kept, shape: Shape, by: str, since: StreamPosition, resolved_lsn: int, told: Part
    ) -> None:
        resolved = self._storage.history.boundary(resolved_lsn)
        self._put(kept, self._manifest(shape.name, by, since, resolved, told))
        kept.at, kept.said_at = resolved, time.monotonic()

    def _put(self, kept: _Kept, manifest: Manifest) -> None:
        kept.marks.put(manifest, self._may_send)

    def _may_send(self) -> bool:
        return self._may_write() and not self._is_over.is_set()

    def _manifest(
        self, name: str, by: str, since: StreamPosition, resolved: StreamPosition, told: Part
    ) -> Manifest:
        switches: Mapping[int, int] = self._storage.history.switch_points
        return Manifest(
            ACTION,
            self._storage.system,
            name,
            by,
            str(since),
            str(resolved),
            told.records,
            told.size_bytes,
            told.shards,
            told.tables,
            [(old, format_lsn(lsn)) for old, lsn in sorted(switches.items())],
        )

    def _flush(self, shape: Shape, facts: TableFacts, by: str) -> Flush:
        primary = next((index.columns for index in facts.indexes if index.is_primary), ())
        identity = next((index.columns for index in facts.indexes if index.is_identity), ())
        return Flush(
            self._storage.place,
            layout_of(shape, facts, self._storage.plugin),
            KeyIndexes(primary, identity),
            None if shape.columns is None else frozenset(shape.columns),
            self._storage.history,
            by,
            shape.name,
            self._storage.keeping,
            OldRow.of(facts),
        )

    @contextmanager
    def _working(self, shape: Shape, what: str) -> Iterator[None]:
        with working(self._spark, self._group, shape, what):
            yield


def refuse_unjudgeable(shape: Shape, facts: TableFacts) -> None:
    """A stream says which rows enter and leave a filter: the old row has to be there. ChangesUnusable."""
    silent = [leaf.relation for leaf in facts.leaves if leaf.replica_identity != FULL]
    if shape.where is not None and silent:
        raise ChangesUnusable(
            f"where needs the old rows, to tell which rows leave the stream. Fix: ALTER TABLE {silent[0]}"
            " REPLICA IDENTITY FULL" + (f"; and so for {len(silent) - 1} more" if len(silent) > 1 else "")
        )


def refuse_unfit(client: KinesisClient) -> None:
    """StorageFailed if the stream isn't there, or ignores partition keys."""
    trouble = client.probe()
    if isinstance(trouble, Failed):
        raise StorageFailed(f"{trouble.code}: {trouble.message}")


def _offset(position: StreamPosition) -> int:
    """The commit LSN up to which everything is told."""
    return position.commit_lsn - 1


def _keep_saying(jobs: weakref.ref[StreamJobs], is_over: threading.Event) -> None:
    """Until the leadership ends, or nobody has the jobs any more."""
    while not is_over.is_set() and (there := jobs()) is not None:
        there.say_again(time.monotonic())
        del there
        is_over.wait(_REST_LOOK_S)
