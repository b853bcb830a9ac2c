"""Failures in a row, over the leaderships in which they happened."""

from __future__ import annotations

from penstock.errors import ConnectionFailed, DecodingFailed, LineLost, ProtocolViolation
from penstock.service.relapses import NEEDS_A_PERSON, SETTLED_S, Relapses


def test_the_same_error_at_the_same_place_needs_a_person() -> None:
    relapses = Relapses()
    relapses.failed(DecodingFailed("a"), confirmed_lsn=100, led_s=0.5)  # it had got that far: headway

    found = [
        relapses.failed(DecodingFailed("a"), confirmed_lsn=100, led_s=0.5) for _ in range(NEEDS_A_PERSON)
    ]

    assert [each.needs_a_person for each in found] == [False] * (NEEDS_A_PERSON - 2) + [True, True]
    assert found[-1].failures == NEEDS_A_PERSON + 1


def test_headway_ends_the_row() -> None:
    relapses = Relapses()
    for lsn in (100, 200, 300, 400):
        assert relapses.failed(DecodingFailed("a"), confirmed_lsn=lsn, led_s=0.5).failures == 1


def test_a_confirmed_position_that_goes_back_is_no_headway() -> None:
    """A server that crashed has forgotten what was confirmed last."""
    relapses = Relapses()
    relapses.failed(LineLost("a"), confirmed_lsn=300, led_s=1.0)

    assert relapses.failed(LineLost("a"), confirmed_lsn=200, led_s=1.0).failures == 2
    assert relapses.failed(LineLost("a"), confirmed_lsn=300, led_s=1.0).failures == 3


def test_a_long_leadership_ends_the_row_unless_the_stream_itself_failed() -> None:
    idle, stuck = Relapses(), Relapses()
    for _ in range(5):
        assert idle.failed(LineLost("cut"), confirmed_lsn=0, led_s=SETTLED_S).failures == 1
    last = [stuck.failed(DecodingFailed("slow"), confirmed_lsn=7, led_s=SETTLED_S) for _ in range(4)][-1]
    assert last.needs_a_person


def test_a_server_that_is_away_for_long_needs_nobody() -> None:
    """It is met as soon as it comes back."""
    relapses = Relapses()

    found = [relapses.failed(ConnectionFailed("x"), confirmed_lsn=0, led_s=0.0) for _ in range(100)]

    assert found[-1].failures == 100
    assert not any(each.needs_a_person for each in found)


def test_another_kind_of_error_is_another_trouble() -> None:
    relapses = Relapses()
    for _ in range(NEEDS_A_PERSON - 1):
        relapses.failed(DecodingFailed("a"), confirmed_lsn=7, led_s=1.0)

    assert not relapses.failed(ProtocolViolation("b"), confirmed_lsn=7, led_s=1.0).needs_a_person


def test_success_ends_everything() -> None:
    relapses = Relapses()
    for _ in range(NEEDS_A_PERSON):
        relapses.failed(DecodingFailed("a"), confirmed_lsn=7, led_s=3.0)
    relapses.succeeded(confirmed_lsn=7)

    assert relapses.failed(DecodingFailed("a"), confirmed_lsn=7, led_s=1.0) == (1, False, 1.0)


def test_another_leader_does_not_mend_what_is_stuck() -> None:
    """Of two processes each meets the error in turn, and finds the other leading in between."""
    relapses = Relapses()
    found = []
    for _ in range(NEEDS_A_PERSON):
        found.append(relapses.failed(DecodingFailed("a"), confirmed_lsn=7, led_s=1.0))
        relapses.stood_by(slot_lsn=7)

    assert [each.failures for each in found] == [1] * NEEDS_A_PERSON
    assert [each.needs_a_person for each in found] == [False] * (NEEDS_A_PERSON - 1) + [True]


def test_a_slot_that_has_moved_on_mends_it() -> None:
    relapses = Relapses()
    for _ in range(NEEDS_A_PERSON):
        relapses.failed(DecodingFailed("a"), confirmed_lsn=7, led_s=1.0)
    relapses.stood_by(slot_lsn=8)

    assert not relapses.failed(DecodingFailed("a"), confirmed_lsn=7, led_s=1.0).needs_a_person


def test_in_another_history_lower_positions_are_headway() -> None:
    relapses = Relapses()
    relapses.failed(LineLost("a"), confirmed_lsn=900, led_s=1.0)
    relapses.forget_positions()

    assert relapses.failed(LineLost("a"), confirmed_lsn=100, led_s=1.0).failures == 1
