"""The slot: made once, never dropped, taken over when it is free."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.local.postgres_programs import PostgresPrograms
from penstock.model.lsn import parse_lsn
from tests.faults.stream_checks import read_changes
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, metric, readiness, wait_for_phase, wait_until
from tests.servers.slots import SlotWatch


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    site = CaptureSite(postgres, database, kinesis, stream)
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    return site


def published_ids(site: CaptureSite) -> list[int]:
    return sorted(change.row["id"] for change in read_changes(site.kinesis, site.stream))


def test_a_missing_slot_is_made_once_and_stays(site: CaptureSite) -> None:
    site.psql("INSERT INTO t VALUES (1)")
    with site.capture() as first:
        warning = first.wait_for_log("slot_created")
        streaming = first.wait_for_log("streaming")
        made = site.slot_row()
        assert made is not None
        assert (warning["level"], warning["slot"]) == ("warning", site.slot)
        assert warning["start_lsn"] == streaming["confirmed_flush_lsn"], "later it moves on"
        assert made.restart_lsn <= parse_lsn(warning["start_lsn"]) <= made.confirmed_lsn
        assert "not in the stream" in warning["note"]
        assert metric(first, "penstock_slot_creations_total") == 1
        assert metric(first, "penstock_gaps_total") == 0
        site.psql("INSERT INTO t VALUES (2)")
        site.wait_until_confirmed()
        first.kill9()
    site.psql("INSERT INTO t VALUES (3)")
    with site.capture() as second:
        second.wait_for_log("streaming")
        assert second.events("slot_created") == []
        assert metric(second, "penstock_slot_creations_total") == 0
        site.wait_until_confirmed()
        second.stop()
        assert second.wait() == 0
    assert published_ids(site) == [2, 3]
    site.wait_until_free()


def test_a_slot_dropped_by_an_operator_leaves_a_gap_that_is_said(
    site: CaptureSite, slot_watch: SlotWatch
) -> None:
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        slot_watch.drop(site.slot)
        gap = capture.wait_for_log("GAP")
        capture.wait_for_log("streaming", count=2)
        created = capture.wait_for_log("slot_created", count=2)
        assert gap["level"] == "error"
        assert gap["start_lsn"] == created["start_lsn"]
        assert parse_lsn(gap["last_known_lsn"]) <= parse_lsn(gap["start_lsn"])
        assert metric(capture, "penstock_gaps_total") == 1
        site.psql("INSERT INTO t VALUES (2)")
        site.wait_until_confirmed()
    assert published_ids(site) == [1, 2]


def test_a_slot_that_was_never_finished_is_no_gap(site: CaptureSite) -> None:
    """Making a slot waits for open transactions; meanwhile others see it, and it may never come to be."""
    with psycopg.connect(site.conninfo) as writer:
        writer.execute("INSERT INTO t VALUES (1)")
        with site.capture() as leader:
            assert leader.wait_for_log("creating_slot")["waits_for_open_transactions"] == 1
            wait_until(site.slot_row, "the slot is being made")
            with site.capture() as standby:
                wait_for_phase(standby, "standby")
                leader.stop()
                assert leader.wait() == 0
                standby.wait_for_log("creating_slot")
                writer.commit()
                standby.wait_for_log("streaming")
                assert len(standby.events("slot_created")) == 1
                assert standby.events("GAP") == []


def test_a_slot_that_a_stranger_reads_is_waited_for_said_and_taken_over(site: CaptureSite) -> None:
    """We hold the lock, so after LEADER_TIMEOUT_S it can't be a former leader: somebody may be confirming."""
    site.psql(f"SELECT pg_create_logical_replication_slot('{site.slot}', 'wal2json')")
    with holding_the_slot(site) as holder, site.capture(LEADER_TIMEOUT_S=2) as capture:
        busy = capture.wait_for_log("SlotBusy")
        assert busy["level"] == "error"
        assert f"is active for PID {active_pid(site)}" in busy["detail"]
        waiting = wait_for_phase(capture, "waiting")
        assert waiting["status"] == 503
        assert f"postgres: {busy['detail']}" in waiting["reasons"]
        holder.kill()
        capture.wait_for_log("streaming")
        assert readiness(capture)["status"] == 200
        assert capture.running
        assert_no_traceback(capture)


