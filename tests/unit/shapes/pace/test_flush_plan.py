from __future__ import annotations

from math import inf

import pytest

from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.shape_plan import Job, JobStart, ShapeState, ShapeStatus, StalledShape
from tests.flush_limits import flush_limits

LIMITS = flush_limits(flushes=2, pending_bytes=100, longest_backoff_s=8.0)


def at(tx_offset: int) -> LogOffset:
    return LogOffset(tx_offset, OP_INFINITY)


def plan_of(*shapes: str, interval_s: float = 10.0) -> FlushPlan:
    plan = FlushPlan(LIMITS)
    for shape in shapes:
        plan.add(shape, interval_s=interval_s, held=at(0), now=0.0)
    return plan


def started(plan: FlushPlan, now: float) -> list[str]:
    return [start.shape for start in plan.start(now)]


def state(plan: FlushPlan, shape: str, now: float) -> ShapeState:
    return next(status.state for status in plan.status(now) if status.shape == shape)


def flush(plan: FlushPlan, shape: str, offset: LogOffset, now: float) -> None:
    assert started(plan, now) == [shape]
    plan.finished(shape, offset, now)


def test_a_shape_with_nothing_new_is_never_due() -> None:
    plan = plan_of("a")
    assert plan.start(1e9) == []
    assert plan.next_at(1e9) is None
    assert state(plan, "a", 1e9) is ShapeState.IDLE


def test_after_a_silence_a_change_is_flushed_at_once() -> None:
    plan = plan_of("a")
    plan.sent("a", at(5), 1, now=3.0)
    assert state(plan, "a", 3.0) is ShapeState.WAITING
    assert plan.start(3.0) == [JobStart("a", Job.FLUSH)]
    assert state(plan, "a", 3.0) is ShapeState.FLUSHING
    assert plan.start(99.0) == [], "one job at a time"
    plan.finished("a", at(5), 4.0)
    assert plan.status(4.0) == [ShapeStatus("a", ShapeState.IDLE, at(5), 0, None)]
    assert plan.start(99.0) == []


def test_a_copy_lifts_a_stop_that_came_before_it_began_to_copy() -> None:
    plan = plan_of("a")
    plan.snapshot("a", 1.0)
    assert plan.start(1.0) == [JobStart("a", Job.SNAPSHOT)]
    plan.stop("a", "it has no key", 2.0)

    plan.copying("a", 3.0)

    assert plan.awaits_snapshot("a")
    plan.finished("a", at(5), 4.0)
    assert not plan.awaits_snapshot("a")
    assert plan.status(4.0) == [ShapeStatus("a", ShapeState.IDLE, at(5), 0, None)]


def test_a_stop_counts_that_comes_while_the_copy_runs_or_if_it_never_begins() -> None:
    plan = plan_of("a", "b")
    for shape in ("a", "b"):
        plan.snapshot(shape, 1.0)
        assert plan.start(1.0) == [JobStart(shape, Job.SNAPSHOT)]
        if shape == "a":
            plan.copying(shape, 1.0)
        plan.stop(shape, "it has no key", 2.0)
        if shape == "a":
            plan.finished(shape, at(5), 3.0)
        else:
            plan.failed(shape, "it has no key", 3.0)
        assert state(plan, shape, 99.0) is ShapeState.STOPPED
        assert plan.start(99.0) == []


def test_it_is_known_since_when_a_shape_fails_and_when_it_was_written() -> None:
    plan = plan_of("a", "b")

    def ages(now: float) -> list[tuple[float, float]]:
        return [(status.failing_s, status.wrote_s) for status in plan.status(now)]

    assert ages(1.0) == [(0.0, inf), (0.0, inf)]
    plan.sent("a", at(5), 1, now=1.0)
    for now in (1.0, 11.0):
        plan.start(now)
        plan.failed("a", "no room", now)
    plan.wrote("b", 12.0)
    assert ages(15.0) == [(14.0, inf), (0.0, 3.0)]
    plan.start(30.0)
    plan.finished("a", at(5), 30.0)
    assert ages(30.0)[0] == (0.0, inf), "nothing was for it"


