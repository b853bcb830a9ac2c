"""NotedFrontier: Postgres is told of an LSN only when the slot's note has it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.postgres.slot.note import NoteImpossible, NoteStore, NoteUnwritten, SlotNote
from penstock.postgres.stream.feedback import Frontier

NOTE_EVERY_S: Final = 0.5
"""At most so often, while records are published."""
FIRST_IDLE_S: Final = 2.0
LONGEST_IDLE_S: Final = 600.0
MUCH_WAL_BYTES: Final = 1 << 20
LONGEST_RETRY_S: Final = 30.0
LONGEST_HOLD_S: Final = 300.0
"""So long the frontier waits for a note that can't be written."""
_LOOK_EVERY_S: Final = 1.0
_SHARE: Final = 20.0
"""Of the time, at most one part in so many goes into writing notes."""


class NotePace:
    """When the note is to be written again. Knows no clock.

    The problem. The note has to be written before Postgres is told, and writing it is itself a transaction,
    which moves the frontier: an idle database would be kept busy for ever by notes about notes.

    1. If records were accepted since the last note, the next one is due after NOTE_EVERY_S.
    2. If not, MUCH_WAL_BYTES are worth a note as soon; less only if it isn't the note's own WAL (`own_end` is
       where WAL stood behind it), after a pause that doubles from FIRST_IDLE_S to LONGEST_IDLE_S, until
       records are accepted again.
    3. A note that takes long to write is written less often: dead versions of it, which an old slot or
       transaction keeps from being vacuumed, make each one slower.
    4. A note that can't be written is tried again after a pause that doubles from NOTE_EVERY_S to
       LONGEST_RETRY_S. Meanwhile Postgres is told no more than the last one says.
    5. If waiting doesn't help, or lasts longer than LONGEST_HOLD_S, Postgres is told without a note until one
       is written again: a slot that stands still keeps WAL and holds up vacuum, and a server that has run
       out of disk or of transaction ids could never write one. Whoever leads next may then say a gap that
       is none. While one is being written, Postgres is told no more than that one says.
    """

    def __init__(self, noted_lsn: int) -> None:
        self._noted_lsn = noted_lsn
        self._noted_at = float("-inf")
        self._own_end = noted_lsn
        self._accepted = 0
        self._idle_s = FIRST_IDLE_S
        self._every_s = NOTE_EVERY_S
        self._failures = 0
        self._failing_since = 0.0
        self._retry_at = 0.0
        self._is_excused = False
        self._trying_lsn: int | None = None

    @property
    def noted_lsn(self) -> int:
        """What the note says."""
        return self._noted_lsn

    @property
    def is_failing(self) -> bool:
        """Whether the last try to write it failed."""
        return self._failures > 0

    @property
    def is_excused(self) -> bool:
        """Whether Postgres is told without a note."""
        return self._is_excused

    def confirmable(self, frontier_lsn: int) -> int:
        """How much of the frontier Postgres may be told."""
        if not self._is_excused:
            return min(frontier_lsn, self._noted_lsn)
        if self._trying_lsn is None:
            return frontier_lsn
        return min(frontier_lsn, max(self._noted_lsn, self._trying_lsn))

    def due_at(self, frontier_lsn: int, accepted: int) -> float | None:
        """When the frontier should be noted; None if nothing is to be noted. `accepted`: records so far."""
        if frontier_lsn <= self._noted_lsn:
            return None
        if self._failures:
            return self._retry_at
        if accepted != self._accepted:
            return self._noted_at + self._every_s
        if frontier_lsn - self._noted_lsn >= MUCH_WAL_BYTES:
            return self._noted_at + self._every_s
        if frontier_lsn <= self._own_end:
            return None
        return self._noted_at + self._idle_s

    def is_behind(self, frontier_lsn: int, accepted: int) -> bool:
        """Whether accepted records wait to be noted."""
        return not self._is_excused and frontier_lsn > self._noted_lsn and accepted != self._accepted

    def trying(self, lsn: int) -> None:
        """A note with this LSN is being written."""
        self._trying_lsn = lsn

    def failed(self, *, in_vain: bool, now: float) -> None:
        """It couldn't be; `in_vain`: and that isn't a matter of waiting."""
        self._trying_lsn = None
        if not self._failures:
            self._failing_since = now
        self._retry_at = now + min(LONGEST_RETRY_S, NOTE_EVERY_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        if in_vain or now - self._failing_since >= LONGEST_HOLD_S:
            self._is_excused = True

    def written(self, lsn: int, *, own_end: int, accepted: int, now: float, took_s: float = 0.0) -> None:
        """The note now has this LSN, after `took_s`; WAL stood at `own_end` behind it."""
        self._every_s = max(NOTE_EVERY_S, _SHARE * took_s)
        changed = accepted != self._accepted
        self._idle_s = FIRST_IDLE_S if changed else min(LONGEST_IDLE_S, 2 * self._idle_s)
        self._noted_lsn, self._own_end = lsn, own_end
        self._accepted, self._noted_at = accepted, now
        self._failures, self._is_excused, self._trying_lsn = 0, False, None


class NoteTrouble(NamedTuple):
    """The note can't be written."""

    why: str
    is_held: bool
    """Whether the frontier waits for it."""


class NotedFrontier:
    """The frontier, held back until it is noted. Without a store it is the tracker's own."""

    def __init__(
        self,
        tracker: Frontier,
        *,
        store: NoteStore | None,
        note: SlotNote,
        accepted: Callable[[], int],
        on_moved: Callable[[], None],
    ) -> None:
        """`accepted`: how many records were accepted so far; `on_moved`: more may be confirmed."""
        self._tracker = tracker
        self._store = store
        self._note = note
        self._accepted = accepted
        self._on_moved = on_moved
        self._pace = NotePace(note.confirmed_lsn)
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._tell: Callable[[NoteTrouble | None], None] = lambda _: None

    @property
    def frontier_lsn(self) -> int:
        """The highest LSN that may be confirmed."""
        frontier = self._tracker.frontier_lsn
        return frontier if self._store is None else self._pace.confirmable(frontier)

    @property
    def is_behind(self) -> bool:
        """Whether accepted records wait to be noted."""
        return self._store is not None and self._pace.is_behind(self._tracker.frontier_lsn, self._accepted())

    def on_trouble(self, tell: Callable[[NoteTrouble | None], None]) -> None:
        """Call this whenever the note can't be written, and with None when it can be again."""
        self._tell = tell

    def moved(self) -> None:
        """The tracker's frontier may have moved."""
        self._wake.set()

    async def run(self) -> None:
        """Keep the note up with the frontier until cancelled; without a store there is nothing to do."""
        while self._store is not None:
            due_at = self._pace.due_at(self._tracker.frontier_lsn, self._accepted())
            now = time.monotonic()
            if due_at is not None and due_at <= now:
                await self.catch_up()
                continue
            wait_s = _LOOK_EVERY_S if due_at is None else min(_LOOK_EVERY_S, due_at - now)
            self._wake.clear()
            try:
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def catch_up(self) -> None:
        """Note all of the frontier, whatever the pace. A note that can't be written is told, not raised."""
        if self._store is None:
            return
        async with self._turn:
            lsn, accepted = self._tracker.frontier_lsn, self._accepted()
            if lsn <= self._pace.noted_lsn:
                return
            was_failing, began_at = self._pace.is_failing, time.monotonic()
            self._pace.trying(lsn)
            try:
                own_end = await self._store.write(self._note._replace(confirmed_lsn=lsn))
            except NoteUnwritten as error:
                self._pace.failed(in_vain=isinstance(error, NoteImpossible), now=time.monotonic())
                self._tell(NoteTrouble(str(error), is_held=not self._pace.is_excused))
            else:
                now = time.monotonic()
                self._pace.written(lsn, own_end=own_end, accepted=accepted, now=now, took_s=now - began_at)
                if was_failing:
                    self._tell(None)
        self._on_moved()
