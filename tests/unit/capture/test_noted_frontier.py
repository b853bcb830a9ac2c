"""When the note is written: before Postgres is told, and not for its own sake."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.noted_frontier import (
    FIRST_IDLE_S,
    LONGEST_HOLD_S,
    LONGEST_IDLE_S,
    LONGEST_RETRY_S,
    MUCH_WAL_BYTES,
    NOTE_EVERY_S,
    NotedFrontier,
    NotePace,
    NoteTrouble,
)
from penstock.errors import LockLost
from penstock.postgres.slot.note import NoteImpossible, NoteUnwritten, SlotNote


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


class TestANoteThatCantBeWritten:
    """Rules 4 and 5 of NotePace."""

    def test_is_tried_again_later_and_later(self) -> None:
        pace, now, waits = noted(100, now=10.0), 10.0, []
        for _ in range(9):
            pace.failed(in_vain=False, now=now)
            due = pace.due_at(101, accepted=2)
            assert due is not None
            waits.append(due - now)
            now = due
        assert waits == [0.5, 1, 2, 4, 8, 16, LONGEST_RETRY_S, LONGEST_RETRY_S, LONGEST_RETRY_S]

    def test_holds_the_frontier_and_is_pending(self) -> None:
        pace = noted(100)
        pace.trying(200)
        pace.failed(in_vain=False, now=10.0)

        assert pace.confirmable(200) == 100
        assert pace.is_behind(200, accepted=2)

    @pytest.mark.parametrize(
        ("in_vain", "lasts_s", "excused"),
        [(True, 0.0, True), (False, LONGEST_HOLD_S - 1, False), (False, LONGEST_HOLD_S, True)],
    )
    def test_is_done_without_if_waiting_is_no_use(self, in_vain: bool, lasts_s: float, excused: bool) -> None:
        pace = noted(100)
        pace.failed(in_vain=False, now=10.0)
        pace.failed(in_vain=in_vain, now=10.0 + lasts_s)

        assert pace.is_excused is excused
        assert pace.confirmable(200) == (200 if excused else 100)
        assert pace.is_behind(200, accepted=2) is not excused

    def test_is_not_overtaken_while_it_is_tried_again(self) -> None:
        """Or it would be behind the slot, once it is written: a gap for who leads next."""
        pace = noted(100)
        pace.failed(in_vain=True, now=10.0)
        pace.trying(200)
        assert pace.confirmable(300) == 200

        pace.failed(in_vain=False, now=11.0)
        assert pace.confirmable(300) == 300, "it is still in vain"

        pace.trying(300)
        pace.written(300, own_end=350, accepted=5, now=12.0)
        assert pace.confirmable(400) == 300
        assert not pace.is_failing
        assert pace.due_at(400, accepted=6) == 12.0 + NOTE_EVERY_S


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 5_000), st.floats(0, 100), st.sampled_from(["well", "late", "in vain"])),
        max_size=60,
    )
)
def test_what_is_confirmed_without_a_note_is_in_the_next_one(steps: list[tuple[int, float, str]]) -> None:
    pace, now, frontier, accepted, told = NotePace(0), 0.0, 0, 0, 0
    for moved, passed, outcome in steps:
        frontier, accepted, now = frontier + moved, accepted + 1, now + passed
        told = max(told, pace.confirmable(frontier))
        due = pace.due_at(frontier, accepted)
        if due is None or due > now:
            continue
        noted_lsn = frontier
        pace.trying(noted_lsn)
        frontier += moved
        told = max(told, pace.confirmable(frontier))
        if outcome == "well":
            pace.written(noted_lsn, own_end=noted_lsn, accepted=accepted, now=now)
            assert told <= noted_lsn
        else:
            pace.failed(in_vain=outcome == "in vain", now=now)
        assert pace.is_excused or pace.confirmable(frontier) <= pace.noted_lsn


class Store:
    """Writes as it is told to."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.written: list[int] = []

    async def write(self, note: SlotNote) -> int:
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        self.written.append(note.confirmed_lsn)
        return note.confirmed_lsn


class Tracker:
    frontier_lsn = 100


async def test_trouble_is_told_and_its_end_too_and_no_leadership_ends_of_it() -> None:
    store: Any = Store(NoteUnwritten("locked"), NoteImpossible("disk full"), None, None)
    tracker = Tracker()
    told: list[NoteTrouble | None] = []
    confirmed: list[int] = []
    frontier = NotedFrontier(
        tracker,
        store=store,
        note=SlotNote("7", 1, 42),
        accepted=lambda: 1,
        on_moved=lambda: confirmed.append(frontier.frontier_lsn),
    )
    frontier.on_trouble(told.append)
    for _ in range(3):
        await frontier.catch_up()
    tracker.frontier_lsn = 200
    await frontier.catch_up()

    assert confirmed == [42, 100, 100, 200]
    assert store.written == [100, 200]
    assert told == [NoteTrouble("locked", is_held=True), NoteTrouble("disk full", is_held=False), None]


async def test_a_note_of_another_leader_ends_the_leadership() -> None:
    store: Any = Store(LockLost("another"))
    frontier = NotedFrontier(
        Tracker(), store=store, note=SlotNote("7", 1, 42), accepted=lambda: 1, on_moved=lambda: None
    )
    with pytest.raises(LockLost):
        await frontier.catch_up()


async def test_without_a_store_nothing_runs() -> None:
    """The frontier is far ahead of a note that nobody writes: it must not be looked at for ever."""
    note = SlotNote("7", 1, 0)
    frontier = NotedFrontier(Tracker(), store=None, note=note, accepted=lambda: 1, on_moved=lambda: None)
    async with asyncio.timeout(1):
        await frontier.run()
    assert frontier.frontier_lsn == Tracker.frontier_lsn