def test_the_interval_counts_from_the_beginning_of_the_last_flush() -> None:
    plan = plan_of("a")
    plan.sent("a", at(5), 1, now=3.0)
    plan.start(3.0)
    plan.sent("a", at(6), 1, now=4.0)
    plan.finished("a", at(5), 9.0)
    assert state(plan, "a", 9.0) is ShapeState.IDLE
    assert plan.next_at(9.0) == 13.0
    assert started(plan, 12.9) == []
    assert started(plan, 13.0) == ["a"]


def test_many_bytes_do_not_wait_for_the_interval() -> None:
    plan = plan_of("a")
    plan.sent("a", at(5), 1, now=0.0)
    flush(plan, "a", at(5), 0.0)
    plan.sent("a", at(6), 99, now=1.0)
    assert started(plan, 1.0) == []
    plan.sent("a", at(7), 1, now=2.0)
    assert started(plan, 2.0) == ["a"]
    plan.sent("a", at(8), 100, now=3.0)
    plan.finished("a", at(7), 4.0)
    assert plan.status(4.0)[0].pending_bytes == 100
    assert started(plan, 4.0) == ["a"], "as much came while it ran"
    plan.sent("a", at(9), 5, now=5.0)
    plan.finished("a", at(8), 5.0)
    assert plan.status(5.0)[0].pending_bytes == 5
    assert started(plan, 5.0) == []


def test_a_full_log_hurries_those_that_have_something_to_flush() -> None:
    plan = plan_of("a", "b")
    plan.sent("a", at(5), 1, now=0.0)
    flush(plan, "a", at(5), 0.0)
    plan.sent("a", at(6), 1, now=1.0)
    plan.make_room(2.0)
    assert started(plan, 2.0) == ["a"]


def test_a_flush_that_fell_short_waits_for_its_interval() -> None:
    plan = plan_of("a")
    plan.sent("a", at(5), 60, now=0.0)
    plan.sent("a", at(6), 60, now=0.0)
    plan.start(0.0)
    plan.finished("a", at(5), 1.0)
    assert plan.status(1.0)[0][2:4] == (at(5), 120)
    assert started(plan, 9.9) == []
    assert started(plan, 10.0) == ["a"]
    plan.finished("a", at(6), 11.0)
    assert plan.status(11.0)[0].pending_bytes == 0


def test_a_flush_that_had_enough_goes_on_at_once() -> None:
    """A shape with a long interval would never catch up otherwise."""
    plan = plan_of("a", interval_s=600.0)
    for number in range(1, 4):
        plan.sent("a", at(number), 60, now=0.0)
    plan.start(0.0)
    for number in (1, 2):
        plan.finished("a", at(number), float(number), more=True)
        assert started(plan, float(number)) == ["a"]
    plan.finished("a", at(3), 3.0, more=True)
    assert plan.start(3.0) == [], "what is left is not for it"


def test_a_change_that_the_table_has_already_is_answered_by_a_job() -> None:
    """The FlushTracker waits for a note about it."""
    plan = plan_of("a")
    plan.add("b", interval_s=1.0, held=at(9), now=0.0)
    plan.sent("b", at(5), 1, now=1.0)
    flush(plan, "b", at(9), 1.0)
    assert plan.next_at(1.0) is None


def test_at_most_so_many_run_at_once_and_the_longest_waiting_goes_first() -> None:
    plan = plan_of("a", "b", "c", "d")
    for now, shape in enumerate("dcba"):
        plan.sent(shape, at(5), 1, now=float(now))
    assert started(plan, 9.0) == ["d", "c"]
    assert started(plan, 9.0) == []
    assert plan.next_at(9.0) is None, "a place is what they wait for"
    plan.finished("c", at(5), 10.0)
    plan.sent("c", at(6), 500, now=10.0)
    assert started(plan, 10.0) == ["b"]
    plan.finished("b", at(5), 11.0)
    assert started(plan, 11.0) == ["a"]


