"""ChangeLog: the WriteLoop. All shapes' changes, on disk, in the order of the stream."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Self

from penstock import fault_points
from penstock.changelog.errors import ChangeLogBroken, cant_write, free_bytes, under_the_floor
from penstock.changelog.index import BatchSummary, SegmentIndex, SegmentRange
from penstock.changelog.offsets import Mark, WriteOffsets
from penstock.changelog.segment import COMMIT_ID, RowBuffer, SegmentFile, encode_declarations, segment_name
from penstock.model.log_offset import OP_INFINITY, LogOffset
from penstock.model.relation import Relation

_MIB = 2**20
_SEGMENT_BYTES = 10 * _MIB


@dataclass(frozen=True, slots=True)
class LogLimits:
    """The sizes and times of a ChangeLog."""

    max_bytes: int = 10 * 1024 * _MIB
    """LOG_MAX_BYTES: at this size reading should pause."""
    min_free_bytes: int = 256 * _MIB
    """What must stay free on the disk: a write that would leave less breaks the log. 0: no such floor."""
    segment_bytes: int = _SEGMENT_BYTES
    buffer_bytes: int = 64 * 1024
    flush_interval_s: float = 1.0

    @classmethod
    def of(cls, max_bytes: int, min_free_bytes: int) -> Self:
        """For these bounds. A segment is deleted as a whole, so the one that is written must leave room."""
        return cls(max_bytes, min_free_bytes, min(_SEGMENT_BYTES, max_bytes // 4))


class ChangeLog:
    """The log of one leadership: positioned changes and commits, in segments, in a directory of its own.

    The problem. Shapes flush at their own pace, long after a change was read, in other processes, and a
    transaction may be of any size. So changes wait on disk, and readers must find whole transactions there.

    How it is used. The owner appends changes and commits, calls `write` when `write_due` says so, `flush`
    when `is_flush_due` says so or somebody waits, and `trim` with what the FlushTracker calls droppable.
    Readers get a plan from `read_plan` and give it to `read_segment`, wherever they run.

    Rules.
    1. The four offsets keep the rules of WriteOffsets. A change is persisted when a sync that began after its
       write has returned, at a flush or at a segment's end, and not a moment earlier.
    2. Segments end by size and not with transactions. `read_plan` gives what is persisted up to the end of a
       transaction, at most `last_persisted_txn_offset`; a plan stays readable until its segments are trimmed.
    3. After an error of a write, a sync or anything else below `write`, `flush` and `trim` the log is broken:
       these and `append` and `commit` raise ChangeLogBroken for ever. The kernel may drop what it could not
       write and report success the next time, so no later sync proves anything. What was persisted before
       stays, and stays readable; the rest comes again from the slot, into a new log.
    4. `trim` deletes sealed segments, and nothing that lies above `last_persisted_txn_offset`.
    5. Reading should pause while `is_over_limit`, between transactions only: the open one has to end before
       any of it can be flushed, trimmed and forgotten. It may go on down to `min_free_bytes` on the disk.

    Threads. `write`, `flush`, `trim` and `close` block on the disk: call them in a thread. They take turns,
    so one whose waiter was cancelled disturbs nobody. Everything else only touches memory and may be called
    at any time, also while one of them runs. There must be one appender.
    """

    def __init__(self, directory: Path, limits: LogLimits | None = None) -> None:
        self._directory = directory
        self._limits = limits or LogLimits()
        self._disk_turn = Lock()
        """Held by the one method that uses the file."""
        self._memory = Lock()
        """Held wherever what follows is touched; never over a system call."""
        self._buffer = RowBuffer()
        self._offsets = WriteOffsets()
        self._index = SegmentIndex()
        self._broken: str | None = None
        self._segment: SegmentFile | None = None
        self._segments_started = 0
        self._free_bytes = sys.maxsize
        self._flushed_at = -math.inf

    @property
    def directory(self) -> Path:
        """Where the segments are."""
        return self._directory

    @property
    def last_seen_offset(self) -> LogOffset:
        """The newest change or commit that was appended; it may be in memory only."""
        with self._memory:
            return self._offsets.last_seen_offset

    @property
    def last_seen_txn_offset(self) -> LogOffset:
        """The newest commit that was appended."""
        return self._offsets.last_seen_txn_offset

    @property
    def last_persisted_offset(self) -> LogOffset:
        """The newest change or commit on disk."""
        return self._offsets.last_persisted_offset

    @property
    def last_persisted_txn_offset(self) -> LogOffset:
        """The newest commit on disk: where readers stop."""
        return self._offsets.last_persisted_txn_offset

    @property
    def size_bytes(self) -> int:
        """What the log holds, on disk and in memory."""
        return self._index.size_bytes + self._buffer.size_bytes

    @property
    def is_over_limit(self) -> bool:
        """Whether reading should pause at the end of the transaction.

        The disk counts too: at twice the floor there is still room for the transaction that is open. Its
        free space is as the last `write`, `flush` or `trim` saw it.
        """
        limits = self._limits
        return self.size_bytes >= limits.max_bytes or self._free_bytes < 2 * limits.min_free_bytes

    @property
    def is_half_full(self) -> bool:
        """Whether half of `max_bytes` is reached: who holds the log for no good reason should let go."""
        return 2 * self.size_bytes >= self._limits.max_bytes

    @property
    def write_due(self) -> bool:
        """Whether the buffer is full: call `write` before appending much more."""
        return self._buffer.size_bytes >= self._limits.buffer_bytes

    def is_flush_due(self, now: float) -> bool:
        """Whether the last flush is a second ago, and something waits for the next: a sync, or room."""
        with self._memory:
            all_persisted = self._offsets.all_persisted
        has_work = not all_persisted or self.is_over_limit
        return has_work and now - self._flushed_at >= self._limits.flush_interval_s

    def append(self, relation: Relation, tx_offset: int, op_offset: int, payload: bytes | memoryview) -> None:
        """Add one change of the open transaction; the first one opens it. Never blocks.

        The payload is kept as it is, without a copy, until it is written.
        """
        with self._memory:
            self._refuse_if_broken()
            self._offsets.saw(tx_offset, op_offset)
            self._add_row(self._index.relation_ids[relation], tx_offset, op_offset, payload)

    def commit(self, tx_offset: int) -> None:
        """End the open transaction, or note one of which nothing was appended. Never blocks."""
        with self._memory:
            self._refuse_if_broken()
            offset = self._offsets.committed(tx_offset)
            self._add_row(COMMIT_ID, *offset, b"")

    def write(self) -> LogOffset | None:
        """Write the buffer to the segment, and end that if it is full. Blocks.

        Returns the new `last_persisted_txn_offset` if a segment's end moved it.
        """
        with self._disk() as before:
            self._write_buffer()
            return self._moved_from(before)

    def flush(self, now: float) -> LogOffset | None:
        """Make everything appended so far durable. Blocks. `now` is monotonic time.

        Returns the new `last_persisted_txn_offset` if this moved it.
        """
        with self._disk() as before:
            mark = self._write_buffer()
            if self._segment is not None and not self._segment.is_synced:
                fault_points.reached(fault_points.LOG_WRITTEN)
                self._segment.sync()
                with self._memory:
                    self._index.persisted()
                    self._offsets.persisted(mark)
            self._free_bytes = free_bytes(self._directory)
            self._flushed_at = now
            return self._moved_from(before)

    def trim(self, offset: LogOffset) -> int:
        """Delete the segments that lie at or below an offset; returns how many. Blocks."""
        with self._disk() as boundary:
            with self._memory:
                # Forgotten first, so that no plan names a file that is about to go.
                paths = self._index.trim(min(offset, boundary))
            for path in paths:
                Path(path).unlink(missing_ok=True)
            self._free_bytes = free_bytes(self._directory)
        return len(paths)

    def read_plan(
        self, relations: Collection[Relation] | None, after: LogOffset, up_to: LogOffset | None = None
    ) -> list[SegmentRange]:
        """Where a reader finds the changes of these relations behind `after`, in the order of the log.

        Without `up_to`, everything persisted up to `last_persisted_txn_offset`. `up_to` ends the plan with
        the transaction that it lies in; that one is in it as a whole, or not at all if it isn't persisted.
        `relations=None` means all. ChangeLogTrimmed if some of those changes were deleted. Never blocks.
        """
        with self._memory:
            return self._index.plan(relations, after, up_to, self._offsets.last_persisted_txn_offset)

    def boundary_within(self, relations: Collection[Relation], after: LogOffset, max_bytes: int) -> LogOffset:
        """The end of a persisted transaction such that a reader of these relations, from `after` up to it,
        gets about that many bytes: more only if a single transaction has more. Never blocks.
        """
        with self._memory:
            boundary = self._offsets.last_persisted_txn_offset
            within = self._index.offset_within(relations, after, max_bytes)
        return boundary if within is None else min(boundary, LogOffset(within.tx_offset, OP_INFINITY))

    def close(self) -> None:
        """Close the file as it is; what was not flushed is dropped. Plans stay readable. Blocks."""
        with self._disk_turn:
            with self._memory:
                self._broken = self._broken or f"the log in {self._directory} is closed"
            self._abandon_segment()

    def _add_row(self, relation_id: int, tx_offset: int, op_offset: int, payload: bytes | memoryview) -> None:
        try:
            self._buffer.append(relation_id, tx_offset, op_offset, payload)
        except BaseException as error:
            # It counts as seen, so a later flush would call it persisted.
            self._broken = f"a change at {LogOffset(tx_offset, op_offset)} could not be buffered: {error!r}"
            raise

    def _write_buffer(self) -> Mark:
        """Write what was appended so far; returns how far that goes."""
        with self._memory:
            # An append that failed since this turn began is in the mark, and in no buffer.
            self._refuse_if_broken()
            mark = self._offsets.mark()
            rows = self._buffer
            if not rows:
                return mark
            self._buffer = RowBuffer()
        self._write_rows(rows)
        if self._segment is not None and self._segment.size_bytes >= self._limits.segment_bytes:
            self._segment.seal()
            self._segment = None
            with self._memory:
                self._index.seal()
                self._offsets.persisted(mark)
        return mark

    def _write_rows(self, rows: RowBuffer) -> None:
        message, summary = rows.encode()
        self._keep_the_floor(len(message))
        segment = self._segment or self._start_segment()
        self._declare_relations(segment, summary)
        segment.write(message)
        with self._memory:
            self._index.add_batch(segment.size_bytes, summary)

    def _start_segment(self) -> SegmentFile:
        self._segments_started += 1
        self._segment = segment = SegmentFile(self._newest_path, self._index.last_offset)
        with self._memory:
            self._index.start_segment(str(segment.path), segment.size_bytes)
        return segment

    @property
    def _newest_path(self) -> Path:
        return self._directory / segment_name(self._segments_started)

    def _declare_relations(self, segment: SegmentFile, summary: BatchSummary) -> None:
        with self._memory:
            relations = self._index.undeclared(summary)
        if relations:
            segment.write(encode_declarations(relations, summary.span.first).message)

    def _keep_the_floor(self, needed_bytes: int) -> None:
        self._free_bytes = free_bytes(self._directory)
        floor = self._limits.min_free_bytes
        if floor and self._free_bytes - needed_bytes < floor:
            raise under_the_floor(self._directory, self._free_bytes, floor)

    @contextmanager
    def _disk(self) -> Iterator[LogOffset]:
        """A turn at the disk, of which any error is the last; gives `last_persisted_txn_offset`."""
        with self._disk_turn:
            self._refuse_if_broken()
            try:
                yield self._offsets.last_persisted_txn_offset
            except OSError as error:
                broken = cant_write(Path(error.filename or self._newest_path), error)
                self._break(broken)
                raise broken from error
            except BaseException as error:
                # An interrupt counts: it may have left half a batch in the file.
                self._break(error)
                raise

    def _break(self, error: BaseException) -> None:
        why = str(error) if isinstance(error, ChangeLogBroken) else f"writing failed: {error!r}"
        with self._memory:
            self._broken = why
        self._abandon_segment()

    def _abandon_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            # Nothing in it counts any more, so neither does this.
            with suppress(OSError):
                segment.close()

    def _refuse_if_broken(self) -> None:
        if self._broken is not None:
            raise ChangeLogBroken(self._broken)

    def _moved_from(self, before: LogOffset) -> LogOffset | None:
        after = self._offsets.last_persisted_txn_offset
        return after if after != before else None
