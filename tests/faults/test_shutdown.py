"""SIGTERM: what was read is delivered and confirmed, and the process ends with 0 in bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.penstock_process import PENSTOCK
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn
from tests.faults.stream_checks import (
    Change,
    assert_last_occurrences_in_order,
    assert_nothing_missing,
    assert_repeats_identical,
    count_repeats,
    read_changes,
)
from tests.faults.workload import Writers
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, metric, wait_for_phase, wait_until
from tests.servers.fake_sts import FakeSts
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import Delay
from tests.servers.stopwatch import Stopwatch
from tests.servers.tcp_proxy import TcpProxy

DRAIN_S = 2.0
LEADER_TIMEOUT_S = 3.0
A_SECOND = 1.5
"""What may be added to the drain, and the ending of the process as seen from here."""
PROMPTLY_S = 2.0
ROWS = 10_000


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(
        postgres, database, kinesis, stream, SHUTDOWN_DRAIN_S=DRAIN_S, LEADER_TIMEOUT_S=LEADER_TIMEOUT_S
    )


def stop(capture: CaptureProcess) -> float:
    """Ask it to end, see it end well, and tell the seconds it took."""
    watch = Stopwatch()
    capture.stop()
    assert capture.wait() == 0
    took = watch.seconds
    assert capture.events()[-1]["event"] == "stopped"
    assert "Traceback" not in capture.log_text()
    return took


def wait_until_read(site: CaptureSite, capture: CaptureProcess) -> int:
    """Wait until the capture has read all that is committed now; gives the end of that."""
    goal = site.wal_end()
    wait_until(lambda: metric(capture, "penstock_stream_received_lsn") >= goal, "all is read")
    return goal


def confirmed_by_the_last_word(site: CaptureSite, capture: CaptureProcess) -> int:
    """What the capture said that it had confirmed, and the server has indeed."""
    assert capture.events("drain_incomplete") == capture.events("last_status_unanswered") == []
    confirmed = parse_lsn(capture.wait_for_log("drained")["confirmed_lsn"])
    slot = site.slot_row()
    assert slot is not None
    assert slot.confirmed_lsn == confirmed
    return confirmed


@contextmanager
def released(proxy: FaultProxy) -> Iterator[None]:
    """Whatever is held in the block passes at its end."""
    try:
        yield
    finally:
        proxy.release()


def go_on_and_read(site: CaptureSite) -> list[Change]:
    """Let another capture publish the rest, and give all that is in the stream then."""
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.wait_until_confirmed()
    return read_changes(site.kinesis, site.stream)


def test_a_drained_leader_leaves_nothing_to_repeat(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    # Enough for any machine: what counts is that all of it is delivered.
    drain_s = 10.0
    writers = Writers(site.conninfo, seed=21, writers=2)
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url, SHUTDOWN_DRAIN_S=drain_s) as capture:
        capture.wait_for_log("streaming")
        fault_proxy.inject(Delay(before_s=0.3))
        writers.write(50)
        committed_up_to = wait_until_read(site, capture)
        assert stop(capture) < drain_s + PROMPTLY_S
        assert capture.wait_for_log("draining")["pending"] > 0
        assert confirmed_by_the_last_word(site, capture) >= committed_up_to
    assert_nothing_missing(read_changes(site.kinesis, site.stream), writers.committed)
    changes = go_on_and_read(site)
    assert_nothing_missing(changes, writers.committed)
    assert count_repeats(changes) == 0


def test_a_stop_under_load_repeats_at_most_the_open_transaction(
    site: CaptureSite, fault_proxy: FaultProxy
) -> None:
    longest = 5
    writers = Writers(site.conninfo, seed=22, writers=2, longest=longest)
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as capture:
        capture.wait_for_log("streaming")
        with writers.running():
            fault_proxy.log.wait_for(lambda log: len(log.puts) >= 20)
            assert stop(capture) < PROMPTLY_S
        confirmed_by_the_last_word(site, capture)
    assert 0 < len(read_changes(site.kinesis, site.stream)) < len(writers.committed)
    changes = go_on_and_read(site)
    assert_nothing_missing(changes, writers.committed)
    assert_last_occurrences_in_order(changes)
    assert count_repeats(changes) <= 2 * longest


def test_a_standby_leaves_at_once(site: CaptureSite) -> None:
    with site.capture() as leader:
        leader.wait_for_log("streaming")
        with site.capture(STANDBY_RETRY_INTERVAL_S=30) as standby:
            wait_for_phase(standby, "standby")
            assert stop(standby) < PROMPTLY_S
        assert len(leader.events("streaming")) == 1
        assert leader.events("LineLost") == []


@pytest.mark.parametrize("state", ["refused", "silent"])
def test_an_unreachable_postgres_holds_nobody_up(site: CaptureSite, state: str) -> None:
    with TcpProxy("127.0.0.1", site.postgres.port) as line:
        if state == "refused":
            line.refuse()
        else:
            line.freeze()
        with site.capture(PGPORT=line.port, CONNECT_TIMEOUT_S=30, STANDBY_RETRY_INTERVAL_S=30) as capture:
            if state == "refused":
                capture.wait_for_log("ConnectionFailed")
            else:
                wait_until(lambda: line.accepted, "the capture tries to connect")
            assert stop(capture) < PROMPTLY_S


def test_a_sink_outage_ends_the_drain_in_time(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    writers = Writers(site.conninfo, seed=23, writers=2)
    site.psql("CREATE TABLE first (id int PRIMARY KEY)")
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as capture, released(fault_proxy):
        capture.wait_for_log("streaming")
        fault_proxy.hold()
        site.psql("INSERT INTO first VALUES (1)")
        # Asked behind it: capture's own note comes at any time, and the slot may go up to the first commit.
        held_up_to = site.wal_end()
        writers.write(20)
        fault_proxy.log.wait_for(lambda log: log.held > 0)
        assert stop(capture) < DRAIN_S + A_SECOND
        assert capture.wait_for_log("drain_incomplete")["pending"] > 0
    slot = site.slot_row()
    assert slot is not None
    assert slot.confirmed_lsn < held_up_to
    changes = go_on_and_read(site)
    assert [change for change in changes if change.table == "first"]
    assert_nothing_missing([change for change in changes if change.table == "items"], writers.committed)
    assert_repeats_identical(changes)


def test_the_lock_is_kept_until_the_last_request_is_over(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    """Or a slow request of before would land behind newer changes of the same row."""
    writers = Writers(site.conninfo, seed=24, writers=1, keys=1)
    slow = {"AWS_ENDPOINT_URL_KINESIS": fault_proxy.url, "SHUTDOWN_DRAIN_S": 0}
    with site.capture(**slow) as leader:
        leader.wait_for_log("streaming")
        with site.capture(STANDBY_RETRY_INTERVAL_S=0.1) as standby:
            wait_for_phase(standby, "standby")
            fault_proxy.inject(Delay(before_s=0.4))
            writers.write(1)
            fault_proxy.log.wait_for(lambda log: log.arrived > len(log.requests))
            writers.write(10)
            stop(leader)
            standby.wait_for_log("streaming")
            site.wait_until_confirmed()
    changes = read_changes(site.kinesis, site.stream)
    assert_nothing_missing(changes, writers.committed)
    assert_last_occurrences_in_order(changes)


def test_a_sink_that_never_answered_holds_nobody_up(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    fault_proxy.hold()
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as capture, released(fault_proxy):
        fault_proxy.log.wait_for(lambda log: log.held > 0)
        assert stop(capture) < PROMPTLY_S


def test_an_sts_that_never_answers_at_the_start(site: CaptureSite, sts: FakeSts, token: Path) -> None:
    """Issue 8, point 8."""
    sts.delay_s = 3600
    with site.capture(**sts.env(token)) as capture:
        wait_until(lambda: sts.asked, "it is asked for credentials")
        assert stop(capture) < DRAIN_S + 1


def test_an_sts_that_never_answers_under_a_leader(site: CaptureSite, sts: FakeSts, token: Path) -> None:
    """Issue 8, point 8: what was read can't be delivered any more, and waits in Postgres."""
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    sts.lifetime_s = 2
    with site.capture(**sts.env(token)) as capture:
        capture.wait_for_log("streaming")
        sts.delay_s = 3600
        time.sleep(sts.lifetime_s + 0.5)
        site.psql("INSERT INTO t VALUES (1)")
        committed = site.wal_end()
        capture.wait_for_log("stream_fault", where=lambda line: line["code"] == "CredentialsExpired")
        assert stop(capture) < DRAIN_S + 1
        assert capture.wait_for_log("drain_incomplete")["pending"] > 0
    slot = site.slot_row()
    assert slot is not None
    assert slot.confirmed_lsn < committed