def test_one_that_was_hurried_goes_before_one_whose_interval_passed_later() -> None:
    plan = plan_of("a", "b", "busy", "busy too")
    for shape, now in (("a", 0.0), ("b", 5.0)):
        plan.sent(shape, at(1), 1, now=now)
        flush(plan, shape, at(1), now)
    for shape in ("busy", "busy too"):
        plan.sent(shape, at(2), 1, now=5.0)
    plan.start(5.0)
    plan.sent("a", at(3), 1, now=6.0)
    plan.sent("b", at(3), 100, now=7.0)
    plan.finished("busy", at(3), 20.0)
    assert started(plan, 20.0) == ["b"], "due at 7; a has been due since 10"


def test_a_busy_shape_does_not_take_two_turns_in_a_row() -> None:
    plan = plan_of("busy", "a", "long", interval_s=1.0)
    plan.sent("long", at(1), 1, now=0.0)
    plan.sent("busy", at(1), 1, now=0.0)
    plan.start(0.0)
    plan.sent("busy", at(2), 1, now=1.0)
    plan.sent("a", at(2), 1, now=5.0)
    plan.finished("busy", at(1), 9.0)
    assert started(plan, 9.0) == ["a"]


def test_those_that_became_due_together_go_by_their_last_turn() -> None:
    plan = plan_of("a", "b", "c", interval_s=1.0)
    for shape in "cb":
        plan.sent(shape, at(1), 1, now=0.0)
        flush(plan, shape, at(1), 1.0 if shape == "c" else 2.0)
    for shape in "abc":
        plan.sent(shape, at(2), 1, now=10.0)
    assert started(plan, 10.0) == ["a", "c"]


def test_a_failing_shape_backs_off_and_holds_nobody() -> None:
    plan = plan_of("a", "b", interval_s=0.1)
    plan.sent("a", at(5), 500, now=0.0)
    now = 0.0
    waits = []
    for _ in range(5):
        assert started(plan, now) == ["a"]
        plan.failed("a", "the disk is full", now)
        assert state(plan, "a", now) is ShapeState.BACKING_OFF
        plan.make_room(now)
        assert plan.start(now) == [], "a full log doesn't shorten it"
        plan.sent("b", at(5 + int(now)), 1, now=now)
        flush(plan, "b", at(5 + int(now)), now)
        retry_at = plan.next_at(now)
        assert retry_at is not None
        waits.append(retry_at - now)
        now = retry_at
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert plan.status(now)[0].error == "the disk is full"
    flush(plan, "a", at(5), now)
    assert plan.status(now)[0] == ShapeStatus("a", ShapeState.IDLE, at(5), 0, None)
    plan.sent("a", at(60), 1, now=now + 1)
    assert started(plan, now + 1) == ["a"]
    plan.failed("a", "again", now + 1)
    assert plan.next_at(now + 1) == now + 2, "success forgets"


def test_a_very_long_outage_does_not_overflow() -> None:
    plan = plan_of("a", interval_s=1.0)
    plan.sent("a", at(5), 1, now=0.0)
    now = 0.0
    for _ in range(2000):
        assert started(plan, now) == ["a"]
        plan.failed("a", "no", now)
        now += 8.0


