from __future__ import annotations

import pytest

from penstock.postgres.leader.freshness import Freshness

SERVER = 1_700_000_000.0
"""The server's clock when ours shows 0."""


def line() -> Freshness:
    return Freshness(limit_s=3.0, now=100.0)


def vouched_at(freshness: Freshness) -> float:
    """The last moment for which something vouches."""
    later = 1000.0
    return later - freshness.age_s(later)


def test_a_new_line_is_fresh_for_its_limit() -> None:
    freshness = line()

    assert freshness.is_fresh(103.0)
    assert not freshness.is_fresh(103.001)
    assert (vouched_at(freshness), freshness.age_s(101.5)) == (100.0, 1.5)


def test_a_frame_vouches_for_the_moment_it_was_sent() -> None:
    freshness = line()
    freshness.frame_sent(SERVER + 101, now=101.0)

    freshness.frame_sent(SERVER + 105, now=105.0)

    assert vouched_at(freshness) == 105.0


def test_frames_left_in_the_socket_by_a_freeze_do_not_vouch_for_now() -> None:
    freshness = line()
    freshness.frame_sent(SERVER + 101, now=101.0)

    for sent in (102, 103, 104):
        freshness.frame_sent(SERVER + sent, now=160.0)

    assert vouched_at(freshness) == 104.0
    assert not freshness.is_fresh(160.0)


def test_the_least_delayed_frame_tells_the_difference_of_the_clocks() -> None:
    freshness = line()
    freshness.frame_sent(SERVER + 101, now=102.0)  # a second on the way
    freshness.frame_sent(SERVER + 103, now=103.25)  # a quarter of one

    freshness.frame_sent(SERVER + 104, now=106.0)

    assert vouched_at(freshness) == 104.25


def test_a_moment_of_the_server_is_told_on_our_clock() -> None:
    freshness = line()
    freshness.frame_sent(SERVER + 101, now=101.5)

    assert freshness.on_our_clock(SERVER + 200) == 200.5


@pytest.mark.parametrize("ahead_s", [-86_400.0, 0.0, 86_400.0])
def test_the_clocks_need_not_agree(ahead_s: float) -> None:
    freshness = line()
    freshness.frame_sent(101.0 + ahead_s, now=101.0)
    freshness.frame_sent(105.0 + ahead_s, now=105.0)

    assert freshness.is_fresh(108.0)
    assert not freshness.is_fresh(108.5)


def test_a_server_clock_that_jumps_back_makes_frames_look_old() -> None:
    freshness = line()
    freshness.frame_sent(SERVER + 101, now=101.0)

    freshness.frame_sent(SERVER + 50, now=110.0)

    assert vouched_at(freshness) == 101.0
    assert not freshness.is_fresh(110.0)


def test_after_a_jump_back_the_watchdog_alone_keeps_the_line_fresh() -> None:
    """Issue 8, point 14: frames look an hour old for the rest of the leadership, which costs nothing else."""
    line = Freshness(limit_s=3.0, now=100.0)
    line.frame_sent(5_000.0, now=100.0)
    for second in range(101, 200):
        line.frame_sent(5_000.0 + second - 100 - 3_600, now=float(second))
        line.lock_seen(second - 0.5)
        assert line.is_fresh(float(second))

    assert not line.is_fresh(202.6)


def test_a_server_clock_that_jumps_ahead_does_not_vouch_for_the_future() -> None:
    freshness = line()
    freshness.frame_sent(SERVER + 101, now=101.0)

    freshness.frame_sent(SERVER + 5_000, now=102.0)

    assert vouched_at(freshness) == 102.0


def test_the_watchdog_vouches_for_the_moment_of_its_question() -> None:
    freshness = line()

    freshness.lock_seen(asked_at=107.0)

    assert freshness.is_fresh(110.0)
    assert not freshness.is_fresh(110.001)


def test_either_is_enough_and_the_later_counts() -> None:
    freshness = line()
    freshness.frame_sent(SERVER + 101, now=101.0)

    freshness.lock_seen(asked_at=105.0)
    freshness.frame_sent(SERVER + 103, now=106.0)
    assert vouched_at(freshness) == 105.0

    freshness.frame_sent(SERVER + 107, now=107.0)
    freshness.lock_seen(asked_at=106.0)
    assert vouched_at(freshness) == 107.0


def test_a_sign_from_the_future_has_no_negative_age() -> None:
    freshness = line()
    freshness.lock_seen(asked_at=105.0)

    assert freshness.age_s(104.0) == 0.0
    assert freshness.is_fresh(104.0)