def test_a_slot_that_a_stranger_moves_while_it_is_waited_for_is_a_gap(site: CaptureSite) -> None:
    """What the stranger has confirmed never comes: no manifest may speak of it as if it were there."""
    site.psql(f"SELECT pg_create_logical_replication_slot('{site.slot}', 'wal2json')")
    marked = {"KINESIS_MARKED_STREAM": "true", "WAL2JSON_INCLUDE_LSN": "true", "LEADER_TIMEOUT_S": 20}
    with holding_the_slot(site, "--status-interval=1", "--fsync-interval=1") as holder:
        before = site.slot_row()
        assert before is not None
        with site.capture(**marked) as capture:
            capture.wait_for_log("slot_without_note")  # it has looked at the slot, and waits for it
            site.psql("INSERT INTO t VALUES (1), (2)")
            inserted = site.wal_end()
            wait_until(
                lambda: (slot := site.slot_row()) and slot.confirmed_lsn >= inserted,
                "the stranger has confirmed the rows",
            )
            holder.kill()
            moved = capture.wait_for_log("SlotMoved")
            assert moved["level"] == "error"
            gap = capture.wait_for_log("GAP")
            assert parse_lsn(gap["last_known_lsn"]) == before.confirmed_lsn
            assert parse_lsn(gap["start_lsn"]) >= inserted
            streaming = capture.wait_for_log("streaming")
            assert streaming["confirmed_flush_lsn"] == gap["start_lsn"]
            site.psql("INSERT INTO t VALUES (3)")
            site.wait_until_confirmed()
            assert metric(capture, "penstock_gaps_total") == 1
            assert_no_traceback(capture)
    changes = read_changes(site.kinesis, site.stream)
    assert [change.row["id"] for change in changes if change.action == "I"] == [3]
    assert min(int(change.body["since"][9:25], 16) for change in changes if change.action == "R") >= inserted


def test_an_option_that_only_a_newer_wal2json_knows(site: CaptureSite) -> None:
    site.psql("CREATE TABLE n (id numeric PRIMARY KEY)")
    with site.capture(WAL2JSON_NUMERIC_AS_STRING="true") as capture:
        if knows_numeric_as_string(site):
            capture.wait_for_log("streaming")
            site.psql("INSERT INTO n VALUES (1.50)")
            site.wait_until_confirmed()
            assert [change.row["id"] for change in read_changes(site.kinesis, site.stream)] == ["1.50"]
            return
        said = capture.wait_for_log("PluginOptionRefused")
        assert "Fix: WAL2JSON_NUMERIC_AS_STRING needs wal2json 2.6" in said["detail"]
        assert f"postgres: {said['detail']}" in wait_for_phase(capture, "waiting")["reasons"]
        assert_no_traceback(capture)


def knows_numeric_as_string(site: CaptureSite) -> bool:
    with psycopg.connect(site.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_create_logical_replication_slot('asked', 'wal2json', true)")
        try:
            session.execute(
                "SELECT pg_logical_slot_peek_changes"
                "('asked', NULL, NULL, 'format-version', '2', 'numeric-data-types-as-string', '1')"
            )
        except psycopg.errors.InvalidParameterValue:
            return False
    return True


@contextmanager
def holding_the_slot(site: CaptureSite, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = ["--dbname", site.conninfo, "--slot", site.slot, "--start", "--no-loop", "--file", "/dev/null"]
    command.extend(options)
    with Path("/dev/null").open("wb") as nowhere:
        holder = PostgresPrograms.find().spawn("pg_recvlogical", *command, output=nowhere)
    try:
        wait_until(lambda: active_pid(site), "pg_recvlogical has the slot")
        yield holder
    finally:
        holder.kill()
        holder.wait()


def active_pid(site: CaptureSite) -> int | None:
    slot = site.slot_row()
    return None if slot is None else slot.active_pid


def assert_no_traceback(capture: CaptureProcess) -> None:
    assert "Traceback" not in capture.log_text()