def test_a_snapshot_has_its_own_place_and_its_shape_is_not_flushed() -> None:
    plan = plan_of("a", "b", "c", "d")
    for shape in "abcd":
        plan.sent(shape, at(5), 500, now=0.0)
    plan.snapshot("a", 1.0)
    plan.snapshot("b", 2.0)
    assert plan.start(2.0) == [
        JobStart("c", Job.FLUSH),
        JobStart("d", Job.FLUSH),
        JobStart("a", Job.SNAPSHOT),
    ]
    assert state(plan, "a", 2.0) is ShapeState.SNAPSHOTTING
    assert state(plan, "b", 2.0) is ShapeState.WAITING
    plan.finished("c", at(5), 3.0)
    assert plan.start(3.0) == [], "neither of them may be flushed"
    plan.finished("a", at(5), 4.0)
    assert plan.start(4.0) == [JobStart("b", Job.SNAPSHOT)]
    assert plan.status(4.0)[0] == ShapeStatus("a", ShapeState.IDLE, at(5), 0, None)


def test_before_the_end_no_copy_begins_and_one_that_runs_is_finished() -> None:
    plan = plan_of("a", "b", "c")
    plan.snapshot("a", 0.0)
    plan.snapshot("b", 0.0)
    assert plan.start(0.0) == [JobStart("a", Job.SNAPSHOT)]
    plan.begin_no_snapshots()
    plan.finished("a", at(5), 1.0)
    plan.sent("c", at(5), 1, now=1.0)
    assert plan.start(1.0) == [JobStart("c", Job.FLUSH)]


def test_what_came_behind_the_cut_is_flushed_after_the_snapshot() -> None:
    plan = plan_of()
    plan.add("a", interval_s=1.0, held=BEFORE_ALL, now=0.0)
    plan.snapshot("a", 0.0)
    plan.start(0.0)
    plan.sent("a", at(5), 1, now=1.0)
    plan.sent("a", at(7), 1, now=2.0)
    plan.finished("a", at(6), 3.0)
    assert plan.start(3.0) == [JobStart("a", Job.FLUSH)]


def test_a_snapshot_waits_for_the_flush_that_runs() -> None:
    plan = plan_of("a")
    plan.sent("a", at(5), 1, now=0.0)
    plan.start(0.0)
    plan.snapshot("a", 1.0)
    assert plan.start(1.0) == []
    plan.finished("a", at(5), 2.0)
    assert plan.start(2.0) == [JobStart("a", Job.SNAPSHOT)]


def test_a_snapshot_asked_for_while_one_runs_is_taken_after_it() -> None:
    plan = plan_of("a")
    plan.snapshot("a", 0.0)
    plan.start(0.0)
    plan.snapshot("a", 1.0)
    plan.finished("a", at(5), 2.0)
    assert plan.start(2.0) == [JobStart("a", Job.SNAPSHOT)]
    plan.finished("a", at(6), 3.0)
    assert plan.start(99.0) == []


def test_a_failed_snapshot_is_tried_again_once_whatever_was_asked_meanwhile() -> None:
    plan = plan_of("a")
    plan.snapshot("a", 0.0)
    plan.start(0.0)
    plan.snapshot("a", 1.0)
    plan.failed("a", "no spare slot", 2.0)
    assert plan.start(2.9) == []
    assert plan.start(3.0) == [JobStart("a", Job.SNAPSHOT)]
    plan.finished("a", at(5), 4.0)
    assert plan.start(99.0) == []


def test_a_stopped_shape_has_no_jobs_until_a_snapshot_is_asked_for() -> None:
    plan = plan_of("a", interval_s=1.0)
    plan.sent("a", at(5), 500, now=0.0)
    plan.start(0.0)
    plan.stop("a", "it has no key", 1.0)
    plan.failed("a", "it has no key", 1.0)
    plan.make_room(2.0)
    assert plan.start(1e6) == []
    assert plan.next_at(1.0) is None
    assert plan.awaits_snapshot("a")
    assert state(plan, "a", 1e6) is ShapeState.STOPPED
    assert plan.stalled(61.0, after_s=60.0) == [StalledShape("a", 61.0, at(0), "it has no key")]
    plan.snapshot("a", 70.0)
    assert plan.start(70.0) == [JobStart("a", Job.SNAPSHOT)], "and its failures are forgotten"
    plan.finished("a", at(9), 71.0)
    assert plan.status(71.0) == [ShapeStatus("a", ShapeState.IDLE, at(9), 0, None)]


