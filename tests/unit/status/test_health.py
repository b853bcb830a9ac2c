from __future__ import annotations

import pytest

from penstock.postgres.leader.freshness import Freshness
from penstock.status.headway import STALLED_AFTER_S
from penstock.status.health import DOUBT_S, Fault, Health, Phase


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
    assert not health.readiness(127.0 + STALLED_AFTER_S).ready


def test_a_large_transaction_that_is_published_is_ready_though_the_frontier_stands() -> None:
    health, _ = streaming()
    for second in range(100):
        health.note_frontier(5, 9_000, 101.0 + second, done=3_000 * second)

    assert health.readiness(201.0).ready


def test_headway_is_counted_over_leaderships() -> None:
    """A leadership every 7 s, each of which sends the same again, is not well."""
    health, line = streaming()
    for began in range(100, 170, 7):
        health.start_streaming(line, float(began))
        health.note_frontier(5, 0, float(began))
        health.note_frontier(5, 999, began + 1.0, done=500)

    assert not health.readiness(165.0).ready
    health.note_frontier(6, 1, 166.0)
    assert health.readiness(166.0).ready


def test_a_standby_starts_afresh() -> None:
    health, line = streaming()
    health.note_frontier(5, 1, 100.0)
    health.doubt("it fails and fails", longest_s=5.0)
    health.stand_by()
    assert health.readiness(500.0) == (True, Phase.STANDBY, [])

    health.start_streaming(line, 500.0)
    health.note_frontier(5, 1, 500.0)

    assert health.readiness(501.0).ready


def test_a_standby_in_vain_that_gets_to_lead_is_well() -> None:
    health = Health()
    health.stand_by()
    health.set_fault(Fault.SLOT, "two slots share one lock key")

    health.start_streaming(Freshness(limit_s=3.0, now=0.0), 0.0)

    assert health.readiness(0.0).ready


def test_after_failed_leaderships_the_next_one_must_show_headway() -> None:
    health, line = streaming()
    health.note_frontier(5, 0, 100.0)
    health.doubt("3 leaderships in a row ended", longest_s=5.0)
    health.start_streaming(line, 110.0)
    health.note_frontier(5, 0, 111.0)
    assert health.readiness(111.0).reasons == ["3 leaderships in a row ended"]

    health.note_frontier(6, 0, 112.0)

    assert health.readiness(112.0).ready


def test_a_leadership_that_outlasts_the_failed_ones_is_believed() -> None:
    health, line = streaming()
    health.note_frontier(5, 0, 100.0)
    health.doubt("why", longest_s=5.0)
    health.start_streaming(line, 110.0)
    health.note_frontier(5, 0, 110.0 + 5.0 + DOUBT_S - 1)
    assert not health.readiness(125.0).ready

    health.note_frontier(5, 0, 110.0 + 5.0 + DOUBT_S)

    assert health.readiness(126.0).ready


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

    assert health.readiness(0.0).reasons == [
        "postgres: why",
        "service: why",
        "sink: why",
        "stream: why",
        "keys: why",
        "marks: why",
        "slot: why",
        "dropped: why",
    ]


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
