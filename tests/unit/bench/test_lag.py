"""The arithmetic of lags in `penstock bench shapes`."""

from __future__ import annotations

import pytest

from penstock.bench.lag import LIMIT_S, Lags, Visible, Written, beside_row, is_longer, lag_rows, lags_of


def test_a_row_is_there_with_the_first_commit_at_or_behind_it() -> None:
    written = [Written("a", 10.0, 100), Written("a", 11.0, 200), Written("b", 12.0, 300)]
    commits = {"a": [Visible(90, 9.0), Visible(250, 14.0), Visible(400, 20.0)], "b": [Visible(300, 13.5)]}

    assert lags_of(written, commits, waited_until=99.0) == Lags([4.0, 3.0, 1.5], unseen=0)


def test_a_row_that_never_came_counts_with_the_time_that_it_was_waited_for() -> None:
    written = [Written("a", 10.0, 100), Written("b", 10.5, 200)]

    lags = lags_of(written, {"a": [Visible(150, 11.0)], "b": []}, waited_until=130.5)

    assert lags == Lags([1.0, 120.0], unseen=1)


def test_clocks_that_differ_make_no_negative_lag() -> None:
    assert lags_of([Written("a", 10.0, 1)], {"a": [Visible(1, 9.99)]}, 20.0).seconds == [0.0]


def test_thirds_are_of_rows_in_their_order_however_many_there_are() -> None:
    assert Lags([1.0, 1.0, 5.0, 7.0, 2.0, 3.0, 9.0], 0).thirds == [1.0, 6.0, 3.0]


@pytest.mark.parametrize(
    ("later", "earlier", "longer"),
    [(10.0, 10.0, False), (12.0, 10.0, False), (12.1, 10.0, True), (1.9, 1.0, False), (9.0, 20.0, False)],
)
def test_longer_is_more_than_a_fifth_and_more_than_a_second(
    later: float, earlier: float, longer: bool
) -> None:
    assert is_longer(later, earlier) is longer


def reached(lags: Lags) -> list[bool | None]:
    p50, tail, growth, unseen = lag_rows("some", lags)
    assert tail.reached is None
    return [p50.reached, growth.reached, unseen.reached]


def test_lags_that_stay_reach_every_target() -> None:
    assert reached(Lags([20.0, 24.0, 22.0] * 20, 0)) == [True, True, True]


def test_lags_that_grow_miss_theirs() -> None:
    assert reached(Lags([10.0 + number / 6 for number in range(60)], 0)) == [True, False, True]


def test_a_long_lag_and_an_unseen_row_miss_theirs() -> None:
    assert reached(Lags([LIMIT_S + 1] * 60, 0)) == [False, True, True]
    assert reached(Lags([1.0] * 60, unseen=1)) == [True, True, False]


def test_a_parked_shape_may_change_nothing() -> None:
    alone = Lags([10.0] * 9, 0)

    assert beside_row(alone, Lags([11.5] * 9, 0)).reached is True
    assert beside_row(alone, Lags([14.0] * 9, 0)).reached is False
