"""The prefix of a marked stream's records: the position, and the leadership that sent it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import msgspec

from penstock.model.stream_position import History, StreamPosition, operation

_EXAMPLE: Final = b'{"pos":"%b","by":"%b",' % (str(StreamPosition(0, 0)).encode(), b"0" * 12)
PREFIX_BYTES: Final = len(_EXAMPLE)

_PAGE: Final = 256
"""So many operations differ in their last two digits only."""

validate = msgspec.json.Decoder(msgspec.Raw).decode
"""Raises INVALID for what isn't JSON, and makes nothing of it."""
INVALID: Final = (msgspec.DecodeError, UnicodeDecodeError)
_OPENING: Final = b'{"'


def takes_prefix(payload: bytes) -> bool:
    """Whether it is a JSON object that has members: nothing else can have others before them."""
    if not payload.startswith(_OPENING):
        return False
    try:
        validate(payload)
    except INVALID:
        return False
    return True


def marked(payload: bytes, prefix: bytes) -> bytes:
    """A payload that takes one, with its prefix."""
    # The brace it begins with, and no other: that copies a payload once.
    return payload.replace(b"{", prefix, 1)


class Prefixed(Protocol):
    """A record on its way into a marked stream."""

    @property
    def commit_lsn(self) -> int:
        """Its transaction."""

    @property
    def op_offset(self) -> int:
        """Its place in that."""

    prefix: bytes


class MarkPrefix:
    """Makes prefixes: `pos` and `by`, to stand before the first member of a payload. All have one length.

    The prefixes of _PAGE neighbours in a transaction are a page: they begin alike. One page is open.
    """

    def __init__(self, history: History, by: str) -> None:
        self._history = history
        self._since = max(history.switch_points.values(), default=0)
        """Whatever begins at or behind it is of this timeline; which one comes before is seldom asked."""
        tail = b'","by":"%b",' % by.encode()
        # Few enough to stay in the processor's cache, for transactions of any length.
        self._endings = [b"%02X%b" % (line, tail) for line in range(_PAGE)]
        """What the prefixes of a page end with."""
        self._commit_lsn = -1
        """The transaction whose page is open."""
        self._page_at = 0
        """The op_offset at which that begins."""
        self._head = b""
        """What its prefixes begin with."""

    def at(self, commit_lsn: int, op_offset: int) -> bytes:
        """The prefix of a record that stands there."""
        line = op_offset - self._page_at
        if commit_lsn != self._commit_lsn or not 0 <= line < _PAGE:
            line = self._turn_to(commit_lsn, op_offset)
        return self._head + self._endings[line]

    def give(self, records: Iterable[Prefixed]) -> None:
        """Give each record its prefix."""
        # `at`, written out: this is the path of every change.
        commit_lsn, page_at, head, endings = self._commit_lsn, self._page_at, self._head, self._endings
        for record in records:
            op_offset = record.op_offset
            line = op_offset - page_at
            if record.commit_lsn != commit_lsn or not 0 <= line < _PAGE:
                line = self._turn_to(record.commit_lsn, op_offset)
                commit_lsn, page_at, head = self._commit_lsn, self._page_at, self._head
            record.prefix = head + endings[line]

    def put(self, payload: bytes, commit_lsn: int, op_offset: int) -> bytes | None:
        """The payload with its prefix; None if it takes none."""
        return marked(payload, self.at(commit_lsn, op_offset)) if takes_prefix(payload) else None

    def _turn_to(self, commit_lsn: int, op_offset: int) -> int:
        """Open the page of an operation; returns its line there."""
        history = self._history
        timeline = history.timeline if commit_lsn >= self._since else history.of_record(commit_lsn)
        page, line = divmod(operation(op_offset), _PAGE)
        self._commit_lsn, self._page_at = commit_lsn, op_offset - line
        self._head = b'{"pos":"%08X.%016X.%010X' % (timeline, commit_lsn, page)
        return line


def unmarked(data: bytes) -> bytes:
    """The payload of a record, as it was before it got its prefix."""
    return b"{" + data[PREFIX_BYTES:]
