"""FlushTracker: its rules as tables, and the bugs that others shipped in theirs."""

from __future__ import annotations

import pytest

from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.shapes.pace.flush_tracker import FlushTracker, Progress, Stalled

LAST_OP = 8
LENGTH = 5


def at(commit_lsn: int, op_offset: int = LAST_OP) -> LogOffset:
    """A place in a transaction of these tests; by default its last operation."""
    return LogOffset(commit_lsn, op_offset)


def commit(tracker: FlushTracker, commit_lsn: int, *touched: str, now: float = 0.0) -> int | None:
    """Each transaction of these tests ends LENGTH after its commit LSN, at operation LAST_OP."""
    return tracker.committed(at(commit_lsn), commit_lsn + LENGTH, set(touched), now)


def tracker_after(*transactions: tuple[int, str], initial_lsn: int = 0) -> FlushTracker:
    """A tracker that saw transactions, each with the letters of the shapes that it touched."""
    tracker = FlushTracker(initial_lsn=initial_lsn)
    for commit_lsn, touched in transactions:
        commit(tracker, commit_lsn, *touched)
    return tracker


def state(tracker: FlushTracker, *shapes: str) -> tuple[object, ...]:
    return (
        tracker.frontier_lsn,
        tracker.last_seen_offset,
        tracker.last_global_flushed_offset,
        tracker.minimum,
        tracker.behind_count,
        [tracker.progress(shape) for shape in shapes],
    )


TABLE = [
    pytest.param([(100, "")], [], 105, id="a transaction that touches nobody is confirmed to its end"),
    pytest.param([(100, "a")], [], 0, id="one that touches a shape waits for it"),
    pytest.param([(100, "a")], [("a", at(100))], 105, id="flushed: confirmed to its end"),
    pytest.param([(100, "a")], [("a", at(100, OP_INFINITY))], 105, id="a note of the whole transaction"),
    pytest.param([(100, "ab")], [("a", at(100))], 0, id="one of two shapes"),
    pytest.param([(100, "ab")], [("b", at(100)), ("a", at(100))], 105, id="both shapes, in any order"),
    pytest.param([(100, ""), (200, "a")], [], 105, id="what lies before the first unflushed one"),
    pytest.param([(100, "a"), (200, "a")], [("a", at(100))], 100, id="behind: the commit LSN, not the end"),
    pytest.param([(100, "a"), (200, "a")], [("a", at(200))], 205, id="a flush over two transactions"),
    pytest.param([(100, "a"), (200, "b")], [("b", at(200))], 0, id="the slower shape holds the frontier"),
    pytest.param([(100, "a"), (200, "b")], [("a", at(100))], 100, id="a shape counts up to just before"),
    pytest.param([(100, "a"), (200, ""), (300, "b")], [("a", at(300))], 200, id="... which may be anybody's"),
    pytest.param(
        [(100, "a"), (200, "b"), (300, "a")],
        [("a", at(200)), ("b", at(200))],
        200,
        id="a flush up to a transaction that did not touch the shape",
    ),
    pytest.param([(100, "a"), (200, "a")], [("a", at(200)), ("a", at(100))], 205, id="a late note"),
    pytest.param([(100, "a"), (200, "a")], [("a", at(100))] * 3, 100, id="a repeated note"),
    pytest.param([(100, "a")], [("a", at(900))], 105, id="a note from beyond confirms only what was seen"),
    pytest.param([(100, "a"), (200, "b")], [("a", at(900))], 100, id="... also while another is behind"),
    pytest.param([(100, "a"), (200, "a")], [("a", at(200, 4))], 200, id="a note in mid-transaction"),
    pytest.param([(100, "a")], [("b", at(100))], 0, id="a note of a shape that is not behind"),
]


@pytest.mark.parametrize(("transactions", "notes", "frontier"), TABLE)
def test_frontier_after_transactions_and_notes(
    transactions: list[tuple[int, str]], notes: list[tuple[str, LogOffset]], frontier: int
) -> None:
    tracker = tracker_after(*transactions)

    for shape, offset in notes:
        tracker.flushed(shape, offset, 0.0)

    assert tracker.frontier_lsn == frontier


def test_a_move_is_returned_once() -> None:
    tracker = FlushTracker(initial_lsn=50)

    assert commit(tracker, 100) == 105
    assert commit(tracker, 200, "a", "b") is None
    assert tracker.flushed("a", at(200), 0.0) is None
    assert tracker.flushed("b", at(200), 0.0) == 205
    assert tracker.flushed("b", at(200), 0.0) is None
    assert tracker.keepalive(205) is None
    assert tracker.keepalive(300) == 300
    assert tracker.remove("b") is None


