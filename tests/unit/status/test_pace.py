"""How many a second, lately."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.status.pace import Pace


def paces(*noted: tuple[int | None, float]) -> list[float | None]:
    pace = Pace(10.0)
    return [pace.note(count, now) for count, now in noted]


def test_a_count_is_compared_with_that_of_some_seconds_ago() -> None:
    assert paces((0, 0.0), (50, 0.5), (100, 1.0), (500, 5.0)) == [None, None, 100.0, 100.0]
    assert paces((0, 0.0), (1000, 5.0), (1000, 10.0), (1000, 15.0)) == [None, 200.0, 100.0, 0.0]


def test_nothing_is_known_after_a_gap_or_a_new_beginning() -> None:
    assert paces((0, 0.0), (9, 30.0), (19, 40.0)) == [None, None, 1.0]
    assert paces((50, 0.0), (7, 10.0), (17, 20.0)) == [None, None, 1.0]
    assert paces((0, 100.0), (9, 50.0)) == [None, None]
    assert paces((0, 0.0), (None, 5.0), (9, 10.0)) == [None, None, None]


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 8)), max_size=200))
def test_it_is_bounded_and_never_below_zero(steps: list[tuple[int, float]]) -> None:
    pace, count, now = Pace(10.0), 0, 0.0
    for more, passed_s in steps:
        count, now = count + more, now + passed_s
        told = pace.note(count, now)
        assert told is None or told >= 0
        assert len(pace._counted) <= 12
