"""SlotMemory: what this process knows of its slot, so that a hole in the stream is noticed."""

from __future__ import annotations


class SlotMemory:
    """Remembers the highest position at which the slot was seen.

    A slot that has to be created is ordinary at the first start. If this process has seen the slot before,
    as leader or while standing by, then somebody dropped it or a failover went to a server without it, and
    the changes between the last known position and the new slot's start are in no stream: a GAP.
    """

    def __init__(self) -> None:
        self._last_known_lsn: int | None = None

    def saw(self, lsn: int) -> None:
        """The slot exists and stands at this position, or we have confirmed it."""
        if self._last_known_lsn is None or lsn > self._last_known_lsn:
            self._last_known_lsn = lsn

    def created(self, start_lsn: int) -> int | None:
        """The slot was missing and now starts here; returns the last known LSN if that leaves a gap."""
        before = self._last_known_lsn
        self._last_known_lsn = start_lsn
        return before
