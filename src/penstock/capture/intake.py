"""Intake: frames become events, each with its position, its key and its place in the AckTracker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.capture.ack import AckTracker
from penstock.capture.event import ChangeEvent
from penstock.capture.transaction_builder import TransactionBuilder
from penstock.errors import ProtocolViolation
from penstock.kinesis.partition_key import PartitionKeys, Relation, UnknownRelation
from penstock.log_offset import OP_INFINITY
from penstock.postgres import protocol, wal2json


class Intaken(NamedTuple):
    """What came of a run of frames."""

    events: list[ChangeEvent]
    next_frame: int
    """Index of the first frame that was not taken."""
    unknown: Relation | None = None
    """Ask the catalog for this relation before going on."""
    oversize: ChangeEvent | None = None
    """This event, already registered, is too large to be sent or held; it comes after `events`."""


class Totals:
    """Counts since the start of the stream."""

    __slots__ = ("bytes", "changes", "keepalives", "messages", "transactions")

    def __init__(self) -> None:
        self.changes = self.transactions = self.messages = self.keepalives = self.bytes = 0


class Intake:
    """Takes frames in the order of the stream. Knows no socket and no clock.

    It stops early where something has to happen first: an unknown relation, an event that is too large,
    or a full window in the AckTracker.
    """

    def __init__(
        self,
        *,
        tracker: AckTracker,
        builder: TransactionBuilder,
        keys: PartitionKeys,
        publish_transactions: bool,
        max_event_bytes: int,
        window: int,
    ) -> None:
        self._tracker = tracker
        self._builder = builder
        self._keys = keys
        self._publish_transactions = publish_transactions
        self._max_event_bytes = max_event_bytes
        self._window = window
        self.totals = Totals()
        self.received_lsn = builder.safe_lsn
        """The highest position heard of: what we report as written."""
        self.server_time_us = 0
        """The server's clock in the newest frame."""
        self.reply_requested = False
        """Whether a keepalive asked for an answer; the reader resets it when it has answered."""

    @property
    def window_is_full(self) -> bool:
        """Whether the AckTracker may take no more entries for now."""
        return self._tracker.pending_count >= self._window

    def take(self, frames: Sequence[memoryview], start: int, now: float) -> Intaken:
        """Take frames from index `start` on, as many as possible."""
        events: list[ChangeEvent] = []
        room = self._window - self._tracker.pending_count
        for index in range(start, len(frames)):
            if room <= 0:
                return Intaken(events, index)
            frame = frames[index]
            if len(frame) < protocol.PAYLOAD_AT or frame[0] != protocol.TAG_XLOGDATA:
                self._keepalive(frame)
                continue
            wal_start, _, self.server_time_us = protocol.unpack_xlogdata(frame)
            payload = bytes(frame[protocol.PAYLOAD_AT :])
            action = wal2json.action_of(payload)
            if action in wal2json.NOT_CHANGES:
                event = self._not_a_change(action, payload, wal_start, now)
                if event is None:
                    continue
            else:
                try:
                    event = self._change(payload, wal_start, now)
                except UnknownRelation as unknown:
                    return Intaken(events, index, unknown=unknown.relation)
            room -= 1
            if event.record_size_bytes > self._max_event_bytes:
                return Intaken(events, index + 1, oversize=event)
            events.append(event)
        return Intaken(events, len(frames))

    def _change(self, payload: bytes, wal_start: int, now: float) -> ChangeEvent:
        key = self._keys.key(payload, wal_start)
        op_offset = self._builder.place()
        if wal_start > self.received_lsn:
            self.received_lsn = wal_start
        self.totals.changes += 1
        return self._event(payload, key, self._builder.commit_lsn, op_offset, now)

    def _not_a_change(
        self, action: int | None, payload: bytes, wal_start: int, now: float
    ) -> ChangeEvent | None:
        if action == wal2json.MESSAGE:
            self.totals.messages += 1
            return None
        return self._boundary(action, payload, wal_start, now)

    def _boundary(self, action: int | None, payload: bytes, wal_start: int, now: float) -> ChangeEvent | None:
        """A begin or a commit.

        With `include-lsn` off neither names its LSNs. Then the header of a begin, the transaction's first
        LSN, stands for its position, and the header of a commit is its end.
        """
        try:
            boundary = wal2json.decode_boundary(payload)
            named_lsn, named_end = boundary.commit_lsn, boundary.end_lsn
        except ValueError as error:
            raise ProtocolViolation(f"a begin or commit that can't be read: {error}") from error
        if action == wal2json.BEGIN:
            self._builder.begin(wal_start if named_lsn is None else named_lsn, named_end)
            op_offset, commit_lsn = -1, self._builder.commit_lsn
        else:
            op_offset, commit_lsn = OP_INFINITY, self._builder.commit_lsn
            end_lsn = self._builder.commit(
                commit_lsn if named_lsn is None else named_lsn, wal_start if named_end is None else named_end
            )
            self.received_lsn = max(self.received_lsn, end_lsn)
            self.totals.transactions += 1
        if self._publish_transactions:
            return self._event(payload, self._keys.fallback(wal_start), commit_lsn, op_offset, now)
        if action == wal2json.COMMIT:
            self._tracker.advance(end_lsn)
        return None

    def _event(self, payload: bytes, key: str, commit_lsn: int, op_offset: int, now: float) -> ChangeEvent:
        size = len(payload) + (len(key) if key.isascii() else len(key.encode()))
        self.totals.bytes += size
        ack_id = self._tracker.register(self._builder.safe_lsn)
        return ChangeEvent(ack_id, payload, key, size, commit_lsn, op_offset, now)

    def _keepalive(self, frame: memoryview) -> None:
        keepalive = protocol.parse_frame(frame)
        assert isinstance(keepalive, protocol.Keepalive), "XLogData is handled before"
        self.server_time_us = keepalive.server_time_us
        self.totals.keepalives += 1
        self.received_lsn = max(self.received_lsn, keepalive.wal_end)
        self.reply_requested |= keepalive.reply_requested
        marker = self._builder.keepalive(keepalive.wal_end)
        if marker is not None:
            self._tracker.advance(marker)