class TendedPlan(FlushPlan):
    """A plan whose shapes are tended after every flush."""

    def finished(self, shape: str, offset: LogOffset, now: float, *, more: bool = False) -> None:
        """See FlushPlan."""
        super().finished(shape, offset, now, more=more)
        self.tend(shape, now)


def tended_plan(*shapes: str) -> FlushPlan:
    plan = TendedPlan(LIMITS)
    for shape in shapes:
        plan.add(shape, interval_s=1.0, held=at(0), now=0.0)
    return plan


def test_upkeep_takes_no_place_of_a_flush() -> None:
    plan = tended_plan("a", "b", "c", "d")
    for shape in "ab":
        plan.sent(shape, at(1), 1, now=0.0)
    plan.start(0.0)
    plan.finished("a", at(1), 1.0)
    plan.finished("b", at(1), 1.0)
    assert plan.start(1.0) == [JobStart("a", Job.UPKEEP)], "one at a time"
    assert state(plan, "a", 1.0) is ShapeState.TENDING
    for shape in "abcd":
        plan.sent(shape, at(2), 1, now=2.0)
    assert plan.start(2.0) == [JobStart("c", Job.FLUSH), JobStart("d", Job.FLUSH)]
    plan.finished("c", at(2), 3.0)
    assert plan.start(3.0) == [JobStart("b", Job.FLUSH)], "a waits for the end of its upkeep"
    plan.tended("a")
    plan.finished("d", at(2), 4.0)
    assert plan.start(4.0) == [JobStart("a", Job.FLUSH), JobStart("c", Job.UPKEEP)]


def test_upkeep_never_runs_beside_a_job_of_its_shape() -> None:
    plan = tended_plan("a")
    plan.sent("a", at(1), 1, now=0.0)
    plan.start(0.0)
    plan.sent("a", at(2), 1, now=0.5)
    plan.finished("a", at(1), 5.0)
    assert plan.start(5.0) == [JobStart("a", Job.FLUSH)], "both are due: it is flushed first"
    plan.sent("a", at(3), 500, now=6.0)
    plan.finished("a", at(2), 7.0)
    assert plan.start(7.0) == [JobStart("a", Job.UPKEEP)], "a busy shape is tended all the same"
    assert plan.start(8.0) == []
    plan.tended("a")
    assert plan.status(8.0)[0].pending_bytes == 500
    assert plan.start(8.0) == [JobStart("a", Job.FLUSH)]


def test_upkeep_waits_for_a_shape_that_fails_or_awaits_its_snapshot() -> None:
    plan = tended_plan("a")
    plan.sent("a", at(1), 1, now=0.0)
    plan.start(0.0)
    plan.sent("a", at(2), 1, now=0.0)
    plan.finished("a", at(1), 2.0)
    plan.start(2.0)
    plan.failed("a", "no", 2.0)
    assert plan.start(2.5) == []
    plan.snapshot("a", 2.6)
    assert plan.start(9.0) == [JobStart("a", Job.SNAPSHOT)]
    plan.finished("a", at(2), 10.0)
    assert plan.start(10.0) == [JobStart("a", Job.UPKEEP)]


def test_a_stalled_shape_is_named_with_its_age_offset_and_error() -> None:
    plan = plan_of("a", "b", "c")
    plan.sent("b", at(5), 1, now=10.0)
    plan.sent("a", at(5), 1, now=20.0)
    plan.start(20.0)
    plan.failed("a", "the storage is read-only", 30.0)
    assert plan.stalled(69.9, after_s=60.0) == []
    assert plan.stalled(80.0, after_s=60.0) == [
        StalledShape("b", 70.0, at(0), None),
        StalledShape("a", 60.0, at(0), "the storage is read-only"),
    ]
    plan.finished("b", at(4), 90.0)
    assert [stalled.shape for stalled in plan.stalled(100.0, after_s=60.0)] == ["a"], "b has moved"
    assert [stalled.shape for stalled in plan.stalled(160.0, after_s=60.0)] == ["a", "b"]


