"""Is anything getting done? Over leaderships, and inside one large transaction."""

from __future__ import annotations

from penstock.status.headway import STALLED_AFTER_S, Headway


def test_a_large_transaction_that_is_published_is_headway_though_the_frontier_stands() -> None:
    headway = Headway()
    headway.begin()
    for second in range(300):
        headway.note(5, done=3_000 * second, pending=9_000, now=float(second))

    assert headway.stalled_s(300.0) == 1.0


def test_one_entry_that_is_never_done_is_none_however_much_else_is() -> None:
    headway = Headway()
    headway.begin()
    for second in range(60):
        headway.note(5, done=7, pending=10 + second, now=float(second))

    assert headway.stalled_s(60.0) == 60.0


def test_work_that_is_repeated_by_the_next_leadership_is_none() -> None:
    headway = Headway()
    for leadership in range(5):
        began = 10.0 * leadership
        headway.begin()
        headway.note(5, done=0, pending=0, now=began)
        for second in range(1, 9):
            headway.note(5, done=100 * second, pending=999, now=began + second)

    assert headway.stalled_s(48.0) == 40.0


def test_what_goes_further_than_the_leadership_before_is_headway() -> None:
    headway = Headway()
    headway.begin()
    headway.note(5, done=800, pending=1, now=1.0)
    headway.begin()
    headway.note(4, done=500, pending=1, now=50.0)
    assert headway.stalled_s(50.0) == 49.0

    headway.note(4, done=801, pending=1, now=51.0)

    assert headway.stalled_s(51.0) == 0.0


def test_nothing_pending_ends_the_wait() -> None:
    headway = Headway()
    headway.begin()
    headway.note(5, done=0, pending=3, now=0.0)
    headway.note(5, done=0, pending=0, now=50.0)

    assert headway.stalled_s(99.0) == 0.0


def test_at_the_start_of_a_leadership_nothing_pending_means_nothing_yet() -> None:
    headway = Headway()
    headway.begin()
    headway.note(5, done=0, pending=3, now=0.0)
    headway.begin()
    headway.note(5, done=0, pending=0, now=10.0)
    assert headway.stalled_s(10.0) == 10.0

    headway.note(5, done=0, pending=0, now=10.0 + STALLED_AFTER_S)

    assert headway.stalled_s(99.0) == 0.0


def test_while_another_leads_nobody_waits_here() -> None:
    headway = Headway()
    headway.begin()
    headway.note(5, done=0, pending=3, now=0.0)
    headway.rest()

    assert headway.stalled_s(1_000.0) == 0.0


def test_another_history_begins_lower() -> None:
    headway = Headway()
    headway.note(900, done=50, pending=0, now=0.0)
    headway.forget_positions()

    assert headway.note(100, done=0, pending=1, now=1.0)
