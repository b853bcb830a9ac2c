"""When was the oldest undelivered change committed?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.capture.commit_times import FINEST_S, CommitTimes, Undelivered


def test_the_oldest_that_the_frontier_has_not_passed() -> None:
    times = CommitTimes()
    for lsn, at in ((10, 1.0), (20, 2.0), (30, 3.0)):
        times.note(lsn, at)

    assert times.oldest(10) == Undelivered(10, 1.0)
    assert times.oldest(11) == Undelivered(20, 2.0)
    assert times.oldest(31) is None


def test_transactions_of_one_moment_share_a_place() -> None:
    times = CommitTimes()
    for number in range(10_000):
        times.note(number, 5.0 + number * FINEST_S / 20_000)

    assert len(times) == 1
    assert times.oldest(9_999) == Undelivered(9_999, 5.0)


def test_a_commit_time_before_the_last_one_counts() -> None:
    times = CommitTimes()
    times.note(10, 5.0)
    times.note(20, 4.5)

    assert times.oldest(0) == Undelivered(20, 4.5)


@given(
    gaps=st.lists(st.floats(0, 1000), min_size=1, max_size=300),
    share=st.floats(0, 1),
    most=st.integers(1, 20),
)
def test_it_is_bounded_and_errs_on_the_late_side(gaps: list[float], share: float, most: int) -> None:
    times, at, truth = CommitTimes(most), 0.0, []
    for lsn, gap in enumerate(gaps):
        at += gap
        times.note(lsn, at)
        truth.append(at)
        assert len(times) <= most
    frontier = int(share * len(gaps))

    found = times.oldest(frontier)

    if frontier == len(gaps):
        assert found is None
    else:
        # The grain doubles only when more than `most` groups begin a grain or more apart.
        coarsest_s = max(FINEST_S, 2 * at / most)
        assert found is not None
        assert truth[frontier] - 2 * coarsest_s <= found.committed_at <= truth[frontier]


def test_it_is_exact_again_when_nothing_is_left() -> None:
    times = CommitTimes(most_groups=2)
    for lsn in range(10):
        times.note(lsn, lsn * 100.0)
    assert times.oldest(10) is None

    times.note(20, 2000.0)
    times.note(21, 2000.0 + 2 * FINEST_S)

    assert times.oldest(21) == Undelivered(21, 2000.0 + 2 * FINEST_S)
