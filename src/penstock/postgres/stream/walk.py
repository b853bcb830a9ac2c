"""FrameWalk: frames in; begin, change, commit and silence out, each with its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.decoding.decoder import Decoder, Unreadable
from penstock.errors import ProtocolViolation
from penstock.model.change import Action, Boundary, Change
from penstock.model.lsn import format_lsn
from penstock.postgres.stream import protocol


class Visitor(Protocol):
    """What is done with what the frames say."""

    room: int
    """The next frame is taken only if this is above 0."""

    def change(self, change: Change) -> bool:
        """Take a change; False if something has to happen first, and then it comes again."""

    def begin(self, begin: Boundary) -> None:
        """A transaction starts."""

    def commit(self, commit: Boundary, safe_lsn: int) -> None:
        """It is complete; `safe_lsn` may be confirmed after all of it."""

    def silence(self, safe_lsn: int) -> None:
        """A keepalive between transactions lets this be confirmed once everything before it is durable."""


class FrameWalk:
    """Walks over the frames of one replication stream. Knows no socket and no clock.

    1. Every change gets its LogOffset, whatever becomes of it.
    2. The walk stops in front of a frame for which the visitor has no room, or a change that it doesn't take
       yet; `take` again from there goes on as if nothing had happened.
    3. A frame that says nothing by itself (the decoder tells) has no position, and nobody is shown it.
    4. Where the plugin leaves LSNs out (`needs_lsn` False allows it), the header of a begin, the
       transaction's first LSN, stands for its position, and the header of a commit is its end.
    """

    def __init__(self, decoder: Decoder, *, confirmed_lsn: int, needs_lsn: bool = False) -> None:
        self.decoder = decoder
        self._transactions = TransactionBuilder(confirmed_lsn=confirmed_lsn)
        self._needs_lsn = needs_lsn
        self.received_lsn = confirmed_lsn
        """The highest position heard of: what we report as written."""
        self.server_time_us = 0
        """The server's clock in the newest frame."""
        self.reply_requested = False
        """Whether a keepalive asked for an answer; whoever answers resets it."""
        self.messages = 0

    @property
    def safe_lsn(self) -> int:
        """What may be confirmed once everything before the current frame is durable."""
        return self._transactions.safe_lsn

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._transactions.in_transaction

    def take(self, frames: Sequence[memoryview], start: int, visitor: Visitor) -> int:
        """Walk from index `start` on; returns the index of the first frame that was not taken."""
        # Local names: this is the path of every change, and an enum's members are slow to find.
        begin, commit, message = Action.BEGIN, Action.COMMIT, Action.MESSAGE
        payload_of, action_of = self.decoder.payload, self.decoder.action
        place, take_change = self._transactions.place, visitor.change
        commit_lsn = self._transactions.commit_lsn if self._transactions.in_transaction else 0
        for index in range(start, len(frames)):
            if visitor.room <= 0:
                return index
            frame = frames[index]
            if len(frame) < protocol.PAYLOAD_AT or frame[0] != protocol.TAG_XLOGDATA:
                self._keepalive(frame, visitor)
                continue
            wal_start, _, self.server_time_us = protocol.unpack_xlogdata(frame)
            payload = payload_of(frame[protocol.PAYLOAD_AT :])
            if payload is None:
                continue
            action = action_of(payload)
            if action is begin or action is commit:
                commit_lsn = self._boundary(action, payload, wal_start, visitor)
            elif action is message:
                self.messages += 1
            else:
                op_offset = place()
                if not take_change(Change(action, payload, wal_start, commit_lsn, op_offset)):
                    self._transactions.take_back()
                    return index
                if wal_start > self.received_lsn:
                    self.received_lsn = wal_start
        return len(frames)

    def _boundary(self, action: Action, payload: bytes, wal_start: int, visitor: Visitor) -> int:
        """Returns the commit LSN."""
        try:
            commit_lsn, end_lsn, committed_at = self.decoder.transaction(payload)
        except Unreadable as error:
            raise ProtocolViolation(f"a begin or commit that can't be read: {error}") from error
        if commit_lsn is None and self._needs_lsn:
            raise ProtocolViolation(f"a begin or commit of {self.decoder.plugin} without its LSN")
        if committed_at is None:
            committed_at = protocol.unix_seconds(self.server_time_us)
        transactions = self._transactions
        if action is Action.BEGIN:
            commit_lsn = wal_start if commit_lsn is None else commit_lsn
            transactions.begin(commit_lsn, end_lsn)
            visitor.begin(Boundary(action, payload, wal_start, commit_lsn, end_lsn, committed_at))
            return commit_lsn
        end_lsn = wal_start if end_lsn is None and commit_lsn is None else end_lsn
        commit_lsn = transactions.commit_lsn if commit_lsn is None else commit_lsn
        boundary = Boundary(action, payload, wal_start, commit_lsn, end_lsn, committed_at)
        safe_lsn = transactions.commit(commit_lsn, end_lsn)
        self.received_lsn = max(self.received_lsn, safe_lsn)
        visitor.commit(boundary, safe_lsn)
        return commit_lsn

    def _keepalive(self, frame: memoryview, visitor: Visitor) -> None:
        keepalive = protocol.parse_frame(frame)
        assert isinstance(keepalive, protocol.Keepalive), "XLogData is handled before"
        self.server_time_us = keepalive.server_time_us
        self.received_lsn = max(self.received_lsn, keepalive.wal_end)
        self.reply_requested |= keepalive.reply_requested
        safe_lsn = self._transactions.keepalive(keepalive.wal_end)
        if safe_lsn is not None:
            visitor.silence(safe_lsn)


