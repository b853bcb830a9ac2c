"""When the note is written: before Postgres is told, and not for its own sake."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.noted_frontier import (
    FIRST_IDLE_S,
    LONGEST_IDLE_S,
    MUCH_WAL_BYTES,
    NOTE_EVERY_S,
    NotePace,
)


def noted(lsn: int = 100, *, own_end: int = 150, accepted: int = 1, now: float = 10.0) -> NotePace:
    pace = NotePace(0)
    pace.written(lsn, own_end=own_end, accepted=accepted, now=now)
    return pace


def test_the_first_move_is_noted_at_once() -> None:
    assert NotePace(100).due_at(101, accepted=1) == float("-inf")


def test_nothing_is_due_while_the_frontier_stands() -> None:
    assert noted(100).due_at(100, accepted=9) is None


def test_accepted_records_are_noted_at_a_steady_pace() -> None:
    assert noted(now=10.0).due_at(101, accepted=2) == 10.0 + NOTE_EVERY_S


def test_the_wal_of_the_note_itself_is_not_worth_another() -> None:
    assert noted(100, own_end=150).due_at(150, accepted=1) is None


def test_other_wal_is_noted_slowly_and_ever_more_so() -> None:
    pace, now, waits = NotePace(0), 0.0, []
    for lsn in range(1, 20):
        due = pace.due_at(lsn * 1_000, accepted=0)
        if due is not None and due > now:
            waits.append(due - now)
            now = due
        pace.written(lsn * 1_000, own_end=lsn * 1_000 + 50, accepted=0, now=now)

    assert waits[:2] == [2 * FIRST_IDLE_S, 4 * FIRST_IDLE_S]
    assert waits[-1] == LONGEST_IDLE_S


def test_much_other_wal_is_noted_soon() -> None:
    assert noted(100, now=10.0).due_at(100 + MUCH_WAL_BYTES, accepted=1) == 10.0 + NOTE_EVERY_S


def test_a_backlog_of_filtered_wal_is_noted_on_its_way() -> None:
    """The server's own end is far ahead: what lies before it isn't the note's own."""
    pace = noted(100, own_end=10 << 30, now=10.0)

    assert pace.due_at(100 + MUCH_WAL_BYTES, accepted=1) == 10.0 + NOTE_EVERY_S


def test_a_note_that_takes_long_is_written_less_often() -> None:
    pace = NotePace(0)
    pace.written(100, own_end=150, accepted=1, now=10.0, took_s=0.2)

    assert pace.due_at(101, accepted=2) == 14.0


def test_accepted_records_that_are_not_noted_are_behind() -> None:
    pace = noted(100, accepted=1)

    assert not pace.is_behind(500, accepted=1), "nothing but keepalives"
    assert pace.is_behind(500, accepted=2)
    assert not pace.is_behind(100, accepted=2), "a part of a transaction"


def test_records_make_the_pace_quick_again() -> None:
    pace = NotePace(0)
    for lsn in (1_000, 2_000, 3_000):
        pace.written(lsn, own_end=lsn + 10, accepted=0, now=0.0)
    pace.written(4_000, own_end=4_010, accepted=1, now=5.0)

    assert pace.due_at(5_000, accepted=1) == 5.0 + FIRST_IDLE_S


@given(steps=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 3), st.floats(0, 30)), max_size=60))
def test_no_two_notes_are_closer_than_the_pace_and_none_goes_back(
    steps: list[tuple[int, int, float]],
) -> None:
    pace, now, frontier, accepted = NotePace(0), 0.0, 0, 0
    written: list[tuple[float, int]] = []
    for moved, records, passed in steps:
        frontier, accepted, now = frontier + moved, accepted + records, now + passed
        due = pace.due_at(frontier, accepted)
        if due is not None and due <= now:
            pace.written(frontier, own_end=frontier + 300, accepted=accepted, now=now)
            written.append((now, frontier))
    for (earlier, low), (later, high) in itertools.pairwise(written):
        assert later - earlier >= NOTE_EVERY_S
        assert high > low
