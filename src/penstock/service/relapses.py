"""Relapses: failures in a row, over the leaderships in which they happened."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import DecodingFailed, PenstockError, ProtocolViolation

SETTLED_S: Final = 60.0
"""A leadership that lasted so long was no failed attempt, even if it had nothing to confirm."""
NEEDS_A_PERSON: Final = 3
"""So often the same error at the same place is no accident."""


class Relapse(NamedTuple):
    """What a failure is, seen with those before it."""

    failures: int
    """In a row without headway, this one included."""
    needs_a_person: bool
    """The stream itself fails again and again at one place: no retry helps."""
    longest_s: float
    """The longest of the failed leaderships in this row."""


class Relapses:
    """Counts failures across leaderships. Knows no clock.

    The problem. A leadership that begins to stream looks like a success, and so it must not wipe out the
    count of failures: an error that comes back at the same place would be retried for ever at full speed,
    and each short leadership in between would look well.

    State: the highest LSN ever confirmed, the failures since it moved, and the last failure of the stream
    itself with the place at which it happened, and how often.

    1. Headway is an LSN confirmed above all before. It ends the row: the next failure is the first again.
    2. A leadership of at least SETTLED_S ends the row as well, unless the stream itself failed: an idle
       database confirms nothing, and a line may break once a week.
    3. The stream itself fails when the server can't decode, when a frame isn't understood, or when we have
       a bug. NEEDS_A_PERSON such failures of one kind, with the same LSN confirmed, need a person.
    4. That another leads ends the row, but not the count of 3: two processes that fail at one place in turn
       meet each other again and again. Only a slot that has left that place behind ends it.
    """

    def __init__(self) -> None:
        self._furthest = -1
        self._failures = 0
        self._longest_s = 0.0
        self._stuck: tuple[type[BaseException], int] | None = None
        self._stuck_times = 0

    def failed(self, error: BaseException, *, confirmed_lsn: int, led_s: float) -> Relapse:
        """An attempt to lead ended like this; `confirmed_lsn` is 0 and `led_s` too if it never streamed."""
        in_stream = isinstance(error, DecodingFailed | ProtocolViolation) or not isinstance(
            error, PenstockError
        )
        if self._got_further(confirmed_lsn) or (led_s >= SETTLED_S and not in_stream):
            self._start_again()
        self._failures += 1
        self._longest_s = max(self._longest_s, led_s)
        if in_stream and led_s > 0:
            place = (type(error), confirmed_lsn)
            self._stuck_times = self._stuck_times + 1 if place == self._stuck else 1
            self._stuck = place
        return Relapse(self._failures, in_stream and self._stuck_times >= NEEDS_A_PERSON, self._longest_s)

    def succeeded(self, *, confirmed_lsn: int) -> None:
        """An attempt ended as it should: a stop came."""
        self._got_further(confirmed_lsn)
        self._start_again()
        self._forget_place()

    def stood_by(self, *, slot_lsn: int) -> None:
        """Another leads; the slot was confirmed so far, by whomever."""
        self._start_again()
        if self._stuck is not None and slot_lsn > self._stuck[1]:
            self._forget_place()

    def forget_positions(self) -> None:
        """The server has another history: its LSNs can't be compared with those before."""
        self._furthest = -1

    def _got_further(self, confirmed_lsn: int) -> bool:
        further = confirmed_lsn > self._furthest
        self._furthest = max(self._furthest, confirmed_lsn)
        return further and confirmed_lsn > 0

    def _start_again(self) -> None:
        self._failures = 0
        self._longest_s = 0.0

    def _forget_place(self) -> None:
        self._stuck = None
        self._stuck_times = 0
