"""Postgres stops, crashes, stays away, and moves to another server: captures wait, come back and say gaps."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn
from tests.faults.stream_checks import (
    assert_last_occurrences_in_order,
    assert_nothing_missing,
    assert_repeats_identical,
    read_changes,
)
from tests.faults.workload import Writers
from tests.servers.capture_site import CaptureSite, logged_at, metric, wait_for_phase, wait_until
from tests.servers.fault_proxy import FaultProxy

STOP_S = 2.0
AWAY_S = 3.0


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    """A server of our own, because others must not notice that it goes."""
    with PrivatePostgres() as server:
        yield server


@pytest.fixture
def site(server: PrivatePostgres, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(server, server.create_database(), kinesis, stream)


def publishes_more(proxy: FaultProxy, requests: int) -> None:
    """Wait until this many further requests have come."""
    goal = proxy.log.arrived + requests
    proxy.log.wait_for(lambda log: log.arrived >= goal, timeout=30)


def assert_stream_is_right(site: CaptureSite, writers: Writers) -> None:
    site.wait_until_confirmed()
    changes = read_changes(site.kinesis, site.stream)
    assert_nothing_missing(changes, writers.committed, in_doubt=writers.in_doubt)
    assert_repeats_identical(changes)
    assert_last_occurrences_in_order(changes)


def test_a_fast_stop_is_not_held_up_and_the_server_is_waited_for(
    site: CaptureSite, fault_proxy: FaultProxy
) -> None:
    writers = Writers(site.conninfo, seed=31, writers=2, pause_s=0.005)
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as capture:
        capture.wait_for_log("streaming")
        with writers.running():
            publishes_more(fault_proxy, 20)
            assert site.postgres.stop("fast") < STOP_S
            gone_at = time.monotonic()
            assert wait_for_phase(capture, "waiting")["status"] == 503
            wait_until(lambda: time.monotonic() - gone_at > AWAY_S, "the server was away for long enough")
            site.postgres.start()
            capture.wait_for_log("streaming", count=2)
            publishes_more(fault_proxy, 20)
        assert_stream_is_right(site, writers)
        assert "Traceback" not in capture.log_text()


def test_a_crash_loses_nothing(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    writers = Writers(site.conninfo, seed=32, writers=2, pause_s=0.005)
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as capture:
        capture.wait_for_log("streaming")
        with writers.running():
            for leaderships in (2, 3):
                publishes_more(fault_proxy, 20)
                site.postgres.crash()
                site.postgres.start()
                capture.wait_for_log("streaming", count=leaderships)
            publishes_more(fault_proxy, 20)
        assert_stream_is_right(site, writers)
        assert "Traceback" not in capture.log_text()


def test_a_fast_stop_is_not_held_up_by_a_sink_outage(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    writers = Writers(site.conninfo, seed=33, writers=2)
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url) as capture:
        capture.wait_for_log("streaming")
        fault_proxy.outage()
        writers.write(20)
        capture.wait_for_log("request_failed")
        assert site.postgres.stop("fast") < STOP_S
        site.postgres.start()
        fault_proxy.restore()
        assert_stream_is_right(site, writers)


class Failover:
    """A primary and its standby, on which two slots are captured.

    `alone` is captured by one process, which moves with the server. Of `pair`, the leader dies together with
    the primary, and the standby process moves.
    """

    def __init__(self, old: PrivatePostgres, new: PrivatePostgres, kinesis: LocalKinesis) -> None:
        self.old = old
        self.new = new
        self.kinesis = kinesis
        self.hosts = {"PGHOST": "127.0.0.1,127.0.0.1", "PGPORT": f"{old.port},{new.port}"}

    def site(self, name: str, server: PrivatePostgres, **over: object) -> CaptureSite:
        return CaptureSite(server, "postgres", self.kinesis, name, slot=name, **self.hosts, **over)

    def cut_off_the_standby(self) -> None:
        """Let it get no more of the primary's log."""
        self.new.psql("ALTER SYSTEM SET primary_conninfo = ''")
        self.new.psql("SELECT pg_reload_conf()")
        wait_until(lambda: not self.new.psql("SELECT pid FROM pg_stat_wal_receiver"), "nobody receives")

    def wait_until_replicated(self) -> None:
        ((end,),) = self.old.psql("SELECT pg_current_wal_insert_lsn()::text")
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        wait_until(lambda: self.new.psql(replayed) == [(True,)], "the standby server has it all")


