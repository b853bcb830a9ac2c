"""CommitTimes: when was the oldest change committed that is not delivered yet?"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

MOST_GROUPS: Final = 4096
FINEST_S: Final = 0.1


class Undelivered(NamedTuple):
    """A transaction, or several that were committed at about the same time."""

    commit_lsn: int
    """The last one's. They are delivered when the frontier is above it."""
    committed_at: float
    """The first one's, in Unix seconds on the server's clock."""


class CommitTimes:
    """Commit times of the transactions that were read, in bounded memory. Knows no clock.

    The problem. How late we are is told by the commit time of the oldest change that isn't delivered. The
    frontier may stand still while a million transactions are read behind it.

    State: groups of transactions, oldest first, and the grain: how far the first of a group and one that
    joins it may be apart.

    1. `note` takes transactions in the order of the stream.
    2. `oldest` forgets the groups that the frontier has passed, and gives the first one that is left.
    3. Beyond MOST_GROUPS the grain doubles and neighbours are put together. It is fine again when nothing is
       left.
    4. The answer is never later than the truth where commit times ascend, and less than two grains earlier.
    """

    __slots__ = ("_grain_s", "_groups", "_most")

    def __init__(self, most_groups: int = MOST_GROUPS) -> None:
        self._most = most_groups
        self._grain_s = FINEST_S
        self._groups: deque[_Group] = deque()

    def __len__(self) -> int:
        """How many groups it holds."""
        return len(self._groups)

    def note(self, commit_lsn: int, committed_at: float) -> None:
        """A transaction begins."""
        groups = self._groups
        # This is on the path of every transaction; nearly all of them join the last group.
        if groups and committed_at - (last := groups[-1]).committed_at < self._grain_s:
            last.add(commit_lsn, committed_at)
            return
        groups.append(_Group(commit_lsn, committed_at))
        while len(self._groups) > self._most:
            self._coarsen()

    def oldest(self, frontier_lsn: int) -> Undelivered | None:
        """The oldest that is not delivered; None if all are."""
        groups = self._groups
        while groups and groups[0].commit_lsn < frontier_lsn:
            groups.popleft()
        if not groups:
            self._grain_s = FINEST_S
            return None
        return Undelivered(groups[0].commit_lsn, groups[0].committed_at)

    def _coarsen(self) -> None:
        self._grain_s *= 2
        fewer: deque[_Group] = deque()
        for group in self._groups:
            if fewer and group.committed_at - fewer[-1].committed_at < self._grain_s:
                fewer[-1].add(group.commit_lsn, group.committed_at)
            else:
                fewer.append(group)
        self._groups = fewer


class _Group:
    __slots__ = ("commit_lsn", "committed_at")

    def __init__(self, commit_lsn: int, committed_at: float) -> None:
        self.commit_lsn = commit_lsn
        self.committed_at = committed_at

    def add(self, commit_lsn: int, committed_at: float) -> None:
        self.commit_lsn = commit_lsn
        if committed_at < self.committed_at:
            self.committed_at = committed_at