def test_a_backlog_in_the_socket_is_left_to_the_next(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    site.psql("CREATE TABLE big (id int PRIMARY KEY, pad text)")
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url, INFLIGHT_MAX_MESSAGES=500) as capture:
        capture.wait_for_log("streaming")
        fault_proxy.inject(Delay(before_s=0.2))
        site.psql(f"INSERT INTO big SELECT i, repeat('x', 1000) FROM generate_series(1, {ROWS}) i")
        fault_proxy.log.wait_for(lambda log: len(log.puts) >= 2)
        assert stop(capture) < DRAIN_S + PROMPTLY_S
    assert len(read_changes(site.kinesis, site.stream)) < ROWS
    ids = {change.row["id"] for change in go_on_and_read(site)}
    assert ids == set(range(1, ROWS + 1))


def test_process_1_hears_a_stop_before_anything_has_begun(site: CaptureSite) -> None:
    """Issue 8, point 8. The kernel drops a SIGTERM for process 1 that has no handler for it."""
    inside = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", *PENSTOCK)
    with CaptureProcess(site.env(), program=inside) as capture:
        child = wait_until(lambda: listening_child(capture.pid), "Python runs our first lines")
        watch = Stopwatch()
        os.kill(child, signal.SIGTERM)
        assert capture.wait() == 0
        assert watch.seconds < PROMPTLY_S


def test_signals_are_heard_before_anything_slow_is_imported() -> None:
    slow = "[name for name in ('asyncio', 'pydantic', 'psycopg', 'botocore') if name in sys.modules]"
    code = f"import sys, penstock.entry; print({slow})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def listening_child(pid: int) -> int | None:
    """The process that unshare has started, once it has a handler for SIGTERM."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:
        return None
    status = Path(f"/proc/{children[0]}/status").read_text()
    caught = int(status.partition("SigCgt:\t")[2].partition("\n")[0], 16)
    return int(children[0]) if caught & (1 << (signal.SIGTERM - 1)) else None