def test_waiting_for_its_interval_is_no_stall() -> None:
    plan = FlushPlan()
    plan.add("a", interval_s=100.0, held=at(0), now=0.0)
    plan.sent("a", at(5), 1, now=0.0)
    assert plan.stalled(159.9, after_s=60.0) == []
    assert plan.stalled(160.0, after_s=60.0) == [StalledShape("a", 160.0, at(0), None)]


def test_a_long_snapshot_is_stalled_only_if_it_fails() -> None:
    plan = plan_of("a", "b")
    plan.snapshot("a", 0.0)
    plan.snapshot("b", 0.0)
    plan.sent("a", at(5), 1, now=0.0)
    plan.start(0.0)
    assert plan.stalled(1e6, after_s=60.0) == []
    plan.failed("a", "no spare slot", 50.0)
    plan.start(51.0)
    assert plan.stalled(60.0, after_s=60.0) == [StalledShape("a", 60.0, at(0), "no spare slot")]


def test_a_snapshot_that_waits_for_its_cut_is_stalled_and_says_for_what() -> None:
    """From when it began to wait: it may have waited long for its turn."""
    plan = plan_of("a")
    plan.snapshot("a", 0.0)
    plan.start(1000.0)
    assert plan.waits("a", "it waits for pid 1", 1000.0)
    assert not plan.waits("a", "it waits for pid 2", 1030.0), "it has waited before"
    assert plan.stalled(1059.9, after_s=60.0) == []
    assert plan.stalled(1060.0, after_s=60.0) == [StalledShape("a", 60.0, at(0), "it waits for pid 2")]
    assert plan.status(1060.0)[0].waits_for == "it waits for pid 2"
    plan.has_cut("a")
    assert plan.stalled(1e6, after_s=60.0) == []
    plan.waits("a", "it waits for pid 3", 2000.0)
    plan.finished("a", at(5), 2001.0)
    assert plan.status(2001.0) == [ShapeStatus("a", ShapeState.IDLE, at(5), 0, None)]


def test_a_flush_that_doesnt_end_is_stalled_also_when_its_shape_is_parked() -> None:
    plan = plan_of("a")
    plan.sent("a", at(5), 1, now=0.0)
    plan.start(0.0)
    plan.snapshot("a", 10.0)
    assert plan.stalled(70.0, after_s=60.0) == [StalledShape("a", 70.0, at(0), None)]


def test_what_was_asked_for_before_the_cut_is_done_by_the_snapshot_that_runs() -> None:
    plan = plan_of("a")
    plan.snapshot("a", 0.0)
    plan.start(0.0)
    plan.snapshot("a", 1.0)
    plan.copying("a", 2.0)
    assert not plan.is_outdated("a")
    plan.finished("a", at(5), 3.0)
    assert not plan.awaits_snapshot("a")


def test_a_removed_shape_is_forgotten_and_frees_its_place() -> None:
    plan = plan_of("a", "b", "c")
    for shape in "abc":
        plan.sent(shape, at(5), 1, now=0.0)
    assert started(plan, 0.0) == ["a", "b"]
    plan.remove("a")
    plan.remove("a")
    assert started(plan, 0.0) == ["c"]
    plan.finished("a", at(5), 1.0)
    plan.failed("a", "late", 1.0)
    assert [status.shape for status in plan.status(1.0)] == ["b", "c"]


def test_misuse_is_said() -> None:
    plan = plan_of("a")
    with pytest.raises(ValueError, match="in the plan already"):
        plan.add("a", interval_s=1.0, held=at(0), now=0.0)
    with pytest.raises(RuntimeError, match="no job"):
        plan.finished("a", at(5), 1.0)
    with pytest.raises(RuntimeError, match="no job"):
        plan.failed("a", "no", 1.0)
