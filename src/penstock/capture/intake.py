"""Intake: frames become events, each with its position, its key and its place in the AckTracker."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from penstock.capture.ack import AckTracker
from penstock.capture.commit_times import CommitTimes
from penstock.decoding.decoder import Layout
from penstock.kinesis.marked.prefix import INVALID, PREFIX_BYTES, MarkPrefix, takes_prefix, validate
from penstock.kinesis.write.event import NO_OBJECT, ChangeEvent
from penstock.kinesis.write.partition_key import KeyedRelation, PartitionKeys, UnknownRelation
from penstock.model.change import Boundary, Change, Truncate, table_told
from penstock.model.log_offset import OP_INFINITY
from penstock.model.relation import Relation
from penstock.postgres.stream.walk import FrameWalk


class Batch(NamedTuple):
    """What came of a run of frames."""

    events: list[ChangeEvent]
    """Those with a fault can't be sent as they are."""
    next_frame: int
    """Index of the first frame that was not taken."""
    unknown: KeyedRelation | None = None
    """Ask the catalog for this relation before going on."""
    unfit: ChangeEvent | None = None
    """This event, already registered, is too large to be sent or held as it is; it comes after `events`."""
    has_faults: bool = False
    """Whether some of the events have one."""


class Totals:
    """Counts since the start of the stream."""

    __slots__ = ("bytes", "changes", "transactions")

    def __init__(self) -> None:
        self.changes = self.transactions = self.bytes = 0


