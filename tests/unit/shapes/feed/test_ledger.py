from __future__ import annotations

from pathlib import Path

import pytest

from penstock.changelog.log import ChangeLog
from penstock.changelog.runs import create_run
from penstock.decoding.wal2json import Wal2Json
from penstock.model.log_offset import BEFORE_ALL, LogOffset
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Append, Collector, Committed, Silence
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held, whole
from penstock.shapes.pace.shape_plan import Job, JobStart, ShapeState

ORDERS = Relation("public", "orders")
START = 100


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Two shapes of one table, `old` with everything before the start, on an empty log."""
    held = Held()
    collector = Collector(
        walk=FrameWalk(Wal2Json(), confirmed_lsn=START, needs_lsn=True),
        shapes={"old": ORDERS, "new": ORDERS},
        trees=[Tree(Member(ORDERS, 1, 1, "a"))],
        held=held,
    )
    ledger = Ledger(
        held=held,
        collector=collector,
        log=ChangeLog(create_run(tmp_path, "run")),
        tracker=FlushTracker(initial_lsn=START),
        plan=FlushPlan(held=held),
    )
    ledger.add("old", interval_s=0.0, held=whole(90), now=0.0)
    ledger.add("new", interval_s=0.0, held=BEFORE_ALL, now=0.0)
    return ledger


def transaction(commit_lsn: int, *touched: str) -> list[Append | Committed]:
    appends = [Append(ORDERS, commit_lsn, 0, b"{}")] if touched else []
    return [*appends, Committed(LogOffset(commit_lsn, 0), commit_lsn + 8, frozenset(touched))]


def test_a_transaction_waits_for_those_it_touched(ledger: Ledger) -> None:
    assert ledger.carry_out(transaction(200, "old", "new"), 1.0) == []
    assert ledger.tracker.frontier_lsn == START
    assert ledger.log.last_seen_txn_offset == whole(200)
    assert set(ledger.plan.start(1.0)) == {JobStart("old", Job.FLUSH), JobStart("new", Job.FLUSH)}

    ledger.flushed("old", 200, 2.0)
    assert ledger.tracker.frontier_lsn == START
    ledger.flushed("new", 200, 2.0)
    assert ledger.tracker.frontier_lsn == 208
    assert ledger.held("new") == whole(200)


def test_a_shape_has_to_flush_only_what_is_its_own(ledger: Ledger) -> None:
    other = [Append(Relation("public", "other"), 200, 2 * number, b"x" * 100) for number in range(1, 9)]
    ledger.carry_out([Append(ORDERS, 200, 0, b"{}"), *other, *transaction(200, "old")[1:]], 1.0)
    assert ledger.plan.status(1.0)[0].pending_bytes == 2


def test_one_that_touches_nobody_is_not_in_the_log(ledger: Ledger) -> None:
    ledger.carry_out([*transaction(200), Silence(300)], 1.0)
    assert ledger.tracker.frontier_lsn == 300
    assert ledger.log.size_bytes == 0
    assert ledger.transactions == 1


def test_a_shape_that_begins_anew_holds_the_frontier_until_that_is_noted(ledger: Ledger) -> None:
    again = SnapshotAgain("new", "it is new")
    assert ledger.carry_out([again], 1.0) == [again]
    ledger.carry_out(transaction(200, "old", "new"), 1.0)
    ledger.plan.start(1.0)
    ledger.flushed("old", 200, 2.0)
    assert ledger.tracker.frontier_lsn == START, "after a crash its table would count"
    ledger.failed("new", "no spare slot", 2.0)
    assert ledger.tracker.frontier_lsn == START
    ledger.noted("new")
    ledger.carry_out([Silence(300)], 3.0)
    assert ledger.tracker.frontier_lsn == 300


def test_a_parked_shape_costs_nothing_until_it_is_copied(ledger: Ledger) -> None:
    ledger.carry_out([SnapshotAgain("new", "it is new")], 1.0)
    ledger.noted("new")
    assert ledger.is_parked("new")
    ledger.carry_out(transaction(200, "new"), 1.0)
    assert ledger.tracker.frontier_lsn == 208
    ledger.carry_out(transaction(300, "old", "new"), 1.0)
    assert ledger.plan.start(1.0) == [JobStart("new", Job.SNAPSHOT), JobStart("old", Job.FLUSH)]
    ledger.flushed("old", 300, 2.0)
    assert ledger.tracker.frontier_lsn == 308

    ledger.begin_copy("new", 3.0)
    ledger.carry_out([*transaction(400, "old", "new"), *transaction(500, "old", "new")], 3.0)
    ledger.plan.start(3.0)
    ledger.flushed("old", 500, 4.0)
    assert ledger.tracker.frontier_lsn == 308, "pinned before the cut is known"
    ledger.cut("new", 450)
    assert ledger.snapshotted("new", 450, 5.0)
    assert ledger.tracker.frontier_lsn == 449, "the transaction at 500 is still to come for `new`"
    assert ledger.plan.start(5.0) == [JobStart("new", Job.FLUSH)]
    ledger.flushed("new", 500, 6.0)
    assert ledger.tracker.frontier_lsn == 508


def test_changes_of_parked_shapes_alone_are_not_in_the_log(ledger: Ledger) -> None:
    for shape in ("old", "new"):
        ledger.carry_out([SnapshotAgain(shape, "again")], 1.0)
        ledger.noted(shape)
    ledger.carry_out(transaction(200, "old", "new"), 1.0)
    assert (ledger.log.size_bytes, ledger.changes) == (0, 0)
    ledger.plan.start(1.0)
    ledger.begin_copy("old", 2.0)
    ledger.carry_out(transaction(300, "old", "new"), 2.0)
    assert ledger.log.last_seen_txn_offset == whole(300)


def test_a_transaction_in_which_its_shapes_are_parked_is_ended_in_the_log(ledger: Ledger) -> None:
    append, committed = transaction(200, "new")
    ledger.carry_out([append, SnapshotAgain("new", "again")], 1.0)
    ledger.noted("new")
    ledger.carry_out([committed, *transaction(300, "old")], 2.0)
    assert ledger.log.last_seen_txn_offset == whole(300)
    assert ledger.tracker.frontier_lsn == 208


def test_a_copy_that_fails_or_came_too_early_parks_its_shape_again(ledger: Ledger) -> None:
    ledger.carry_out([SnapshotAgain("new", "first")], 1.0)
    ledger.noted("new")
    ledger.plan.start(1.0)
    ledger.begin_copy("new", 1.0)
    ledger.carry_out([*transaction(200, "new"), SnapshotAgain("new", "again")], 2.0)
    ledger.noted("new")
    assert ledger.tracker.frontier_lsn == START, "its copy runs"

    assert not ledger.snapshotted("new", 150, 3.0)
    assert ledger.tracker.frontier_lsn == 208
    assert ledger.offsets() == {"old": 90}
    assert ledger.plan.start(3.0) == [JobStart("new", Job.SNAPSHOT)]
    ledger.begin_copy("new", 3.0)
    ledger.carry_out(transaction(300, "new"), 3.0)
    ledger.failed("new", "no room", 4.0)
    assert ledger.tracker.frontier_lsn == 308
    assert ledger.plan.start(9.0) == [JobStart("new", Job.SNAPSHOT)]
    ledger.begin_copy("new", 9.0)
    assert ledger.snapshotted("new", 400, 9.0)
    assert ledger.offsets() == {"old": 90, "new": 399}


def test_a_copy_that_gets_no_cut_holds_nobody(ledger: Ledger) -> None:
    """Neither before it is pinned, whatever is asked for meanwhile, nor after it was given up."""
    ledger.carry_out([SnapshotAgain("new", "first")], 1.0)
    ledger.noted("new")
    ledger.plan.start(1.0)
    ledger.carry_out([*transaction(200, "new"), SnapshotAgain("new", "again")], 2.0)
    assert ledger.tracker.frontier_lsn == 208
    ledger.carry_out(transaction(300, "new"), 2.0)
    assert ledger.tracker.frontier_lsn == 208, "until that is noted"
    ledger.noted("new")
    assert ledger.tracker.frontier_lsn == 308, "it runs, and waits for its cut"

    ledger.begin_copy("new", 3.0)
    ledger.carry_out([*transaction(400, "new"), SnapshotAgain("new", "again")], 3.0)
    ledger.noted("new")
    assert ledger.tracker.frontier_lsn == 308
    ledger.end_copy("new")
    assert ledger.is_parked("new")
    assert ledger.tracker.frontier_lsn == 408
    assert ledger.tracker.minimum == LogOffset(400, 0), "nor does it hold the log"

    ledger.begin_copy("new", 4.0)
    ledger.carry_out(transaction(600, "new"), 4.0)
    ledger.cut("new", 500)
    ledger.plan.copying("new", 4.0)
    assert ledger.snapshotted("new", 500, 5.0)
    assert ledger.plan.start(5.0) == [JobStart("new", Job.FLUSH)]
    assert ledger.tracker.frontier_lsn == 499


def test_a_stopped_shape_is_parked_until_its_snapshot_is_asked_for(ledger: Ledger) -> None:
    ledger.stop("old", "it has no key", 1.0)
    ledger.carry_out(transaction(200, "old"), 1.0)
    assert ledger.tracker.frontier_lsn == START
    ledger.noted("old")
    assert ledger.tracker.frontier_lsn == 208
    assert ledger.plan.start(1e6) == []
    assert ledger.offsets() == {}
    assert ledger.plan.status(2.0)[0].state is ShapeState.STOPPED

    ledger.carry_out([SnapshotAgain("old", "mended")], 2.0)
    ledger.noted("old")
    assert ledger.plan.start(2.0) == [JobStart("old", Job.SNAPSHOT)]


def test_only_what_was_read_back_from_a_table_is_for_the_registry(ledger: Ledger) -> None:
    """After a crash the table is where its last commit left it, and must not look like an older copy."""
    ledger.carry_out(transaction(200, "old"), 1.0)
    ledger.plan.start(1.0)
    ledger.passed("old", 200, 2.0)
    assert ledger.held("old") == whole(200)
    assert ledger.tracker.frontier_lsn == 208, "nobody needs it any more"
    assert ledger.offsets() == {"old": 90}

    ledger.carry_out(transaction(300, "old"), 3.0)
    ledger.plan.start(3.0)
    ledger.flushed("old", 300, 4.0)
    assert ledger.offsets() == {"old": 300}


def test_a_late_note_doesn_t_move_a_table_back(ledger: Ledger) -> None:
    ledger.carry_out(transaction(200, "old"), 1.0)
    ledger.plan.start(1.0)
    ledger.flushed("old", 200, 2.0)
    ledger.carry_out(transaction(300, "old"), 2.0)
    ledger.plan.start(2.0)
    ledger.flushed("old", 150, 3.0)
    assert ledger.held("old") == whole(200)
