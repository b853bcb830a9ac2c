from __future__ import annotations

import math

import pytest

from penstock.model.log_offset import BEFORE_ALL, LogOffset
from penstock.postgres.slot.state import SlotState
from penstock.shapes.flushing.complaints import complaints, failing_holder, slot_holder
from penstock.shapes.pace.flush_tracker import Stalled
from penstock.shapes.pace.shape_plan import ShapeState, ShapeStatus, StalledShape

AT = LogOffset(7, 1)
FAILS = StalledShape("fails", 90.0, AT, "no room")
HANGS = StalledShape("hangs", 60.4, AT, None)
SAID = {
    "fails": f"shape fails has made no progress for 90 s, at {AT}: no room.",
    "hangs": f"shape hangs has made no progress for 60 s, at {AT}: its job does not end.",
}


def said(*behind: tuple[str, float], full: bool = True) -> dict[str, str]:
    holders = [Stalled(shape, age_s, AT) for shape, age_s in behind]
    return complaints([FAILS, HANGS], holders, log_is_full=full, stall_s=60.0)


def test_stalled_shapes_are_named_with_the_reason() -> None:
    assert said() == said(("fails", 90.0), full=False) == SAID


def test_a_full_log_names_the_shape_that_holds_it() -> None:
    assert said(("fails", 90.0), ("hangs", 60.0)) == SAID | {
        "fails": f"the log is full, and shape fails holds it. {SAID['fails']}"
    }
    assert said(("slow", 60.0))["slow"] == "the log is full, and shape slow holds it. It is behind for 60 s."


@pytest.mark.parametrize(
    ("half_full", "age_s", "copied", "is_named"),
    [
        (True, 60.0, {"copied"}, True),
        (True, 59.0, {"copied"}, False),
        (False, 600.0, {"copied"}, False),
        (True, 600.0, {"other"}, False),
    ],
)
def test_a_copy_that_holds_a_log_is_named_before_it_is_full(
    half_full: bool, age_s: float, copied: set[str], is_named: bool
) -> None:
    behind = [Stalled("copied", age_s, AT), Stalled("other", 900.0, AT)]
    found = complaints([], behind, log_is_full=False, stall_s=60.0, log_is_half_full=half_full, copied=copied)
    assert list(found) == (["copied"] if is_named else [])
    assert all("the log is half full, and shape copied holds it: its copy" in said for said in found.values())


GB = 1 << 30
LEFT = SlotState("left", "logical", "wal2json", "db", False, None, 3, 2, "reserved", None, "db", 3 * GB)


def test_who_holds_a_slot_that_was_left_behind_is_named_with_what_it_keeps() -> None:
    found = slot_holder(LEFT, [Stalled("slow", 60.0, AT), Stalled("other", 900.0, AT)], stall_s=60.0)
    assert list(found) == ["slow"]
    assert "slot left, which was left behind, keeps 3.0 GB of WAL" in found["slow"]
    assert f"no further than shape slow, which is at {AT}" in found["slow"]
    assert "pg_drop_replication_slot('left')" in found["slow"]


@pytest.mark.parametrize(
    ("slot", "behind"),
    [
        (None, [Stalled("slow", 60.0, AT)]),
        (LEFT._replace(retained_bytes=GB - 1), [Stalled("slow", 60.0, AT)]),
        (LEFT._replace(retained_bytes=None), [Stalled("slow", 60.0, AT)]),
        (LEFT, [Stalled("moves", 59.0, AT)]),
        (LEFT, []),
    ],
)
def test_a_slot_that_keeps_little_or_is_moved_along_is_not_worth_a_word(
    slot: SlotState | None, behind: list[Stalled]
) -> None:
    assert slot_holder(slot, behind, stall_s=60.0) == {}


def test_nobody_else_is_blamed_while_the_holder_moves() -> None:
    assert said(("moves", 5.0), ("hangs", 60.4)) == SAID


def status(
    shape: str, error: str | None, state: ShapeState = ShapeState.IDLE, wrote_s: float = 3.0
) -> ShapeStatus:
    failing_s = 0.0 if error is None else 8.0
    return ShapeStatus(shape, state, BEFORE_ALL, 0, error, failing_s=failing_s, wrote_s=wrote_s)


HOLDER = status("a", "no", ShapeState.BACKING_OFF)
LONG_AGO = status("b", None, wrote_s=9.0)
NEVER = status("c", None, wrote_s=math.inf)


@pytest.mark.parametrize(
    ("statuses", "found"),
    [
        pytest.param([HOLDER, status("b", None)], HOLDER, id="it fails and another doesn't"),
        pytest.param([HOLDER, status("b", "no")], None, id="all fail: nobody is held by another"),
        pytest.param([status("a", None), status("b", None)], None, id="it is merely slow"),
        pytest.param([HOLDER, LONG_AGO, NEVER], None, id="the others had nothing to do since"),
        pytest.param([HOLDER, status("b", "no"), NEVER], None, id="all that had something to do fail"),
        pytest.param([HOLDER], None, id="it is alone"),
        pytest.param(
            [status("a", "no", ShapeState.SNAPSHOTTING), status("b", None)], None, id="it is being copied"
        ),
    ],
)
def test_who_is_parked_when_the_log_fills(statuses: list[ShapeStatus], found: ShapeStatus | None) -> None:
    behind = [Stalled("a", 10.0, BEFORE_ALL), Stalled("b", 90.0, BEFORE_ALL)]
    for full in (False, True):
        assert failing_holder(statuses, behind, log_is_full=full, stall_s=10.0) == found
        assert failing_holder(statuses, behind, log_is_full=full, stall_s=11.0) is None, "not yet"
        assert failing_holder(statuses, [], log_is_full=full, stall_s=0.0) is None


def after(age_s: float, *statuses: ShapeStatus, full: bool) -> ShapeStatus | None:
    """Who is parked when `a` hasn't moved for so long."""
    return failing_holder(statuses, [Stalled("a", age_s, BEFORE_ALL)], log_is_full=full, stall_s=10.0)


def test_shapes_that_have_nothing_to_do_are_not_held_for_ever() -> None:
    assert after(99.0, HOLDER, NEVER, full=True) is None
    assert after(100.0, HOLDER, NEVER, full=True) == HOLDER
    assert after(100.0, HOLDER, NEVER, full=False) is None, "they are not held yet"


@pytest.mark.parametrize("state", [ShapeState.FLUSHING, ShapeState.TENDING])
def test_a_job_that_doesnt_end_counts_as_a_failure(state: ShapeState) -> None:
    hangs, well = status("a", None, state), status("b", None, wrote_s=60.0)
    assert after(99.0, hangs, well, full=False) is None, "it may be slow"
    assert after(100.0, hangs, well, full=False) == hangs
    assert after(100.0, hangs, status("b", None, wrote_s=101.0), full=False) is None, "nobody's works"
    assert after(100.0, hangs, NEVER, full=True) == hangs
    assert after(1e6, status("a", None, ShapeState.SNAPSHOTTING), well, full=True) is None, "a long copy"
