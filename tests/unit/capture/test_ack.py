from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from penstock.capture.ack import AckTracker


def tracker_with(*lsns: int, initial_lsn: int = 0) -> AckTracker:
    tracker = AckTracker(initial_lsn=initial_lsn)
    for lsn in lsns:
        tracker.register(lsn)
    return tracker


@pytest.mark.parametrize(
    ("lsns", "ids", "answers"),
    [
        pytest.param([100, 200, 300], [1, 2, 3], [100, 200, 300], id="in order"),
        pytest.param([100, 200, 300], [2, 1, 3], [None, 200, 300], id="out of order"),
        pytest.param([100, 200, 300], [3, 2, 1], [None, None, 300], id="backwards"),
        pytest.param([100, 100], [2, 1], [None, 100], id="shared LSN, the later one first"),
        pytest.param([100, 100], [1, 2], [100, None], id="shared LSN, in order"),
        pytest.param([100, 200], [2, 2, 1], [None, None, 200], id="repeated while pending"),
        pytest.param([100, 200], [1, 1, 2, 1], [100, None, 200, None], id="late, after the drain"),
        pytest.param([0, 0], [1, 2], [None, None], id="nothing above the start"),
    ],
)
def test_answers_to_marks_by_id(
    lsns: Sequence[int], ids: Sequence[int], answers: Sequence[int | None]
) -> None:
    tracker = tracker_with(*lsns)

    assert [tracker.mark_published_by_id(ack_id) for ack_id in ids] == answers


def test_ids_are_consecutive_from_one_whatever_lies_between() -> None:
    tracker = AckTracker()

    first = tracker.register(10)
    tracker.advance(20)
    second = tracker.register(20)
    tracker.mark_published_ids([first, second])
    tracker.advance(30)

    assert [first, second, tracker.register(30)] == [1, 2, 3]


def test_success_of_one_event_says_nothing_about_another_of_the_same_lsn() -> None:
    tracker = AckTracker(initial_lsn=50)
    refused = tracker.register(100)
    taken = tracker.register(100)

    assert tracker.mark_published_by_id(taken) is None
    assert (tracker.frontier_lsn, tracker.pending_count) == (50, 2)

    assert tracker.mark_published_by_id(refused) == 100
    assert (tracker.frontier_lsn, tracker.pending_count) == (100, 0)


def test_pending_counts_published_entries_behind_a_hole() -> None:
    tracker = tracker_with(10, 20, 30)

    tracker.mark_published_by_id(2)
    assert tracker.pending_count == 3
    tracker.mark_published_by_id(1)
    assert tracker.pending_count == 1


@pytest.mark.parametrize("unknown", [0, -1, 3, 10**9])
def test_an_id_that_was_never_given_out(unknown: int) -> None:
    tracker = tracker_with(10, 20)

    with pytest.raises(KeyError, match=str(unknown)):
        tracker.mark_published_by_id(unknown)
    assert (tracker.frontier_lsn, tracker.pending_count) == (0, 2)


@pytest.mark.parametrize("step", ["register", "advance"])
@pytest.mark.parametrize("before", ["start", "register", "advance"])
def test_lsns_never_decrease(before: str, step: str) -> None:
    tracker = AckTracker(initial_lsn=100 if before == "start" else 0)
    if before != "start":
        getattr(tracker, before)(100)
    state = tracker.frontier_lsn, tracker.last_registered_lsn, tracker.pending_count

    with pytest.raises(ValueError, match="got 99 after 100"):
        getattr(tracker, step)(99)

    assert (tracker.frontier_lsn, tracker.last_registered_lsn, tracker.pending_count) == state
    getattr(tracker, step)(100)


def test_the_start_is_the_first_frontier() -> None:
    tracker = AckTracker(initial_lsn=70)

    assert (tracker.frontier_lsn, tracker.last_registered_lsn, tracker.pending_count) == (70, 70, 0)
    assert AckTracker().frontier_lsn == 0


class TestBatches:
    def test_the_frontier_moves_once_for_a_batch_in_any_order(self) -> None:
        tracker = tracker_with(10, 20, 30, 40)

        assert tracker.mark_published_ids([3, 1, 2]) == 30
        assert tracker.pending_count == 1

    def test_a_hole_at_the_head_holds_the_batch(self) -> None:
        tracker = tracker_with(10, 20, 30)

        assert tracker.mark_published_ids(iter([2, 3])) is None
        assert tracker.mark_published_ids([1]) == 30

    def test_late_and_repeated_ids_in_a_batch_are_passed_over(self) -> None:
        tracker = tracker_with(10, 20, 30)
        tracker.mark_published_ids([1, 3])

        assert tracker.mark_published_ids([1, 3, 3]) is None
        assert tracker.mark_published_ids([1, 2, 2]) == 30
        assert tracker.mark_published_ids([1, 2, 3]) is None

    def test_an_empty_batch(self) -> None:
        assert tracker_with(10).mark_published_ids([]) is None
        assert AckTracker().mark_published_ids([]) is None

    @pytest.mark.parametrize("batch", [[1, 3], [3, 1], [0, 1], [1, -5, 2]])
    def test_one_unknown_id_refuses_the_whole_batch(self, batch: list[int]) -> None:
        tracker = tracker_with(10, 20)

        with pytest.raises(KeyError):
            tracker.mark_published_ids(batch)

        assert (tracker.frontier_lsn, tracker.pending_count) == (0, 2)
        assert tracker.mark_published_by_id(1) == 10


