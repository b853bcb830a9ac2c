"""WriteOffsets: how far the ChangeLog has seen, and how far it is on disk."""

from __future__ import annotations

from typing import NamedTuple

from penstock.model.log_offset import LAST_BEFORE_REAL, OP_INFINITY, LogOffset


class Mark(NamedTuple):
    """How far everything seen at one moment goes."""

    offset: LogOffset
    txn_offset: LogOffset
    """The newest transaction that was complete at that moment."""


class WriteOffsets:
    """The four offsets of the WriteLoop.

    The problem. Changes are buffered, written and synced in pieces that know nothing of transactions: a piece
    may end in the middle of one. Whoever waits for durability wants to know the last change on disk; whoever
    reads may only go to the end of the last transaction that is on disk as a whole.

    State. Two positions, each at two stages:

    - `last_seen_offset`: the newest change or commit that was appended; it may be in memory only.
    - `last_seen_txn_offset`: the newest commit that was appended.
    - `last_persisted_offset`: the newest change or commit that a sync has covered.
    - `last_persisted_txn_offset`: the newest commit that a sync has covered. **Readers stop here.**

    Rules.
    1. `saw(tx, op)` is one change. Offsets only grow, and a transaction is begun only when the one before it
       is committed: ValueError, and nothing changes.
    2. `committed(tx)` ends a transaction at `(tx, OP_INFINITY)`, behind each of its changes, so that "all of
       transaction tx" has one offset whoever computes it. A transaction may be without changes.
    3. `mark()` is taken together with the bytes that are to be written, `persisted(mark)` comes when a sync
       of those bytes has returned. What was seen in between belongs to the next mark.
    4. The persisted offsets only grow, and never pass the seen ones: RuntimeError.
    5. Before the first change all four stand at LAST_BEFORE_REAL: the log holds real changes only.

    Why readers are safe. `last_persisted_txn_offset` only takes the value of a commit that a mark carried,
    and everything seen before that commit was in the bytes of that mark or of an earlier one.
    """

    __slots__ = ("_in_transaction", "_op", "_persisted", "_tx", "_txn")

    def __init__(self) -> None:
        self._tx, self._op = LAST_BEFORE_REAL
        self._in_transaction = False
        self._txn = LAST_BEFORE_REAL
        self._persisted = Mark(LAST_BEFORE_REAL, LAST_BEFORE_REAL)

    @property
    def last_seen_offset(self) -> LogOffset:
        """The newest change or commit that was appended."""
        return LogOffset(self._tx, self._op)

    @property
    def last_seen_txn_offset(self) -> LogOffset:
        """The newest commit that was appended."""
        return self._txn

    @property
    def last_persisted_offset(self) -> LogOffset:
        """The newest change or commit on disk."""
        return self._persisted.offset

    @property
    def last_persisted_txn_offset(self) -> LogOffset:
        """The newest commit on disk: where readers stop."""
        return self._persisted.txn_offset

    @property
    def all_persisted(self) -> bool:
        """Whether everything seen is on disk."""
        return self._persisted.offset == (self._tx, self._op)

    def saw(self, tx_offset: int, op_offset: int) -> None:
        """Note a change."""
        if self._in_transaction:
            in_order = tx_offset == self._tx and self._op < op_offset < OP_INFINITY
        else:
            in_order = tx_offset > self._tx and 0 <= op_offset < OP_INFINITY
        if not in_order:
            raise self._out_of_order("a change", LogOffset(tx_offset, op_offset))
        self._tx = tx_offset
        self._op = op_offset
        self._in_transaction = True

    def committed(self, tx_offset: int) -> LogOffset:
        """Note a commit; returns its offset."""
        offset = LogOffset(tx_offset, OP_INFINITY)
        in_order = tx_offset == self._tx if self._in_transaction else tx_offset > self._tx
        if not in_order:
            raise self._out_of_order("a commit", offset)
        self._tx, self._op = offset
        self._in_transaction = False
        self._txn = offset
        return offset

    def mark(self) -> Mark:
        """How far everything seen until now goes."""
        return Mark(self.last_seen_offset, self._txn)

    def persisted(self, mark: Mark) -> None:
        """A sync has covered everything up to a mark."""
        if not (
            self._persisted.offset <= mark.offset <= self.last_seen_offset
            and self._persisted.txn_offset <= mark.txn_offset <= mark.offset
        ):
            raise RuntimeError(f"persisted {mark} between {self._persisted} and {self.mark()}")
        self._persisted = mark

    def _out_of_order(self, what: str, offset: LogOffset) -> ValueError:
        where = "in the open transaction" if self._in_transaction else "after the commit"
        return ValueError(f"{what} at {offset} does not fit {where} at {self.last_seen_offset}")