class TransactionBuilder:
    """Places frames inside their transactions, one frame at a time.

    The stream is a sequence of whole transactions: begin, changes, commit, never interleaved, with
    keepalives anywhere between. A begin names the commit LSN and the end LSN before any change comes, so
    that each change is placed as it arrives and nothing is held back.

    State: the open transaction's commit and end LSN, the next operation's offset, and `safe_lsn`.

    1. `safe_lsn` is the LSN that may be confirmed once everything *before* the current frame is durable:
       the end of the last complete transaction, or a later keepalive between transactions.
    2. Inside a transaction `safe_lsn` stands still: confirming more would be confirming a part of it.
    3. A commit moves it to its end LSN.
    4. A keepalive between transactions moves it forward to its `wal_end`, never back. Inside one it moves
       nothing: its `wal_end` is that transaction's own commit LSN.
    5. So `safe_lsn` never decreases, whatever the LSNs of the changes do (they go backwards between
       concurrent transactions).
    """

    __slots__ = ("_commit_lsn", "_end_lsn", "_next_op", "_safe_lsn")

    def __init__(self, *, confirmed_lsn: int) -> None:
        self._safe_lsn = confirmed_lsn
        self._commit_lsn: int | None = None
        self._end_lsn: int | None = None
        self._next_op = 0

    @property
    def safe_lsn(self) -> int:
        """What may be confirmed once everything before the current frame is durable."""
        return self._safe_lsn

    @property
    def in_transaction(self) -> bool:
        """Whether a begin has come without its commit."""
        return self._commit_lsn is not None

    def begin(self, commit_lsn: int, end_lsn: int | None = None) -> None:
        """A transaction starts; its end may be known only when it commits."""
        if self._commit_lsn is not None:
            raise ProtocolViolation(
                f"a transaction begins inside the one that commits at {format_lsn(self._commit_lsn)}"
            )
        if end_lsn is not None and not commit_lsn < end_lsn:
            raise ProtocolViolation(
                f"a transaction commits at {format_lsn(commit_lsn)} and ends before, at {format_lsn(end_lsn)}"
            )
        self._commit_lsn = commit_lsn
        self._end_lsn = end_lsn
        self._next_op = 0

    @property
    def commit_lsn(self) -> int:
        """The open transaction's commit LSN: the `tx_offset` of everything in it."""
        if self._commit_lsn is None:
            raise ProtocolViolation("a change outside a transaction")
        return self._commit_lsn

    def place(self) -> int:
        """The `op_offset` of the open transaction's next operation."""
        if self._commit_lsn is None:
            raise ProtocolViolation("a change outside a transaction")
        op_offset = self._next_op
        self._next_op = op_offset + 2
        return op_offset

    def take_back(self) -> None:
        """The operation placed last comes again."""
        self._next_op -= 2

    def commit(self, commit_lsn: int, end_lsn: int | None = None) -> int:
        """The open transaction is complete; returns the LSN that may be confirmed after all of it."""
        if self._commit_lsn != commit_lsn:
            open_one = "none" if self._commit_lsn is None else format_lsn(self._commit_lsn)
            raise ProtocolViolation(
                f"commit {format_lsn(commit_lsn)} does not fit the open transaction ({open_one})"
            )
        end = self._end_lsn if end_lsn is None else end_lsn
        if end is None:
            raise ProtocolViolation(f"the end of transaction {format_lsn(commit_lsn)} is unknown")
        self._commit_lsn = None
        self._safe_lsn = max(self._safe_lsn, end)
        return self._safe_lsn

    def keepalive(self, wal_end: int) -> int | None:
        """The LSN that a keepalive lets us confirm, or None if it moves nothing."""
        if self._commit_lsn is not None or wal_end <= self._safe_lsn:
            return None
        self._safe_lsn = wal_end
        return wal_end
