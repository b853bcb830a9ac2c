"""Kinesis fails records, requests and connections: nothing gets lost, and each key ends with its newest."""

from __future__ import annotations

import time

import pytest

from tests.faults.rig import Rig, assert_calm, check_stream
from tests.faults.stream_checks import Change, count_repeats
from tests.faults.workload import Writers
from tests.servers.capture_site import metric, wait_until
from tests.servers.faults import (
    INTERNAL_FAILURE,
    THROTTLED,
    Answer,
    CutAfter,
    CutBefore,
    Delay,
    FailRecords,
    Fault,
)

MIXED: dict[Fault, float] = {
    FailRecords(share=0.1): 0.4,
    Answer(THROTTLED): 0.1,
    Answer(INTERNAL_FAILURE): 0.1,
    CutAfter(): 0.15,
    CutBefore(): 0.1,
}
SCENARIOS: dict[str, tuple[dict[Fault, float], set[str]]] = {
    "records_fail": ({FailRecords(share=0.15): 0.6}, {"partial"}),
    "throttled": (
        {Answer(THROTTLED): 0.4, FailRecords(share=0.2): 0.2},
        {"ProvisionedThroughputExceededException"},
    ),
    "server_errors": (
        {Answer(INTERNAL_FAILURE): 0.3, FailRecords(share=0.1, code="InternalFailure"): 0.3},
        {"InternalFailure", "partial"},
    ),
    "connections_cut": ({CutAfter(): 0.3, CutBefore(): 0.2}, {"cut"}),
    "mixed": (MIXED, {"partial", "cut"}),
}
"""What is switched on, each with its probability, and which outcomes must have been seen for a fair test."""
_MORE_ROUNDS = 10
"""Faults strike by chance, and a quick machine needs few requests: it writes on until all have struck."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_lost_and_the_last_word_is_the_newest(rig: Rig, scenario: str) -> None:
    faults, needed = SCENARIOS[scenario]
    writers = Writers(rig.conninfo, seed=1, writers=3, keys=6)
    with rig.capture() as capture:
        capture.wait_for_log("streaming")
        switch_on(rig, faults)
        with rig.oracle.watching() as samples:
            writers.write(transactions=150)
            for _ in range(_MORE_ROUNDS):
                if needed <= set(rig.proxy.log.counts):
                    break
                writers.write(transactions=50)
            rig.proxy.clear()
            rig.wait_until_confirmed()
    check_stream(rig, samples, writers)
    assert needed <= set(rig.proxy.log.counts)
    assert scenario == "throttled" or count_repeats(rig.changes()) > 0


@pytest.mark.parametrize(
    ("failures", "at_crash"),
    [(1, [0, 1, 2, 3, *range(5, 14)]), (2, [0, 1, 2, 3, *range(5, 14), 4, 5, 6, 7, 8, 10])],
)
def test_a_crash_in_the_middle_of_a_resend_leaves_the_last_word_to_the_newest(
    rig: Rig, failures: int, at_crash: list[int]
) -> None:
    """The third record of a request fails, and perhaps a third one of its re-sends; then the process dies.

    Re-sends hold one record, then two, then four. At that moment the stream has a hole or is out of order,
    and one more re-send is at Kinesis' door: it is taken after the death of its sender.
    """
    rig.psql("CREATE TABLE items (id bigint PRIMARY KEY, version bigint)")
    rig.psql("INSERT INTO items VALUES (1, 0)")
    log = rig.proxy.log
    with rig.capture(LEADER_TIMEOUT_S=30) as capture, rig.oracle.watching() as samples:
        rig.wait_until_confirmed()
        rig.proxy.hold()
        rig.psql("UPDATE items SET version = 1")
        log.wait_for(lambda log: log.held == 1)
        rig.psql("BEGIN; " + "UPDATE items SET version = version + 1;" * 12 + "COMMIT")
        wait_until(
            lambda: metric(capture, "penstock_ack_pending") == 13, "the transaction waits behind its key"
        )
        rig.proxy.inject(FailRecords(at=(2,)), times=failures)
        # Long enough for `hold()` below to come before the next re-send is let through.
        rig.proxy.inject(Delay(before_s=0.5))
        rig.proxy.release()
        log.wait_for(lambda log: log.counts["partial"] == failures)
        rig.proxy.hold()
        log.wait_for(lambda log: log.held == 1)
        capture.kill9()
        assert versions(rig) == at_crash
        rig.proxy.clear()
        rig.proxy.release()
        log.wait_for(lambda log: log.arrived == len(log.requests))
        with rig.capture():
            rig.wait_until_confirmed()
    assert versions(rig)[-12:] == list(range(2, 14))
    check_stream(rig, samples)


def test_crashes_at_random_moments_while_everything_fails(rig: Rig) -> None:
    writers = Writers(rig.conninfo, seed=2, writers=3, keys=6, pause_s=0.01)
    log = rig.proxy.log
    switch_on(rig, MIXED)
    rig.proxy.inject(Delay(before_s=0.05), probability=0.3)
    with rig.oracle.watching() as samples, writers.running():
        for failures in (3, 1, 5):
            with rig.capture() as capture:
                capture.wait_for_log("streaming")
                wait_for_partial_failures(rig, failures)
                capture.kill9()
            log.wait_for(lambda log: log.arrived == len(log.requests))
    rig.proxy.clear()
    with rig.capture():
        rig.wait_until_confirmed()
    check_stream(rig, samples, writers)
    assert count_repeats(rig.changes()) > 0


def wait_for_partial_failures(rig: Rig, more: int) -> None:
    enough = rig.proxy.log.counts["partial"] + more
    rig.proxy.log.wait_for(lambda log: log.counts["partial"] >= enough, timeout=30)


def versions(rig: Rig) -> list[int]:
    return [change.row["version"] for change in rig.changes()]


def switch_on(rig: Rig, faults: dict[Fault, float]) -> None:
    for fault, probability in faults.items():
        rig.proxy.inject(fault, probability=probability)


def test_one_failing_key_neither_stops_the_rest_nor_ends_the_leadership(rig: Rig) -> None:
    """It fails for longer than an outage, and has more changes than may be in flight."""
    rig.psql("CREATE TABLE bad (id int PRIMARY KEY, edition int)")
    rig.psql("CREATE TABLE good (id int PRIMARY KEY, edition int)")
    limits = {"INFLIGHT_MAX_MESSAGES": 100, "SINK_OUTAGE_DISCONNECT_S": 2}
    with rig.capture(**limits) as capture, rig.oracle.watching() as samples:
        capture.wait_for_log("streaming")
        rig.proxy.inject(FailRecords(keys=["public.bad/1"], code="InternalFailure"))
        rig.psql("INSERT INTO bad VALUES (1, 0)")
        rig.psql("INSERT INTO good VALUES (0, 0)")
        rig.psql("UPDATE bad SET edition = edition + 1;" * 300)
        rig.psql("INSERT INTO good SELECT id, 0 FROM generate_series(1, 50) AS id")
        wait_until(lambda: len(_of_table(rig, "good")) == 51, "the rest is published")
        time.sleep(3)
        assert len(_of_table(rig, "good")) == 51, "each of it once"
        assert not _of_table(rig, "bad")
        assert len(capture.events("streaming")) == 1
        rig.proxy.clear()
        rig.wait_until_confirmed()
        assert [event["keys"] for event in capture.events("keys_left_behind")] == [1]
        assert len(capture.events("KeyRecovered")) == 1
        assert_calm(capture, leaderships=2)
    assert len({change.data for change in _of_table(rig, "bad")}) == 301
    check_stream(rig, samples)


def _of_table(rig: Rig, table: str) -> list[Change]:
    return [change for change in rig.changes() if change.table == table]
