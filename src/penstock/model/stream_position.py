"""StreamPosition: where a record of a marked stream stands, as text that sorts as positions do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

from penstock.model.log_offset import OP_INFINITY
from penstock.model.lsn import format_lsn

COMMIT_OPERATION: Final = 0xFFFF_FFFF_FFFF
"""The operation of a commit: behind every change."""
OPERATION_AT: Final = 26
"""Where it begins in a position's text; what stands before names the transaction."""
COMMIT_LSN: Final = slice(9, 25)
"""Where that is in a position's text."""

_TEXT: Final = re.compile(r"[0-9A-F]{8}\.[0-9A-F]{16}\.[0-9A-F]{12}", re.ASCII)


class StreamPosition(NamedTuple):
    """Timeline, commit LSN and operation. A *boundary* has operation 0: it stands before its transaction."""

    timeline: int
    commit_lsn: int
    operation: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` has written; ValueError for anything else."""
        if not _TEXT.fullmatch(text):
            raise ValueError(f"not a position of a marked stream: {text!r}")
        return cls(*(int(part, 16) for part in text.split(".")))

    def __str__(self) -> str:
        return f"{self.timeline:08X}.{self.commit_lsn:016X}.{self.operation:012X}"

    def described(self) -> str:
        """For people."""
        return f"{format_lsn(self.commit_lsn)} of timeline {self.timeline}"


def operation(op_offset: int) -> int:
    """The operation of a change with this `op_offset`; begin (-1) and commit (infinity) included."""
    return COMMIT_OPERATION if op_offset == OP_INFINITY else op_offset + 1


class History(NamedTuple):
    """A server's timeline, and where each one before it was left."""

    timeline: int
    switch_points: Mapping[int, int]

    def of_record(self, lsn: int) -> int:
        """The timeline in which a WAL record that begins here was written."""
        return min((old for old, switch in self.switch_points.items() if lsn < switch), default=self.timeline)

    def boundary(self, lsn: int) -> StreamPosition:
        """The end of everything before this LSN.

        At a switch point that is the end of the old timeline: who has applied all of it is not behind.
        """
        ended = (old for old, switch in self.switch_points.items() if lsn <= switch)
        return StreamPosition(min(ended, default=self.timeline), lsn)

    def has(self, boundary: StreamPosition) -> bool:
        """Whether everything before a boundary has happened here."""
        left = self.switch_points.get(boundary.timeline)
        return boundary.timeline == self.timeline if left is None else boundary.commit_lsn <= left
