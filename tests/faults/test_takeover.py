"""One leader at a time: whatever ends or freezes it, a standby goes on within the documented bound."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.settings.kinesis import KinesisSettings
from tests.faults.stream_checks import (
    assert_last_occurrences_in_order,
    assert_nothing_missing,
    assert_repeats_identical,
    read_changes,
)
from tests.faults.workload import Writers
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, logged_at, wait_for_phase, wait_until
from tests.servers.fault_proxy import FaultProxy
from tests.servers.stopwatch import Stopwatch
from tests.servers.tcp_proxy import TcpProxy

TIMEOUT_S = 3.0
RETRY_S = 1.0
FREED_AT_ONCE_S = RETRY_S + 1
"""The documented bound where the server itself sees that the leader is gone."""
FREED_BY_TIMEOUT_S = TIMEOUT_S + RETRY_S + 1
"""The documented bound where it has to wait for a silent leader."""
LEAVING_S = 1.0
SENDERS = """
    SELECT pid FROM pg_stat_replication
    WHERE application_name = 'penstock capture {}' AND state IN ('catchup', 'streaming')
"""
SESSIONS = {
    "walsender": "SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{}'",
    "watchdog": """
        SELECT pid FROM pg_stat_activity
        WHERE application_name = 'penstock capture {}' AND backend_type = 'client backend'
          AND query ~ 'pg_locks|pg_replication_slots'
    """,
}


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(
        postgres, database, kinesis, stream, LEADER_TIMEOUT_S=TIMEOUT_S, STANDBY_RETRY_INTERVAL_S=RETRY_S
    )


@pytest.fixture
def one_consumer(site: CaptureSite) -> Iterator[None]:
    """Looks all the time who streams from the slot, and fails if two do.

    A walsender that ends lets go of the slot a moment before it leaves the view.
    """
    crowds: list[object] = []
    done = threading.Event()

    def watch() -> None:
        with psycopg.connect(site.conninfo, autocommit=True) as session:
            alone_at = time.monotonic()
            while not done.wait(0.01):
                senders = session.execute(SENDERS.format(site.slot).encode()).fetchall()
                if len(senders) <= 1:
                    alone_at = time.monotonic()
                elif time.monotonic() - alone_at > LEAVING_S:
                    crowds.append(senders)

    watcher = threading.Thread(target=watch, name="one-consumer")
    watcher.start()
    yield
    done.set()
    watcher.join()
    assert crowds == []


@contextmanager
def leader_and_standby(
    site: CaptureSite, **leader: object
) -> Iterator[tuple[CaptureProcess, CaptureProcess]]:
    """Two captures; `leader` are variables of the first."""
    with site.capture(**leader) as first:
        first.wait_for_log("streaming")
        with site.capture() as second:
            wait_for_phase(second, "standby")
            assert second.events("lock_acquired") == []
            yield first, second


def assert_stream_is_right(site: CaptureSite, writers: Writers, *, in_order: bool = True) -> None:
    """All that was committed is in the stream, and no reader is misled."""
    site.wait_until_confirmed()
    changes = read_changes(site.kinesis, site.stream)
    assert_nothing_missing(changes, writers.committed, in_doubt=writers.in_doubt)
    assert_repeats_identical(changes)
    if in_order:
        assert_last_occurrences_in_order(changes)


def publishes_more(proxy: FaultProxy, requests: int) -> None:
    """Wait until this many further requests have come."""
    goal = proxy.log.arrived + requests
    proxy.log.wait_for(lambda log: log.arrived >= goal, timeout=30)


def writes_more(writers: Writers, changes: int = 20) -> None:
    """Wait until this many further changes are committed."""
    goal = len(writers.committed) + changes
    wait_until(lambda: len(writers.committed) >= goal, "the writers go on")


def next_leader(captures: Sequence[CaptureProcess], number: int) -> tuple[float, CaptureProcess]:
    """Wait for the leadership of this number, counted from 1, and tell when and of which capture it began."""

    def began() -> list[tuple[float, CaptureProcess]]:
        found = [(logged_at(event), each) for each in captures for event in each.events("streaming")]
        return sorted(found, key=lambda leadership: leadership[0])

    return wait_until(lambda: began()[number - 1 :], f"leadership {number} begins")[0]


@pytest.mark.usefixtures("one_consumer")
def test_a_killed_leader_is_replaced(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    rng = random.Random(11)
    writers = Writers(site.conninfo, seed=11, writers=2, pause_s=0.01)
    with ExitStack() as stack:
        captures = [
            stack.enter_context(site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url)) for _ in range(4)
        ]
        _, leader = next_leader(captures, 1)
        for standby in captures:
            if standby is not leader:
                wait_for_phase(standby, "standby")
        with writers.running():
            for number in (2, 3, 4):
                publishes_more(fault_proxy, rng.randrange(1, 50))
                killed_at, watch = time.time(), Stopwatch()
                leader.kill9()
                began_at, leader = next_leader(captures, number)
                assert watch.fair(began_at - killed_at) <= FREED_AT_ONCE_S
            writes_more(writers)
        assert_stream_is_right(site, writers)


@pytest.mark.usefixtures("one_consumer")
def test_a_frozen_leader_is_replaced_and_wakes_up_silent(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    """With one key there is one request at a time, so nothing else is half-way when it is held."""
    writers = Writers(site.conninfo, seed=12, writers=2, keys=1, pause_s=0.01)
    with leader_and_standby(site, AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as (leader, standby):
        with writers.running():
            publishes_more(fault_proxy, 5)
            fault_proxy.hold()
            fault_proxy.log.wait_for(lambda log: log.held == 1)
            frozen_at, watch = time.time(), Stopwatch()
            leader.freeze()
            fault_proxy.release()
            took = logged_at(standby.wait_for_log("streaming")) - frozen_at
            assert watch.fair(took) <= FREED_BY_TIMEOUT_S
            writes_more(writers)
            site.wait_until_confirmed()
            sent = fault_proxy.log.arrived
            leader.cont()
            wait_for_phase(leader, "standby")
            writes_more(writers)
        assert_stream_is_right(site, writers)
        assert fault_proxy.log.arrived == sent
        assert len(leader.events("streaming")) == len(standby.events("streaming")) == 1


@pytest.mark.usefixtures("one_consumer")
def test_a_leader_frozen_in_mid_publishing_loses_nothing(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    """A request caught between the freshness check and its sending may still go out, and no other."""
    writers = Writers(site.conninfo, seed=13, writers=2)
    with leader_and_standby(site, AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as (leader, standby):
        with writers.running():
            publishes_more(fault_proxy, 20)
            leader.freeze()
            standby.wait_for_log("streaming", timeout=FREED_BY_TIMEOUT_S + 5)
            sent = fault_proxy.log.arrived
            leader.cont()
            wait_for_phase(leader, "standby")
        assert_stream_is_right(site, writers, in_order=False)
        assert fault_proxy.log.arrived - sent <= KinesisSettings.model_fields["max_requests"].default


@pytest.mark.usefixtures("one_consumer")
@pytest.mark.parametrize("session", SESSIONS)
def test_a_terminated_session_ends_a_leadership_and_nothing_else(
    site: CaptureSite, fault_proxy: FaultProxy, session: str
) -> None:
    writers = Writers(site.conninfo, seed=14, writers=2, pause_s=0.01)
    with leader_and_standby(site, AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as captures:
        with writers.running():
            publishes_more(fault_proxy, 20)
            ((victim,),) = site.psql(SESSIONS[session].format(site.slot))
            ended_at, watch = time.time(), Stopwatch()
            site.psql(f"SELECT pg_terminate_backend({victim})")
            began_at, _ = next_leader(captures, 2)
            assert watch.fair(began_at - ended_at) <= FREED_AT_ONCE_S
            writes_more(writers)
        assert_stream_is_right(site, writers)
        assert all("Traceback" not in capture.log_text() for capture in captures)


@pytest.mark.usefixtures("one_consumer")
def test_a_cut_line_is_noticed_on_both_sides(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    writers = Writers(site.conninfo, seed=15, writers=2, pause_s=0.01)
    with (
        TcpProxy("127.0.0.1", site.postgres.port) as line,
        leader_and_standby(site, PGPORT=line.port, AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as captures,
    ):
        with writers.running():
            publishes_more(fault_proxy, 20)
            cut_at, watch = time.time(), Stopwatch()
            line.cut()
            began_at, _ = next_leader(captures, 2)
            assert watch.fair(began_at - cut_at) <= FREED_AT_ONCE_S
            writes_more(writers)
        assert_stream_is_right(site, writers)
        assert all("Traceback" not in capture.log_text() for capture in captures)


@pytest.mark.usefixtures("one_consumer")
def test_a_half_open_line_frees_the_slot(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    writers = Writers(site.conninfo, seed=16, writers=2, pause_s=0.01)
    with (
        TcpProxy("127.0.0.1", site.postgres.port) as line,
        leader_and_standby(
            site, PGPORT=line.port, AWS_ENDPOINT_URL_KINESIS=fault_proxy.url, CONNECT_TIMEOUT_S=1
        ) as (leader, standby),
    ):
        with writers.running():
            publishes_more(fault_proxy, 20)
            frozen_at, watch = time.time(), Stopwatch()
            line.freeze()
            noticed = leader.wait_for_log("LineStale")
            assert watch.fair(logged_at(noticed) - frozen_at) <= TIMEOUT_S
            sent = fault_proxy.log.arrived
            took = logged_at(standby.wait_for_log("streaming")) - frozen_at
            assert watch.fair(took) <= FREED_BY_TIMEOUT_S
            writes_more(writers)
            line.thaw()
            wait_for_phase(leader, "standby")
        assert_stream_is_right(site, writers)
        assert fault_proxy.log.arrived == sent