class Intake:
    """Takes what the walk over frames brings, in the order of the stream. Knows no socket and no clock.

    It stops early where something has to happen first: an unknown relation, an event that is too large, or a
    full window in the AckTracker.
    """

    def __init__(
        self,
        *,
        walk: FrameWalk,
        tracker: AckTracker,
        keys: PartitionKeys,
        publish_transactions: bool,
        max_event_bytes: int,
        window: int,
        prefix: MarkPrefix | None = None,
    ) -> None:
        """`prefix`: what goes before each payload in a marked stream."""
        self._walk = walk
        self._tracker = tracker
        self._keys = keys
        self._scanner = keys.scanner
        self._publish_transactions = publish_transactions
        self._max_event_bytes = max_event_bytes
        self.window = window
        """How many entries the AckTracker may have."""
        self._prefix = prefix
        self._prefix_bytes = 0 if prefix is None else PREFIX_BYTES - 1
        """It takes the place of a brace."""
        self._events: list[ChangeEvent] = []
        self._unknown: KeyedRelation | None = None
        self._unfit: ChangeEvent | None = None
        self._safe_lsn = walk.safe_lsn
        """What may be confirmed before the open transaction."""
        self.room = 0
        """Part of the walk: how many more entries the AckTracker may take."""
        self._is_odd = False
        """Whether one of the events is not what the decoder expects."""
        self._layout: Layout | None = None
        """What the changes of the open run look like."""
        self._each = False
        """Whether all of them are to be looked at."""
        self._suspects: set[Relation | None] = set()
        """Tables that had payloads with a fault."""
        self._samples: list[bytes] = []
        """The payloads that are to be looked at."""
        self._now = 0.0
        self.totals = Totals()
        self.commit_times = CommitTimes()

    @property
    def window_is_full(self) -> bool:
        """Whether the AckTracker may take no more entries for now."""
        return self._tracker.pending_count >= self.window

    def take(self, frames: Sequence[memoryview], start: int, now: float) -> Batch:
        """Take frames from index `start` on, as many as possible."""
        self._events, self._unknown, self._unfit = [], None, None
        self.room = self.window - self._tracker.pending_count
        self._now = now
        self._is_odd, self._samples = False, []
        next_frame = self._walk.take(frames, start, self)
        self._end_run()
        has_faults = self._prefix is not None and self._mark(self._prefix)
        return Batch(self._events, next_frame, self._unknown, self._unfit, has_faults)

    def change(self, change: Change) -> bool:
        """Part of the walk: a change becomes an event; False if the catalog has to be asked first."""
        try:
            key = self._keys.key(change.payload, change.wal_start)
        except UnknownRelation as unknown:
            self._unknown = unknown.relation
            return False
        self.totals.changes += 1
        table: Relation | Truncate | None = None
        if self._prefix is not None:
            # Only manifests ask for the table, and mostly it came with the key.
            layout = self._scanner.found
            table = self._table(change) if layout is None else layout.relation
            if layout is None or layout is not self._layout:
                self._begin_run(layout, change.payload)
            elif self._each:
                self._samples.append(change.payload)
        self._add(change.payload, key, change.commit_lsn, change.op_offset, self._safe_lsn, table)
        return True

    def _table(self, change: Change) -> Relation | Truncate | None:
        """Read from a change that is not like others that were read before."""
        self._is_odd |= change.action is None
        relation = self._walk.decoder.relation(change.payload)
        return table_told(relation, change.action, change.commit_lsn, change.op_offset)

    def begin(self, begin: Boundary) -> None:
        """Part of the walk: a transaction starts."""
        self._safe_lsn = self._walk.safe_lsn
        self._end_run()
        self.commit_times.note(begin.commit_lsn, begin.committed_at)
        if self._publish_transactions:
            self._add_boundary(begin, -1, self._safe_lsn)

    def commit(self, commit: Boundary, safe_lsn: int) -> None:
        """Part of the walk: the open transaction is complete."""
        self.totals.transactions += 1
        self._end_run()
        if self._publish_transactions:
            self._add_boundary(commit, OP_INFINITY, safe_lsn)
        else:
            self._tracker.advance(safe_lsn)

    def silence(self, safe_lsn: int) -> None:
        """Part of the walk: nothing is committed up to here."""
        self._tracker.advance(safe_lsn)

    def _add_boundary(self, boundary: Boundary, op_offset: int, safe_lsn: int) -> None:
        key = self._keys.fallback(boundary.wal_start)
        self._add(boundary.payload, key, boundary.commit_lsn, op_offset, safe_lsn)

    def _add(
        self,
        payload: bytes,
        key: str,
        commit_lsn: int,
        op_offset: int,
        safe_lsn: int,
        table: Relation | Truncate | None = None,
    ) -> None:
        size = len(payload) + (len(key) if key.isascii() else len(key.encode())) + self._prefix_bytes
        self.totals.bytes += size
        ack_id = self._tracker.register(safe_lsn)
        event = ChangeEvent(ack_id, payload, key, size, commit_lsn, op_offset, self._now, None, False, table)
        self.room -= 1
        if size > self._max_event_bytes:
            self._unfit, self.room = event, 0
        else:
            self._events.append(event)

    def _mark(self, prefix: MarkPrefix) -> bool:
        """Give the events of a run their prefixes; whether some take none, and have a fault."""
        # A run at a time, in small loops: done for each change among all else, it costs twice as much.
        prefix.give(self._events)
        if self._unfit is not None:
            prefix.give([self._unfit])
        return self._find_faults()

    def _begin_run(self, layout: Layout | None, payload: bytes) -> None:
        self._end_run()
        self._layout = layout
        self._samples.append(payload)
        self._each = layout is not None and (self._scanner.varies or layout.relation in self._suspects)

    def _end_run(self) -> None:
        if self._layout is not None:
            self._layout = None
            if self._events and self._events[-1].payload is not self._samples[-1]:
                self._samples.append(self._events[-1].payload)

    def _find_faults(self) -> bool:
        """Whether some of the events take no prefix.

        It is the name of a column's type that can make a payload invalid, never a value. So of a run, changes
        of a table that look alike and are of one transaction, the first and the last are looked at. For all
        of them to have columns that are in order, the table must not be altered, or a type renamed, to and
        fro between the two; such a change goes out as it would into a plain stream. An update leaves
        unchanged TOAST columns out: where no insert has shown all columns, each is looked at. So is each
        change of a table that had one with a fault, and whatever isn't like changes that were read before.
        """
        samples = self._samples
        if self._unfit is not None:
            # It isn't sent as it is, and may be too large for a look in passing.
            samples = [payload for payload in samples if payload is not self._unfit.payload]
        try:
            deque(map(validate, samples), maxlen=0)
            has_faults = self._is_odd
        except INVALID:
            has_faults = True
        if has_faults:
            for event in self._events:
                event.fault = None if takes_prefix(event.payload) else NO_OBJECT
            self._suspects.update(event.relation for event in self._events if event.fault is not None)
        return has_faults