@pytest.fixture
def failover(server: PrivatePostgres, kinesis: LocalKinesis) -> Iterator[Failover]:
    for name in ("alone", "pair"):
        kinesis.create_stream(name)
    with server.standby() as new:
        yield Failover(server, new, kinesis)
    if not server.running:
        server.start()
    for name in ("alone", "pair"):
        kinesis.delete_stream(name)


def test_a_failover_without_the_slot_is_a_gap_that_is_said(
    failover: Failover, fault_proxy: FaultProxy
) -> None:
    """Issue 8, point 10: the timeline is announced, and a gap names its ends with theirs."""
    behind_proxy = {"AWS_ENDPOINT_URL_KINESIS": fault_proxy.url}
    alone, pair = (failover.site(name, failover.old, **behind_proxy) for name in ("alone", "pair"))
    before = Writers(failover.old.conninfo(), seed=34, writers=2)
    with alone.capture() as moving, pair.capture() as dying:
        moving.wait_for_log("streaming")
        dying.wait_for_log("streaming")
        with pair.capture() as waiting:
            wait_for_phase(waiting, "standby")
            before.write(20)
            alone.wait_until_confirmed()
            pair.wait_until_confirmed()
            published = before.committed
            lost_from = alone.wal_end()
            fault_proxy.outage()
            before.write(20)
            lost_up_to = alone.wal_end()
            failover.wait_until_replicated()
            dying.kill9()
            failover.old.crash()
            failover.new.promote()
            gaps = [capture.wait_for_log("GAP", timeout=30) for capture in (moving, waiting)]
            fault_proxy.restore()
            after = Writers(failover.new.conninfo(), seed=35, writers=2)
            after.write(20)
            switches = [capture.wait_for_log("timeline_switched") for capture in (moving, waiting)]
            for switch in switches:
                assert switch["level"] == "warning"
                assert "timeline 1 was left at" in switch["note"]
            for gap, capture, name in zip(gaps, (moving, waiting), ("alone", "pair"), strict=True):
                assert gap["level"] == "error"
                assert parse_lsn(gap["last_known_lsn"]) <= lost_from
                assert lost_up_to <= parse_lsn(gap["start_lsn"])
                assert (gap["last_known_timeline"], gap["timeline"]) == (1, 2)
                assert metric(capture, "penstock_gaps_total") == 1
                assert metric(capture, "penstock_timeline_switches_total") == 1
                assert metric(capture, "penstock_timeline") == 2
                failover.site(name, failover.new).wait_until_confirmed()
                changes = read_changes(failover.kinesis, name)
                assert_nothing_missing(changes, published | after.committed)
                assert_last_occurrences_in_order(changes)


def test_a_standby_that_lags_is_promoted_and_lsns_repeat(
    failover: Failover, stream: str, fault_proxy: FaultProxy
) -> None:
    """Issue 8, point 10: that is said before anything of the new timeline is published."""
    behind_proxy = {"AWS_ENDPOINT_URL_KINESIS": fault_proxy.url, **failover.hosts}
    old, new = (
        CaptureSite(server, "postgres", failover.kinesis, stream, slot="lagging", **behind_proxy)
        for server in (failover.old, failover.new)
    )
    old.psql("CREATE TABLE lagging (id int PRIMARY KEY, pad text)")
    with old.capture() as capture:
        capture.wait_for_log("streaming")
        failover.wait_until_replicated()
        failover.cut_off_the_standby()
        left_at = old.wal_end()
        old.psql("INSERT INTO lagging SELECT id, repeat('x', 1000) FROM generate_series(1, 500) id")
        old.wait_until_confirmed()
        published = read_changes(failover.kinesis, stream)
        before = len(fault_proxy.log.puts)
        failover.old.crash()
        failover.new.promote()
        switch = capture.wait_for_log("timeline_switched", timeout=30)
        assert "never happened here, and LSNs repeat from there" in switch["note"]
        capture.wait_for_log("streaming", count=2)
        new.psql("INSERT INTO lagging VALUES (1001, '')")
        new.wait_until_confirmed()
        assert len(capture.events("timeline_switched")) == 1
        assert metric(capture, "penstock_timeline_switches_total") == 1
    said_ago_s = time.time() - logged_at(switch)
    first = fault_proxy.log.puts[before]
    assert time.monotonic() - said_ago_s <= first.arrived_at
    (change,) = [each for each in read_changes(failover.kinesis, stream) if each.row["id"] == 1001]
    assert left_at <= change.lsn < max(each.lsn for each in published), "a reader by the highest LSN drops it"
