"""Session settings of the role or the database, and what the server makes of us, don't harm a capture."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.stream_checks import read_changes
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, readiness, wait_until

TIME_LIMITS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
)
"""What any role may be given; PG 17 adds transaction_timeout (tests/integration/test_postgres_17.py)."""


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    site = CaptureSite(postgres, database, kinesis, stream)
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    return site


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    """A server of our own: its settings are spoilt."""
    with PrivatePostgres() as server:
        yield server


def test_time_limits_of_the_database_end_no_session_of_ours(site: CaptureSite) -> None:
    """Issue 8, point 1: creating the slot waits for an open transaction for longer than statement_timeout."""
    for name in TIME_LIMITS:
        site.psql(f"ALTER DATABASE \"{site.database}\" SET {name} = '1s'")
    with psycopg.connect(site.conninfo) as writer:
        # This session is under the limits as well, but for the one that would end its transaction.
        writer.execute("SET idle_in_transaction_session_timeout = 0")
        writer.execute("INSERT INTO t VALUES (1)")
        with site.capture() as capture:
            capture.wait_for_log("creating_slot")
            time.sleep(2.5)
            writer.commit()
            capture.wait_for_log("streaming")
            time.sleep(2.5)
            site.psql("INSERT INTO t VALUES (2)")
            site.wait_until_confirmed()
            assert len(capture.events("creating_slot")) == len(capture.events("streaming")) == 1
            assert {event["level"] for event in capture.events()} <= {"info", "warning"}
            assert capture.events("LineLost") == capture.events("LockLost") == []


def test_a_database_that_is_read_only_by_default_is_captured(site: CaptureSite) -> None:
    """Issue 8, point 12: its server is a primary all the same."""
    site.psql(f'ALTER DATABASE "{site.database}" SET default_transaction_read_only = on')
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql("BEGIN READ WRITE; INSERT INTO t VALUES (1); COMMIT")
        site.wait_until_confirmed()
        assert capture.events("slot_note_refused") == []
    assert [change.row["id"] for change in read_changes(site.kinesis, site.stream)] == [1]


def synchronous(server: PrivatePostgres, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    site = CaptureSite(server, "postgres", kinesis, stream, slot="synchronous")
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    return site


def assert_refused(capture: CaptureProcess) -> None:
    said = capture.wait_for_log("SynchronousStandby", timeout=30)
    assert said["level"] == "error"
    assert "synchronous_standby_names is '*'" in said["detail"]
    assert "Fix: name the standbys" in said["detail"]
    assert readiness(capture)["status"] == 503


def test_no_commit_ever_waits_for_us(server: PrivatePostgres, kinesis: LocalKinesis, stream: str) -> None:
    """Issue 8, point 13: start refuses while we would be a synchronous standby, and check fails; a setting
    that comes later ends the stream.
    """
    site = synchronous(server, kinesis, stream)
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        server.set("synchronous_standby_names", "*")
        assert_refused(capture)
        assert wait_until(lambda: not walsenders(server), "nobody streams")
        with site.capture() as starting:
            assert_refused(starting)
            assert starting.events("streaming") == []
        with CaptureProcess(site.env(), ("check",)) as check:
            assert check.wait() == 1
            assert "fail  synchronous" in check.log_text()
        assert walsenders(server) == []
        server.set("synchronous_standby_names", "elsewhere")
    server.set("synchronous_standby_names", "")


def walsenders(server: PrivatePostgres) -> list[tuple[object, ...]]:
    return server.psql("SELECT pid FROM pg_stat_replication WHERE state = 'streaming'")