def test_nobody_behind_is_an_empty_state() -> None:
    tracker = tracker_after((100, "abc"), (200, "ab"))

    for shape, offset in (("a", 200), ("b", 200), ("c", 100)):
        tracker.flushed(shape, at(offset), 0.0)

    assert state(tracker, "a", "b", "c") == (205, at(200), at(200), at(200), 0, [None] * 3)
    assert (tracker._behind, tracker._index) == ({}, [])


def test_a_fresh_tracker() -> None:
    assert state(FlushTracker(initial_lsn=70)) == (70, BEFORE_ALL, BEFORE_ALL, BEFORE_ALL, 0, [])
    assert FlushTracker().frontier_lsn == 0


def test_progress_is_kept_for_shapes_that_are_behind() -> None:
    tracker = FlushTracker()
    commit(tracker, 100, "b", now=1.0)
    commit(tracker, 200, "a", now=2.0)
    commit(tracker, 300, "a", now=3.0)

    assert tracker.progress("a") == Progress(at(300), at(100), 2.0, pinned=False)
    tracker.flushed("a", at(200), 4.0)
    assert tracker.progress("a") == Progress(at(300), at(200), 4.0, pinned=False)
    tracker.flushed("a", at(300), 5.0)
    assert tracker.progress("a") is None
    assert tracker.behind_count == 1


def test_the_minimum_says_what_the_log_may_drop() -> None:
    tracker = tracker_after((100, "a"))
    assert tracker.minimum == BEFORE_ALL

    tracker.flushed("a", at(100), 0.0)
    assert tracker.minimum == at(100)
    commit(tracker, 200, "a", "b")
    commit(tracker, 300, "a")
    assert tracker.minimum == at(100)
    tracker.flushed("a", at(200), 0.0)
    assert tracker.minimum == at(100)
    tracker.flushed("b", at(200, OP_INFINITY), 0.0)
    assert tracker.minimum == at(200)
    assert tracker.last_global_flushed_offset == at(200)


def test_with_nobody_behind_the_last_commit_may_be_dropped_too() -> None:
    tracker = tracker_after((100, "a"))
    assert tracker.droppable == BEFORE_ALL
    tracker.flushed("a", at(100), 0.0)
    assert tracker.droppable == at(100, OP_INFINITY)
    commit(tracker, 200, "a")
    assert tracker.droppable == at(100)


@pytest.mark.parametrize("seen", ["commit", "keepalive"])
@pytest.mark.parametrize("touched", [set(), {"a"}, {"b"}])
def test_commit_lsns_never_decrease(seen: str, touched: set[str]) -> None:
    tracker = tracker_after((50, "a"))
    if seen == "commit":
        commit(tracker, 95, "a")
    else:
        tracker.keepalive(100)
    before = state(tracker, "a", "b")

    with pytest.raises(ValueError, match=r"^commit LSNs must not decrease: got 0/63 after 0/64$"):
        tracker.committed(at(99), 110, touched, 0.0)

    assert state(tracker, "a", "b") == before
    tracker.committed(at(100), 110, touched, 0.0)


@pytest.mark.parametrize("end_lsn", [100, 99])
def test_a_transaction_ends_after_its_commit(end_lsn: int) -> None:
    tracker = FlushTracker()

    with pytest.raises(ValueError, match="commits at 0/64 and ends before"):
        tracker.committed(at(100), end_lsn, {"a"}, 0.0)

    assert tracker.behind_count == 0


def test_an_end_may_be_the_next_commit() -> None:
    tracker = FlushTracker()

    tracker.committed(at(100), 200, set(), 0.0)
    tracker.committed(at(200), 300, {"a"}, 0.0)

    assert tracker.frontier_lsn == 200


class TestKeepalives:
    def test_with_nobody_behind_it_is_confirmed(self) -> None:
        tracker = FlushTracker(initial_lsn=100)

        answers = {lsn: tracker.keepalive(lsn) for lsn in (90, 100, 200, 150, 300)}

        assert answers == {90: None, 100: None, 200: 200, 150: None, 300: 300}

    def test_it_waits_for_those_behind_and_is_confirmed_with_the_last_of_them(self) -> None:
        tracker = tracker_after((100, "ab"))

        assert tracker.keepalive(500) is None
        assert tracker.flushed("a", at(100), 0.0) is None
        assert tracker.flushed("b", at(100), 0.0) == 500

    def test_an_old_one_does_not_hide_a_transaction_end(self) -> None:
        tracker = FlushTracker()
        tracker.keepalive(90)
        commit(tracker, 100, "a")

        assert tracker.keepalive(102) is None
        assert tracker.flushed("a", at(100), 0.0) == 105


