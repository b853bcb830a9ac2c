"""TransactionBuilder: gives every frame its LogOffset, in the order of the stream."""

from __future__ import annotations

from penstock.errors import ProtocolViolation
from penstock.model.lsn import format_lsn


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
