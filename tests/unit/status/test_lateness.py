"""How late are we, over leaderships?"""

from __future__ import annotations

import pytest

from penstock.status.lateness import Lateness


@pytest.fixture
def late() -> Lateness:
    lateness = Lateness()
    lateness.note(90, 100, 1000.0)
    return lateness


def test_nothing_is_late_at_first() -> None:
    assert Lateness().behind_s(1000.0) == 0


def test_the_commit_of_the_oldest_counts(late: Lateness) -> None:
    assert late.behind_s(1012.5) == 12.5
    late.note(110, 120, 1010.0)
    assert late.behind_s(1012.5) == 2.5


def test_a_clock_that_is_behind_makes_nothing_negative(late: Lateness) -> None:
    assert late.behind_s(999.0) == 0


def test_a_leader_that_has_read_nothing_yet_ends_nothing(late: Lateness) -> None:
    late.note(90, 0, None)
    late.note(100, 0, None)
    assert late.behind_s(1060.0) == 60
    late.note(101, 0, None)
    assert late.behind_s(1061.0) == 0


def test_another_leads_or_the_history_is_another(late: Lateness) -> None:
    late.forget()
    assert late.behind_s(1060.0) == 0
    late.note(3, 5, 1050.0)
    assert late.behind_s(1060.0) == 10