class TestNewShapes:
    def test_a_pinned_shape_holds_the_frontier_until_its_snapshot(self) -> None:
        tracker = tracker_after((100, ""))
        tracker.add("new", flushed=LogOffset(105, 0), now=1.0)

        assert tracker.progress("new") == Progress(BEFORE_ALL, LogOffset(105, 0), 1.0, pinned=True)
        assert tracker.keepalive(150) is None
        assert commit(tracker, 200) is None
        assert tracker.minimum == LogOffset(105, 0)
        assert tracker.snapshotted("new", 180, 2.0) == 205

    def test_what_the_snapshot_does_not_hold_is_waited_for(self) -> None:
        tracker = tracker_after((100, ""))
        tracker.add("new", flushed=LogOffset(105, 0), now=1.0)
        commit(tracker, 200, "new", now=2.0)
        commit(tracker, 300, "new", now=3.0)

        assert tracker.snapshotted("new", 250, 4.0) == 249
        assert tracker.progress("new") == Progress(at(300), LogOffset(249, OP_INFINITY), 4.0, pinned=False)
        assert tracker.flushed("new", at(300), 5.0) == 305

    @pytest.mark.parametrize(("cut_lsn", "frontier"), [(200, 199), (201, 205)])
    def test_a_transaction_that_commits_at_the_cut_is_not_in_the_snapshot(
        self, cut_lsn: int, frontier: int
    ) -> None:
        tracker = tracker_after((100, ""))
        tracker.add("new", flushed=LogOffset(105, 0), now=0.0)
        tracker.committed(LogOffset(200, 0), 205, {"new"}, 0.0)

        assert tracker.snapshotted("new", cut_lsn, 0.0) == frontier

    def test_the_cut_may_be_the_frontier_itself(self) -> None:
        tracker = tracker_after((100, ""))
        tracker.add("new", flushed=LogOffset(105, 0), now=0.0)

        tracker.snapshotted("new", 105, 0.0)

        assert tracker.behind_count == 0
        assert tracker.keepalive(110) == 110

    def test_a_pin_below_the_frontier_takes_nothing_back(self) -> None:
        tracker = tracker_after((100, ""))

        tracker.add("new", flushed=BEFORE_ALL, now=0.0)

        assert tracker.frontier_lsn == 105
        assert tracker.last_global_flushed_offset == at(100)
        assert tracker.minimum == BEFORE_ALL

    def test_a_pin_past_the_frontier_is_refused(self) -> None:
        tracker = tracker_after((100, "a"), initial_lsn=60)

        with pytest.raises(
            ValueError, match=r"^shape new can't be pinned at 0/3D:0, past the frontier 0/3C$"
        ):
            tracker.add("new", flushed=LogOffset(61, 0), now=0.0)

        assert tracker.behind_count == 1
        tracker.add("new", flushed=LogOffset(60, 0), now=0.0)

    def test_a_shape_that_is_behind_can_begin_anew(self) -> None:
        tracker = tracker_after((100, "a"), (200, "a"), initial_lsn=60)

        tracker.add("a", flushed=LogOffset(60, 0), now=0.0)

        assert tracker.behind_count == 1
        assert tracker.snapshotted("a", 300, 0.0) == 205

    def test_a_snapshot_of_a_shape_that_is_not_pinned_says_nothing(self) -> None:
        tracker = tracker_after((100, "a"))

        assert tracker.snapshotted("a", 300, 0.0) is None
        assert tracker.snapshotted("b", 300, 0.0) is None
        assert tracker.frontier_lsn == 0

    def test_a_pinned_shape_can_be_removed(self) -> None:
        tracker = tracker_after((100, ""))
        tracker.add("new", flushed=LogOffset(105, 0), now=0.0)
        commit(tracker, 200, "new")

        assert tracker.remove("new") == 205


