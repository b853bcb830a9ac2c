"""Positions: which positions of a marked stream were seen, in little memory."""

from __future__ import annotations

from typing import Final

from penstock.model.stream_position import COMMIT_OPERATION, OPERATION_AT

_TRANSACTION_ENDS: Final = OPERATION_AT - 1
"""Timeline and commit LSN stand before this byte of a position."""


class Positions:
    """A set of positions. A transaction of a million changes takes an eighth of a megabyte.

    The operations of changes are 1, 3, 5, …: each has a bit. Begin and commit records stand apart.
    """

    def __init__(self) -> None:
        self._bits: dict[bytes, bytearray] = {}
        self._ends: set[bytes] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, position: bytes) -> bool:
        """Whether it is new."""
        operation = int(position[OPERATION_AT:], 16)
        if operation % 2 == 0 or operation == COMMIT_OPERATION:
            is_new = position not in self._ends
            self._ends.add(position)
        else:
            is_new = self._set(position[:_TRANSACTION_ENDS], operation >> 1)
        self._count += is_new
        return is_new

    def _set(self, transaction: bytes, place: int) -> bool:
        bits = self._bits.get(transaction)
        if bits is None:
            bits = self._bits[transaction] = bytearray()
        index, mask = place >> 3, 1 << (place & 7)
        if index >= len(bits):
            bits.extend(bytes(max(index + 1 - len(bits), len(bits))))
        is_new = not bits[index] & mask
        bits[index] |= mask
        return is_new
