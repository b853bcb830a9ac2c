"""What tables hold: three axes, and what moves each."""

from __future__ import annotations

import pytest

from penstock.model.log_offset import BEFORE_ALL, LogOffset
from penstock.shapes.pace.held import Held, whole


@pytest.fixture
def held() -> Held:
    """A table that goes on from 100, and one that is new."""
    held = Held()
    held.start("old", whole(100))
    held.start("new", BEFORE_ALL)
    return held


def axes(held: Held, shape: str) -> tuple[LogOffset, LogOffset, LogOffset]:
    return held.read_back(shape), held.passed(shape), held[shape]


def test_a_start_says_all_three(held: Held) -> None:
    assert axes(held, "old") == (whole(100), whole(100), whole(100))
    assert axes(held, "new") == (BEFORE_ALL, BEFORE_ALL, BEFORE_ALL)
    assert list(held) == ["old", "new"]


def test_what_is_passed_over_is_not_in_the_table(held: Held) -> None:
    assert held.pass_over("old", whole(200))
    assert axes(held, "old") == (whole(100), whole(200), whole(100))
    assert not held.pass_over("old", whole(200)), "no news"
    assert not held.pass_over("old", whole(150))
    assert held.passed("old") == whole(200)


def test_a_flush_that_is_read_back_never_lowers_what_was_read(held: Held) -> None:
    held.flushed("old", whole(200))
    held.flushed("old", whole(150))
    assert axes(held, "old") == (whole(200), whole(100), whole(100))


def test_the_cut_of_a_copy_counts_for_the_stream_only(held: Held) -> None:
    """It may fail: until it was read back, neither log nor registry may rely on it."""
    held.begin_copy("old", 301)
    assert axes(held, "old") == (whole(100), whole(100), whole(300))
    held.begin_copy("old", 51)
    assert held["old"] == whole(300)


def test_a_copy_replaces_what_the_table_held(held: Held) -> None:
    held.pass_over("old", whole(400))
    held.begin_copy("old", 301)
    held.copied("old", 301)
    assert axes(held, "old") == (whole(300), whole(300), whole(300))


def test_shapes_have_nothing_to_do_with_each_other(held: Held) -> None:
    held.pass_over("old", whole(200))
    held.flushed("old", whole(200))
    held.begin_copy("old", 301)
    assert axes(held, "new") == (BEFORE_ALL, BEFORE_ALL, BEFORE_ALL)