class TestStalled:
    def test_age_counts_from_the_last_move_and_not_from_the_last_transaction(self) -> None:
        tracker = FlushTracker()
        commit(tracker, 100, "a", now=10.0)
        commit(tracker, 200, "a", "b", now=20.0)
        commit(tracker, 300, "a", "b", now=30.0)

        assert tracker.stalled(39.0, 20.0) == [Stalled("a", 29.0, BEFORE_ALL)]
        tracker.flushed("a", at(200), 39.0)
        assert tracker.stalled(40.0, 20.0) == [Stalled("b", 20.0, at(100))]

    def test_the_one_that_holds_the_slot_comes_first(self) -> None:
        tracker = FlushTracker()
        commit(tracker, 100, "z", now=10.0)
        commit(tracker, 200, "a", now=11.0)
        commit(tracker, 300, "m", now=12.0)

        assert [shape for shape, _, _ in tracker.stalled(20.0, 0.0)] == ["z", "a", "m"]

    def test_a_shape_that_flushes_under_load_is_not_stalled(self) -> None:
        tracker = FlushTracker()
        for step in range(100):
            commit(tracker, 100 + 10 * step, "a", now=float(step))
            tracker.flushed("a", at(100 + 10 * (step - 1)), float(step))

        assert tracker.behind_count == 1
        assert tracker.stalled(99.0, 5.0) == []

    def test_a_late_note_is_no_move(self) -> None:
        tracker = FlushTracker()
        commit(tracker, 100, "a", now=0.0)
        commit(tracker, 200, "a", now=0.0)
        tracker.flushed("a", at(100), 1.0)
        tracker.flushed("a", at(100), 50.0)

        assert tracker.stalled(60.0, 30.0) == [Stalled("a", 59.0, at(100))]

    def test_nobody_behind_is_nobody_stalled(self) -> None:
        tracker = tracker_after((100, "a"))
        tracker.flushed("a", at(100), 0.0)

        assert tracker.stalled(1e9, 0.0) == []


