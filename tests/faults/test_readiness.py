"""Issue 8, point 6: readiness tells the truth, both ways."""

from __future__ import annotations

import time

import psycopg
import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.postgres.leader.lock import slot_hash64
from tests.faults.rig import Rig
from tests.servers.capture_site import CaptureSite, metric, readiness, turns, wait_for_phase, wait_until
from tests.servers.faults import Delay, FailRecords

BAD_KEY = "public.t/1"


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream)


def test_one_failing_key_neither_ends_the_leadership_nor_stops_the_rest(rig: Rig) -> None:
    rig.psql("CREATE TABLE t (id int PRIMARY KEY, n int)")
    rig.proxy.inject(FailRecords(keys={BAD_KEY}, code="InternalFailure"))
    with rig.capture(SINK_OUTAGE_DISCONNECT_S=2, INFLIGHT_MAX_MESSAGES=100) as capture:
        capture.wait_for_log("streaming")
        rig.psql("INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i")
        wait_until(lambda: metric(capture, "penstock_sink_records_total") == 999, "the others are accepted")
        # Ever more of the key that fails, between ever more of the others.
        for n in range(20):
            rig.psql(f"UPDATE t SET n = {n} WHERE id <= 10")
            time.sleep(0.3)
        wait_until(lambda: metric(capture, "penstock_sink_records_total") == 999 + 20 * 9, "the rest flows")
        assert len(capture.events("streaming")) == 1
        assert capture.events("SinkOutage") == []
        rig.proxy.clear()
        rig.wait_until_confirmed()
    assert len(rig.of_key(BAD_KEY)) == 21


def test_one_key_that_fails_for_long_and_is_taken_again(rig: Rig) -> None:
    rig.psql("CREATE TABLE t (id int PRIMARY KEY, n int)")
    rig.psql("INSERT INTO t VALUES (1, 0), (2, 0)")
    with rig.capture(SINK_OUTAGE_DISCONNECT_S=2) as capture:
        rig.wait_until_confirmed()
        turns(capture, ready=True)
        rig.proxy.inject(FailRecords(keys={BAD_KEY}, code="KMSThrottlingException"))
        rig.psql("UPDATE t SET n = 1 WHERE id = 1")
        turns(capture, ready=False, sentence="s (KMSThrottlingException): what waits for them")

        before = metric(capture, "penstock_sink_records_total")
        rig.psql("UPDATE t SET n = 1 WHERE id = 2")
        wait_until(lambda: metric(capture, "penstock_sink_records_total") > before, "the rest flows")
        turns(capture, ready=False, sentence="Kinesis fails 1 partition key for")
        assert readiness(capture)["phase"] == "streaming"

        rig.proxy.clear()
        turns(capture, ready=True)
        rig.wait_until_confirmed()
        assert len(capture.events("streaming")) == 1
    assert len(rig.of_key(BAD_KEY)) == 2


@pytest.mark.long
def test_one_failing_key_is_said_while_a_large_transaction_is_fine(rig: Rig) -> None:
    """Takes longer than the patience of half a minute, twice."""
    rig.psql("CREATE TABLE t (id int PRIMARY KEY, n int)")
    slow = Delay(before_s=0.1)
    rig.proxy.inject(slow)
    with rig.capture(KINESIS_BATCH_MAX_RECORDS=10) as capture:
        capture.wait_for_log("streaming")
        began = time.monotonic()
        rig.psql("INSERT INTO t SELECT i, 0 FROM generate_series(1, 16000) i")
        answers = []
        while metric(capture, "penstock_sink_records_total") < 16_000:
            answers.append(readiness(capture)["status"])
            time.sleep(0.2)
        assert time.monotonic() - began > 33
        assert set(answers) == {200}

        rig.proxy.clear(slow)
        rig.wait_until_confirmed()
        rig.proxy.inject(FailRecords(keys={BAD_KEY}))
        rig.psql("UPDATE t SET n = 1 WHERE id = 1")
        flowing_until = time.monotonic() + 34
        while time.monotonic() < flowing_until:
            rig.psql("UPDATE t SET n = n + 1 WHERE id = 2")
            time.sleep(0.5)
        for _ in range(20):
            answer = readiness(capture)
            assert answer["status"] == 503
            assert "the frontier stands still" in " ".join(answer["reasons"])
            assert "Kinesis fails 1 partition key for 3" in " ".join(answer["reasons"])
            time.sleep(0.1)
        rig.proxy.clear()
        rig.wait_until_confirmed()
        wait_until(lambda: readiness(capture)["status"] == 200, "it is well again")


def test_two_slots_under_one_lock_key_are_told_apart(site: CaptureSite) -> None:
    with site.capture(LEADER_LOCK_KEY_OVERRIDE=4711, STANDBY_RETRY_INTERVAL_S=5) as leader:
        leader.wait_for_log("streaming")
        mine, other = site.slot, f"{site.slot}_b"
        with site.capture(
            LEADER_LOCK_KEY_OVERRIDE=4711, REPLICATION_SLOT=other, STANDBY_RETRY_INTERVAL_S=5
        ) as vain:
            turns(vain, ready=False, sentence=f"reads slot '{mine}', not '{other}'")
            assert readiness(vain)["phase"] == "standby"
            assert vain.wait_for_log("standby_in_vain")["level"] == "error"
            with site.capture(LEADER_LOCK_KEY_OVERRIDE=4711) as standby:
                assert wait_for_phase(standby, "standby")["status"] == 200
            leader.stop()
            assert leader.wait() == 0
            turns(vain, ready=True)
            assert readiness(vain)["phase"] == "streaming"


def test_a_session_that_holds_the_lock_and_can_read_no_slot(site: CaptureSite) -> None:
    with psycopg.connect(site.conninfo, application_name="a stranger") as stranger:
        stranger.execute("SELECT pg_advisory_lock(%s)", [slot_hash64(site.slot)])
        with site.capture(STANDBY_RETRY_INTERVAL_S=5) as vain:
            sentence = f"held by a stranger at 127.0.0.1, pid {stranger.info.backend_pid}, which can't read"
            turns(vain, ready=False, sentence=sentence)
            assert readiness(vain)["phase"] == "standby"
            stranger.close()
            turns(vain, ready=True)


def test_changes_that_the_server_leaves_out_make_it_unready(site: CaptureSite) -> None:
    site.psql("CREATE TABLE keyless (n int)")
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO keyless VALUES (1)")
        site.wait_until_confirmed()
        assert readiness(capture)["status"] == 200
        site.psql("UPDATE keyless SET n = 2")
        capture.wait_for_log("changes_dropped_by_server")
        answer = readiness(capture)
        assert answer["status"] == 503
        assert "public.keyless" in " ".join(answer["reasons"])
        site.psql("INSERT INTO keyless VALUES (3)")
        site.wait_until_confirmed()
        assert readiness(capture)["status"] == 503
