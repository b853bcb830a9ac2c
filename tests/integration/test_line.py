"""The line to Postgres: idle, paused, busy elsewhere, and deaf to the database's own settings."""

from __future__ import annotations

import time

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.stream_checks import read_changes
from tests.servers.capture_site import CaptureSite, readiness, wait_until
from tests.servers.fault_proxy import FaultProxy
from tests.servers.tcp_proxy import TcpProxy

MIB = 1024 * 1024
ELSEWHERE_BYTES = 64 * MIB
EXOTIC = {
    "datestyle": "German, DMY",
    "timezone": "Asia/Kathmandu",
    "intervalstyle": "iso_8601",
    "bytea_output": "escape",
    "extra_float_digits": "-10",
}


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    site = CaptureSite(postgres, database, kinesis, stream)
    site.psql("CREATE TABLE t (id int PRIMARY KEY, pad text)")
    return site


def test_wal_of_another_database_is_not_retained(site: CaptureSite) -> None:
    other = site.postgres.create_database()
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.wait_until_confirmed()
        before = site.wal_end()
        site.postgres.psql("CREATE TABLE busy (pad text)", other)
        for _ in range(8):
            site.postgres.psql(
                "INSERT INTO busy SELECT repeat(md5(i::text), 30) FROM generate_series(1, 8500) i", other
            )
        assert site.wal_end() - before >= ELSEWHERE_BYTES
        site.wait_until_confirmed()
        # The restart position follows a record that the server writes every 15 s, or at a checkpoint.
        site.psql("CHECKPOINT")
        wait_until(lambda: retained_bytes(site) < MIB, "the slot retains next to nothing")
    assert read_changes(site.kinesis, site.stream) == []
    site.postgres.psql(f"DROP DATABASE {other}")


def retained_bytes(site: CaptureSite) -> int:
    slot = site.slot_row()
    assert slot is not None
    return site.wal_end() - slot.restart_lsn


def test_reading_that_pauses_keeps_the_line(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    timeout_s = 2.0
    tiny = {"INFLIGHT_MAX_MESSAGES": 4, "INFLIGHT_MAX_BYTES": 200_000}
    times = {"LEADER_TIMEOUT_S": timeout_s, "SINK_OUTAGE_DISCONNECT_S": 60}
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url, **tiny, **times) as capture:
        capture.wait_for_log("streaming")
        fault_proxy.hold()
        # More than the sockets between the server and the capture can take.
        site.psql("INSERT INTO t SELECT i, repeat(md5(i::text), 1900) FROM generate_series(1, 250) i")
        written = site.wal_end()
        blocked = wait_until(lambda: blocked_sender(site), "the server can't send any more")
        slot = site.slot_row()
        over = time.monotonic() + 3 * timeout_s
        while time.monotonic() < over:
            assert blocked_sender(site) == blocked
            assert readiness(capture)["status"] == 200
            time.sleep(0.1)
        later = site.slot_row()
        assert slot is not None
        assert later is not None
        assert later.active_pid == slot.active_pid
        assert later.confirmed_lsn < written
        fault_proxy.release()
        site.wait_until_confirmed()
        assert slot_user(site) == blocked
        assert len(capture.events("streaming")) == 1
    ids = {change.row["id"] for change in read_changes(site.kinesis, site.stream)}
    assert ids == set(range(1, 251))


def slot_user(site: CaptureSite) -> int | None:
    slot = site.slot_row()
    return None if slot is None else slot.active_pid


def blocked_sender(site: CaptureSite) -> int | None:
    """The walsender of the slot, if it waits for the capture to read."""
    pid = slot_user(site)
    waiting = f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'WalSenderWriteData'"
    return pid if pid is not None and site.psql(waiting) else None


def test_an_idle_line_is_quiet(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    """Each side speaks about once a second: an answer to every keepalive would be tens of thousands."""
    with (
        TcpProxy("127.0.0.1", site.postgres.port) as line,
        site.capture(
            PGPORT=line.port, AWS_ENDPOINT_URL_KINESIS=fault_proxy.url, LEADER_TIMEOUT_S=10
        ) as capture,
    ):
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        cpu = capture.cpu_seconds()
        passed = watch_a_quiet_line(line, 5.0)
        assert capture.cpu_seconds() - cpu < 0.02 * passed
        # Also while something is pending, when the server would like to hear of progress.
        fault_proxy.outage()
        site.psql("INSERT INTO t VALUES (2)")
        capture.wait_for_log("request_failed")
        watch_a_quiet_line(line, 2.0)
        fault_proxy.restore()


def watch_a_quiet_line(line: TcpProxy, seconds: float) -> float:
    """See little pass in both directions, but not nothing; gives the seconds that it took."""
    began, up, down = time.monotonic(), line.bytes_up, line.bytes_down
    wait_until(lambda: time.monotonic() - began >= seconds, "the time has passed", timeout=2 * seconds)
    passed = time.monotonic() - began
    assert 0 < line.bytes_up - up < 2000 * passed
    assert 0 < line.bytes_down - down < 2000 * passed
    return passed


def test_payloads_do_not_follow_the_settings_of_the_database(site: CaptureSite) -> None:
    columns = "id int PRIMARY KEY, at timestamptz, day date, span interval, raw bytea, f float8"
    site.psql(f"CREATE TABLE typed ({columns})")
    row = (
        "INSERT INTO typed VALUES ({}, '2024-03-01 12:00:00.5+00', '2024-03-01', '1 day 2 hours',"
        " '\\x00ff', 0.1::float8 + 0.2)"
    )
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql(row.format(1))
        site.wait_until_confirmed()
    for name, value in EXOTIC.items():
        site.psql(f"ALTER DATABASE {site.database} SET {name} = '{value}'")
    assert site.psql("SELECT '2024-03-01'::date::text") == [("01.03.2024",)]
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql(row.format(2))
        site.wait_until_confirmed()
    plain, exotic = sorted(
        (change.row for change in read_changes(site.kinesis, site.stream)), key=lambda row: row["id"]
    )
    assert plain == {
        "id": 1,
        "at": "2024-03-01 12:00:00.5+00",
        "day": "2024-03-01",
        "span": "1 day 02:00:00",
        "raw": "00ff",
        "f": 0.30000000000000004,
    }
    assert exotic == {**plain, "id": 2}