class TestBugsThatOthersShipped:
    """The list of Electric's; what of it a tracker can get wrong."""

    def test_wrong_shape_identity(self) -> None:
        """A note counts for the shape that it names, and an unknown name is nobody's."""
        tracker = tracker_after((100, "a"), (200, "b"))
        assert tracker.flushed("A", at(200), 0.0) is None
        assert tracker.flushed("b", at(200), 0.0) is None
        assert tracker.frontier_lsn == 0

    def test_wrong_shape_identity_of_a_former_shape(self) -> None:
        """A flush that outlives its shape reports under the name that a new shape has by then."""
        tracker = tracker_after((100, "ab"), (200, "a"))
        tracker.remove("a")
        tracker.add("a", flushed=LogOffset(tracker.frontier_lsn, 0), now=0.0)

        assert tracker.flushed("a", at(200), 0.0) is None
        assert tracker.flushed("b", at(100), 0.0) is None
        assert tracker.keepalive(900) is None
        assert tracker.snapshotted("a", 300, 0.0) == 900

    def test_skipped_transactions_not_marked_flushed(self) -> None:
        """What a shape does not see, it is not waited for; nothing is kept of it."""
        tracker = tracker_after((100, "a"))
        tracker.flushed("a", at(100), 0.0)

        assert [commit(tracker, lsn) for lsn in (200, 300)] == [205, 305]
        assert commit(tracker, 400, "b") is None
        assert tracker.progress("a") is None
        assert tracker.flushed("b", at(400), 0.0) == 405
        assert tracker.behind_count == 0

    def test_no_acknowledgement_while_postgres_is_silent(self) -> None:
        """The last flush confirms by itself, to the end; then keepalives do."""
        tracker = tracker_after((100, "ab"))
        tracker.flushed("a", at(100), 0.0)

        assert tracker.flushed("b", at(100), 0.0) == 105
        assert tracker.keepalive(400) == 400

    def test_acknowledgements_delayed_under_load(self) -> None:
        """A shape that never catches up still moves the frontier with each of its flushes."""
        tracker = tracker_after((100, "a"))

        for lsn in range(200, 2000, 100):
            commit(tracker, lsn, "a")
            assert tracker.flushed("a", at(lsn - 100), 0.0) == lsn - 100

    def test_stuck_when_storage_flushes_a_non_commit_fragment_first(self) -> None:
        """The note of a fragment comes before the commit is seen; the note of the rest settles it."""
        tracker = tracker_after((100, "a"))

        assert tracker.flushed("a", at(200, 2), 0.0) == 105
        assert commit(tracker, 200, "a") is None
        assert tracker.frontier_lsn == 105
        assert tracker.flushed("a", at(200), 0.0) == 205
        assert tracker.behind_count == 0

    def test_dead_consumer_still_tracked(self) -> None:
        tracker = tracker_after((100, "ab"), (200, "b"))
        tracker.flushed("b", at(200), 0.0)

        assert tracker.remove("a") == 205
        assert tracker.flushed("a", at(100), 0.0) is None
        assert tracker.remove("a") is None
        assert tracker.behind_count == 0
        assert commit(tracker, 300, "b") is None
        assert tracker.flushed("b", at(300), 0.0) == 305

    def test_flush_note_in_mid_transaction_lost(self) -> None:
        """It counts for what lies before that transaction, and for nothing of it."""
        tracker = tracker_after((100, "a"), (200, "a"), (300, "a"))

        assert tracker.flushed("a", at(200, 4), 0.0) == 200
        assert tracker.minimum == at(200, 4)
        assert tracker.flushed("a", at(200), 0.0) is None
        assert tracker.flushed("a", at(300, 6), 0.0) == 300
        assert tracker.flushed("a", at(300), 0.0) == 305

    def test_wal_sender_timeout_kill_under_backpressure(self) -> None:
        """With a shape held back the tracker takes all that comes, keeps its size, and has an answer."""
        tracker = tracker_after((50, ""), (100, "a"))

        for lsn in range(200, 20_000, 10):
            assert commit(tracker, lsn, "a", "b") is None
            assert tracker.keepalive(lsn + LENGTH) is None
            assert tracker.frontier_lsn == 55

        assert (tracker.behind_count, len(tracker._index)) == (2, 2)

    def test_duplicate_operations_after_restart(self) -> None:
        """A new stream sends again from the frontier on; tables that hold it already say so, at once."""
        former = tracker_after((100, "a"), (200, "ab"), (300, "a"))
        former.flushed("a", at(300), 0.0)
        former.flushed("b", at(100), 0.0)
        assert former.frontier_lsn == 100

        tracker = FlushTracker(initial_lsn=100)
        assert commit(tracker, 100, "a") is None
        assert tracker.flushed("a", at(300), 0.0) == 105
        assert commit(tracker, 200, "a", "b") is None
        assert tracker.flushed("a", at(300), 0.0) is None
        assert commit(tracker, 300, "a") is None
        assert tracker.flushed("a", at(300), 0.0) is None
        assert tracker.frontier_lsn == 105
        assert tracker.flushed("b", at(300), 0.0) == 305

    def test_a_slot_that_went_back(self) -> None:
        """Postgres may forget what was confirmed: transactions below the initial LSN are ordinary."""
        tracker = FlushTracker(initial_lsn=300)

        assert commit(tracker, 100, "a") is None
        assert tracker.flushed("a", at(300), 0.0) is None
        assert (tracker.frontier_lsn, tracker.behind_count) == (300, 0)
        assert commit(tracker, 300) == 305

    def test_keepalive_acknowledged_past_small_unflushed_transactions(self) -> None:
        tracker = FlushTracker()
        tracker.committed(LogOffset(100, 0), 101, {"a"}, 0.0)

        assert [tracker.keepalive(lsn) for lsn in (101, 5_000, 10**9)] == [None] * 3
        assert tracker.frontier_lsn == 0
        assert tracker.flushed("a", LogOffset(100, 0), 0.0) == 10**9

    def test_a_stalled_consumer_pins_the_slot_for_ever(self) -> None:
        """It is named, with its age and offset, and the slot moves when somebody removes it."""
        tracker = FlushTracker()
        commit(tracker, 100, "dead", "fine", now=0.0)
        for step in range(1, 100):
            tracker.flushed("fine", at(100 * step), float(step))
            commit(tracker, 100 + 100 * step, "fine", now=float(step))

        assert tracker.stalled(99.0, 60.0) == [Stalled("dead", 99.0, BEFORE_ALL)]
        assert tracker.frontier_lsn == 0
        assert tracker.remove("dead") == 9_900

    def test_a_new_member_on_a_resuming_slot_skips_rows(self) -> None:
        """What is confirmed while its snapshot is not there could never be sent to it again."""
        tracker = FlushTracker(initial_lsn=100)
        tracker.add("new", flushed=LogOffset(100, 0), now=0.0)

        assert commit(tracker, 110, "old") is None
        assert tracker.flushed("old", at(110), 0.0) is None
        assert commit(tracker, 200, "new", "old") is None
        assert tracker.flushed("old", at(200), 0.0) is None
        assert tracker.keepalive(900) is None
        assert tracker.frontier_lsn == 100
        assert tracker.snapshotted("new", 150, 0.0) == 149
        assert tracker.flushed("new", at(200), 0.0) == 900

    def test_position_taken_as_the_larger_of_stored_and_new_slot(self) -> None:
        """A stored position is no position of this slot: it releases a shape and moves nothing else."""
        stored = at(5_000)
        tracker = FlushTracker(initial_lsn=1_000)

        assert tracker.flushed("a", stored, 0.0) is None
        assert commit(tracker, 1_100, "a", "b") is None
        assert tracker.flushed("a", stored, 0.0) is None
        assert tracker.frontier_lsn == 1_000
        assert tracker.flushed("b", stored, 0.0) == 1_105
        assert tracker.last_global_flushed_offset == at(1_100)