class TestByLsn:
    def test_a_shared_lsn_is_marked_oldest_first_and_then_exhausted(self) -> None:
        tracker = tracker_with(10, 20, 20, 30)

        assert tracker.mark_published(20) is None
        assert tracker.mark_published(10) == 20
        assert tracker.pending_count == 2
        assert tracker.mark_published(20) is None
        assert tracker.pending_count == 1
        with pytest.raises(KeyError, match="20"):
            tracker.mark_published(20)

    def test_it_passes_over_what_was_marked_by_id(self) -> None:
        tracker = tracker_with(10, 20, 20)

        tracker.mark_published_by_id(2)
        assert tracker.mark_published(20) is None
        assert tracker.mark_published_by_id(1) == 20

    @pytest.mark.parametrize("lsn", [5, 10, 15, 30])
    def test_no_pending_event_of_that_lsn(self, lsn: int) -> None:
        tracker = tracker_with(10, 20)
        tracker.mark_published_by_id(1)
        tracker.advance(30)

        with pytest.raises(KeyError, match=str(lsn)):
            tracker.mark_published(lsn)

    def test_an_event_keeps_its_lsn_when_it_carries_a_marker(self) -> None:
        tracker = tracker_with(10)
        tracker.advance(25)

        assert tracker.mark_published(10) == 25


class TestMarkers:
    def test_with_nothing_pending_a_marker_moves_the_frontier_at_once(self) -> None:
        tracker = AckTracker(initial_lsn=10)

        assert tracker.advance(20) == 20
        assert tracker.advance(20) is None
        assert (tracker.frontier_lsn, tracker.last_registered_lsn, tracker.pending_count) == (20, 20, 0)

    def test_a_marker_waits_for_everything_before_it_and_for_nothing_after_it(self) -> None:
        tracker = tracker_with(10, 10)
        tracker.advance(30)
        tracker.register(30)

        assert tracker.mark_published_by_id(2) is None
        assert tracker.mark_published_by_id(1) == 30

    def test_the_newest_of_several_markers_counts(self) -> None:
        tracker = tracker_with(10)

        assert [tracker.advance(lsn) for lsn in (20, 30, 30, 40)] == [None] * 4
        assert tracker.mark_published_by_id(1) == 40

    def test_a_marker_behind_a_published_tail_waits_for_the_hole_before_it(self) -> None:
        tracker = tracker_with(10, 20)
        tracker.mark_published_by_id(2)

        assert tracker.advance(50) is None
        assert tracker.frontier_lsn == 0
        assert tracker.mark_published_by_id(1) == 50

    @pytest.mark.parametrize("tail_is_published", [False, True])
    def test_silence_costs_no_memory(self, tail_is_published: bool) -> None:
        tracker = tracker_with(10, 20)
        if tail_is_published:
            tracker.mark_published_by_id(2)

        for lsn in range(20, 10_000):
            tracker.advance(lsn)

        assert tracker.pending_count == 2
        assert tracker.last_registered_lsn == 9_999

    def test_transactions_as_the_reader_registers_them(self) -> None:
        """Inside a transaction the LSN is the end of the one before; the commit is a marker."""
        tracker = AckTracker(initial_lsn=100)
        first = [tracker.register(100), tracker.register(100)]
        tracker.advance(150)
        second = tracker.register(150)
        tracker.advance(180)
        tracker.advance(200)

        assert tracker.mark_published_by_id(second) is None
        assert tracker.mark_published_by_id(first[0]) is None
        assert tracker.frontier_lsn == 100
        assert tracker.mark_published_by_id(first[1]) == 200


def test_ids_stay_valid_over_a_long_run_with_a_moving_window() -> None:
    window, total = 3_000, 50_000
    tracker = AckTracker()
    for lsn in range(1, window + 1):
        tracker.register(lsn)

    for lsn in range(window + 1, total + 1):
        assert tracker.register(lsn) == lsn
        oldest = lsn - window
        assert tracker.mark_published_by_id(oldest) == oldest
        assert tracker.pending_count == window

    assert tracker.mark_published_by_id(1) is None
    assert tracker.mark_published(total) is None
    assert tracker.mark_published_ids(range(1, total)) == total
    with pytest.raises(KeyError):
        tracker.mark_published_by_id(total + 1)


class TestMemory:
    @pytest.fixture
    def traced(self) -> Iterator[None]:
        tracemalloc.start()
        yield
        tracemalloc.stop()

    @pytest.mark.usefixtures("traced")
    def test_what_is_drained_is_given_back(self) -> None:
        tracker = AckTracker()

        for lsn in range(50_000):
            tracker.mark_published_by_id(tracker.register(lsn))
            tracker.advance(lsn)

        assert tracemalloc.get_traced_memory()[1] < 300_000

    @pytest.mark.usefixtures("traced")
    def test_a_pending_entry_costs_a_few_machine_words(self) -> None:
        tracker = AckTracker()

        for lsn in range(50_000):
            tracker.register(lsn)
            tracker.advance(lsn)

        assert tracemalloc.get_traced_memory()[1] / tracker.pending_count < 40


def test_a_frontier_that_would_go_back_is_a_broken_invariant() -> None:
    tracker = tracker_with(10)
    tracker._frontier = 99

    with pytest.raises(RuntimeError, match="from 99 to 10"):
        tracker.mark_published_by_id(1)
    assert tracker.frontier_lsn == 99
