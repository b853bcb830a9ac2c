"""LogOffset: THE position of a change inside Penstock."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.model.lsn import format_lsn

OP_INFINITY: Final = 2**63 - 1
"""An op_offset behind every real one; fits a signed 64-bit column."""


class LogOffset(NamedTuple):
    """`(tx_offset, op_offset)`: the transaction's commit LSN, and the operation's place in it.

    Ordered as a tuple. `op_offset` is twice the operation's index in its transaction, so that the insert
    half of a split key change finds room at `op_offset + 1`.
    """

    tx_offset: int
    op_offset: int

    def __str__(self) -> str:
        if self.tx_offset < 0:
            return "before-all"
        op = "inf" if self.op_offset == OP_INFINITY else str(self.op_offset)
        return f"{format_lsn(self.tx_offset)}:{op}"


BEFORE_ALL: Final = LogOffset(-1, 0)
"""Before anything."""
FIRST: Final = LogOffset(0, 0)
"""The start of the snapshot region."""
LAST_BEFORE_REAL: Final = LogOffset(0, OP_INFINITY)
"""The end of the snapshot region; real changes follow."""
