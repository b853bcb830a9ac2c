"""The prefix of a marked stream's records: the position, and the leadership that sent it."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.model.stream_position import History, StreamPosition, operation

_EXAMPLE: Final = b'{"pos":"%b","by":"%b",' % (str(StreamPosition(0, 0)).encode(), b"0" * 12)
PREFIX_BYTES: Final = len(_EXAMPLE)

_SMALL: Final = 2048
"""Below this the texts of op_offsets are kept."""

_validate = msgspec.json.Decoder(msgspec.Raw).decode


class MarkPrefix:
    """Puts `pos` and `by` before the first member of a payload. All prefixes have the same length."""

    def __init__(self, history: History, by: str) -> None:
        self._history = history
        self._since = max(history.switch_points.values(), default=0)
        """Whatever begins at or behind it is of this timeline; which one comes before is seldom asked."""
        self._tail = b'","by":"%b",' % by.encode()
        self._small = {offset: self._rest(offset) for offset in range(-1, _SMALL)}
        self._commit_lsn = -1
        self._head = b""

    def put(self, payload: bytes, commit_lsn: int, op_offset: int) -> bytes | None:
        """The payload with its prefix; None if it isn't a JSON object that has members."""
        # Written out: this is the path of every change.
        if payload[:2] != b'{"':
            return None
        try:
            _validate(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if commit_lsn != self._commit_lsn:
            history = self._history
            timeline = history.timeline if commit_lsn >= self._since else history.of_record(commit_lsn)
            self._commit_lsn, self._head = commit_lsn, b'{"pos":"%08X.%016X.' % (timeline, commit_lsn)
        rest = self._small.get(op_offset) or self._rest(op_offset)
        # The brace it begins with, and no other: that copies a payload once.
        return payload.replace(b"{", self._head + rest, 1)

    def _rest(self, op_offset: int) -> bytes:
        return b"%012X%b" % (operation(op_offset), self._tail)


def unmarked(data: bytes) -> bytes:
    """The payload of a record, as it was before it got its prefix."""
    return b"{" + data[PREFIX_BYTES:]
