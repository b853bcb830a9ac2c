from __future__ import annotations

import pytest

from penstock.ops.health import STALLED_AFTER_S, Fault, Health, Phase
from penstock.postgres.freshness import Freshness


def streaming(now: float = 100.0) -> tuple[Health, Freshness]:
    """A leader on a line that stays fresh for a long time."""
    health = Health()
    line = Freshness(limit_s=1_000.0, now=now)
    health.start_streaming(line, now)
    return health, line


def test_a_process_that_has_done_nothing_is_not_ready() -> None:
    readiness = Health().readiness(0.0)

    assert (readiness.ready, readiness.phase, readiness.reasons) == (
        False,
        Phase.STARTING,
        ["phase is starting"],
    )


@pytest.mark.parametrize("phase", sorted(set(Phase) - {Phase.STREAMING}))
def test_of_all_who_do_not_stream_only_a_standby_is_ready(phase: Phase) -> None:
    health = Health()
    health.enter(phase)

    readiness = health.readiness(0.0)

    assert (health.phase, readiness.phase) == (phase, phase)
    assert readiness.ready is (phase is Phase.STANDBY)
    assert readiness.reasons == ([] if readiness.ready else [f"phase is {phase}"])


def test_a_leader_with_nothing_pending_is_ready_however_long_nothing_moves() -> None:
    health, _ = streaming()
    health.note_frontier(5, 0, 101.0)

    assert health.readiness(101.0 + 3 * STALLED_AFTER_S) == (True, Phase.STREAMING, [])


def test_a_leader_on_a_stale_line_is_not_ready() -> None:
    health = Health()
    health.start_streaming(Freshness(limit_s=3.0, now=100.0), 100.0)

    assert health.readiness(103.0).ready
    assert health.readiness(107.0) == (False, Phase.STREAMING, ["no sign of leadership for 7 s"])


def test_a_line_that_is_vouched_for_again_is_ready_again() -> None:
    health = Health()
    line = Freshness(limit_s=3.0, now=100.0)
    health.start_streaming(line, 100.0)
    assert not health.readiness(107.0).ready

    line.lock_seen(106.0)

    assert health.readiness(107.0).ready


def test_a_frontier_that_stands_still_with_something_pending_is_not_ready() -> None:
    health, _ = streaming()
    health.note_frontier(5, 7, 101.0)
    health.note_frontier(5, 9, 120.0)

    assert health.readiness(101.0 + STALLED_AFTER_S).ready
    assert health.readiness(102.0 + STALLED_AFTER_S) == (
        False,
        Phase.STREAMING,
        ["the frontier stands still for 31 s with 9 pending"],
    )


def test_a_frontier_that_moves_is_ready_however_much_is_pending() -> None:
    health, _ = streaming()
    for second in range(200):
        health.note_frontier(second, 1_000_000, 100.0 + second)

    assert health.readiness(300.0).ready


def test_an_empty_moment_counts_as_movement() -> None:
    health, _ = streaming()
    health.note_frontier(5, 1, 101.0)
    health.note_frontier(5, 0, 125.0)
    health.note_frontier(5, 1, 126.0)

    assert health.readiness(125.0 + STALLED_AFTER_S).ready
    assert not health.readiness(126.0 + STALLED_AFTER_S).ready


def test_the_time_of_a_former_leadership_does_not_count() -> None:
    health, line = streaming()
    health.note_frontier(5, 1, 100.0)
    health.enter(Phase.WAITING)

    health.start_streaming(line, 500.0)

    assert health.readiness(500.0 + STALLED_AFTER_S).ready


@pytest.mark.parametrize("fault", list(Fault))
def test_a_fault_holds_until_it_is_cleared(fault: Fault) -> None:
    health, _ = streaming()
    health.set_fault(fault, "first")
    health.set_fault(fault, "do this")

    assert health.readiness(100.0) == (False, Phase.STREAMING, [f"{fault}: do this"])

    health.clear_fault(fault)
    health.clear_fault(fault)
    assert health.readiness(100.0).ready


def test_a_fault_makes_a_standby_unready_too() -> None:
    health = Health()
    health.enter(Phase.STANDBY)
    health.set_fault(Fault.POSTGRES, "why")

    assert not health.readiness(0.0).ready


def test_streaming_proves_that_postgres_answers() -> None:
    health = Health()
    health.set_fault(Fault.POSTGRES, "refused")

    health.start_streaming(Freshness(limit_s=3.0, now=0.0), 0.0)

    assert health.readiness(0.0).ready


def test_what_only_a_leader_suffers_from_ends_with_the_leadership() -> None:
    health, _ = streaming()
    for fault in Fault:
        health.set_fault(fault, "why")

    health.end_leadership()

    assert health.readiness(0.0).reasons == ["postgres: why", "service: why", "sink: why", "stream: why"]


def test_every_reason_is_said() -> None:
    health = Health()
    health.set_fault(Fault.SINK, "AccessDeniedException: no")
    health.start_streaming(Freshness(limit_s=3.0, now=0.0), 0.0)
    health.note_frontier(1, 4, 0.0)

    assert health.readiness(60.0).reasons == [
        "sink: AccessDeniedException: no",
        "no sign of leadership for 60 s",
        "the frontier stands still for 60 s with 4 pending",
    ]
