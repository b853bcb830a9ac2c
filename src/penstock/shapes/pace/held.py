"""Held: what each shape's table holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.model.log_offset import OP_INFINITY, LogOffset


def whole(tx_offset: int) -> LogOffset:
    """The position behind everything of a transaction."""
    return LogOffset(tx_offset, OP_INFINITY)


class Held(Mapping[str, LogOffset]):
    """What the tables of one leadership hold: kept here, and nowhere else. Touches memory only.

    Three things are decided by it, so a shape has a place on three axes:

    - `read_back`: what a look into the table has shown, at the start, after a flush or after a copy. Nothing
      else may go to the registry.
    - `passed`, never below that: the shape needs nothing at or below it from the *log*. Its table has it, or
      nothing of it was for the shape. No commit says the latter: a restart begins where the table is.
    - `held[shape]`: nothing at or below it has to come into the log *from the stream*. The table had it at
      the start, or the copy will have it that has begun; should that fail, the next one has a later cut.

    None of these is the FlushTracker's `last_flushed`. That counts a shape that no transaction has touched
    as flushed up to the newest one, and a pinned one where the frontier was, whatever their tables hold.

    The Ledger writes it, and the FlushPlan what its jobs have passed; the Collector reads it.
    """

    __slots__ = ("_covered", "_passed", "_read_back")

    def __init__(self) -> None:
        self._read_back: dict[str, LogOffset] = {}
        self._passed: dict[str, LogOffset] = {}
        self._covered: dict[str, LogOffset] = {}

    def __getitem__(self, shape: str) -> LogOffset:
        return self._covered[shape]

    def __iter__(self) -> Iterator[str]:
        return iter(self._covered)

    def __len__(self) -> int:
        return len(self._covered)

    def passed(self, shape: str) -> LogOffset:
        """The shape needs nothing at or below this from the log."""
        return self._passed[shape]

    def read_back(self, shape: str) -> LogOffset:
        """What a look into the shape's table has shown."""
        return self._read_back[shape]

    def start(self, shape: str, offset: LogOffset) -> None:
        """A shape goes on from what its table holds."""
        self._read_back[shape] = self._passed[shape] = self._covered[shape] = offset

    def skip(self, shape: str, offset: LogOffset) -> None:
        """Nothing up to here is for the shape but what its table has, as the registry knows from before."""
        self._passed[shape] = max(self._passed[shape], offset)
        self._covered[shape] = max(self._covered[shape], offset)

    def pass_over(self, shape: str, offset: LogOffset) -> bool:
        """Nothing up to here is for the shape but what its table has; returns whether that is news."""
        if offset <= self._passed[shape]:
            return False
        self._passed[shape] = offset
        return True

    def flushed(self, shape: str, offset: LogOffset) -> None:
        """A flush was read back."""
        self._read_back[shape] = max(self._read_back[shape], offset)

    def begin_copy(self, shape: str, cut_lsn: int) -> None:
        """A copy has its cut: transactions that commit before it will be in the table."""
        self._covered[shape] = max(self._covered[shape], whole(cut_lsn - 1))

    def copied(self, shape: str, cut_lsn: int) -> None:
        """The copy was read back: the table holds that, and nothing of what it held before."""
        self._read_back[shape] = self._passed[shape] = whole(cut_lsn - 1)
