from __future__ import annotations

import random

import pytest

from penstock.kinesis.aws.backoff import FIRST_S, LONGEST_S, full_jitter


class Upper(random.Random):
    """Always the most that is allowed."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_the_bound_doubles_up_to_the_longest() -> None:
    bounds = [full_jitter(attempt, Upper()) for attempt in range(5)]
    assert bounds == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S, 16 * FIRST_S]
    assert full_jitter(7, Upper()) == LONGEST_S


@pytest.mark.parametrize("attempt", [20, 10_000])
def test_any_number_of_failures_has_a_bound(attempt: int) -> None:
    assert full_jitter(attempt, Upper(), first_s=0.25, longest_s=10.0) == 10.0


def test_the_wait_is_anywhere_below_the_bound() -> None:
    rng = random.Random(7)
    waits = [full_jitter(3, rng, first_s=1.0, longest_s=100.0) for _ in range(200)]
    assert 0.0 <= min(waits) < 1.0
    assert 7.0 < max(waits) <= 8.0
