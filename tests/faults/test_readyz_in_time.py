"""`/readyz` turns, both ways, within seconds, and its sentence is true."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.settings.postgres import LeaderSettings
from tests.servers.capture_site import CaptureSite, metric, readiness, turns, wait_until
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import FailRecords

OUTAGE_LIMIT_S = 2.0
LEADER = LeaderSettings()
DEFAULTS = {
    "LEADER_TIMEOUT_S": LEADER.timeout_s,
    "STANDBY_RETRY_INTERVAL_S": LEADER.standby_retry_interval_s,
}
LONGEST_PAUSE_S = 4.0


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(settings={"wal_keep_size": "0"}) as server:
        yield server


@pytest.fixture
def site(server: PrivatePostgres, kinesis: LocalKinesis, stream: str, fault_proxy: FaultProxy) -> CaptureSite:
    server.psql("CREATE TABLE t (id int PRIMARY KEY)")
    return CaptureSite(
        server,
        "postgres",
        kinesis,
        stream,
        slot="in_time",
        AWS_ENDPOINT_URL_KINESIS=fault_proxy.url,
        SINK_OUTAGE_DISCONNECT_S=OUTAGE_LIMIT_S,
    )


@pytest.mark.parametrize(
    ("times", "limit_s"),
    [
        pytest.param({}, OUTAGE_LIMIT_S, id="quick"),
        pytest.param(DEFAULTS, OUTAGE_LIMIT_S, id="defaults"),
        pytest.param(DEFAULTS, LEADER.sink_outage_disconnect_s, marks=pytest.mark.long, id="all-defaults"),
    ],
)
def test_kinesis_and_postgres_go_and_come_back(
    site: CaptureSite,
    server: PrivatePostgres,
    fault_proxy: FaultProxy,
    times: dict[str, object],
    limit_s: float,
) -> None:
    with site.capture(**times, SINK_OUTAGE_DISCONNECT_S=limit_s) as capture:
        capture.wait_for_log("streaming")
        turns(capture, ready=True)
        fault_proxy.outage()
        site.psql("INSERT INTO t VALUES (1)")
        time.sleep(limit_s)
        turns(capture, ready=False, sentence="ConnectionRefusedError")
        # How long the frontier stands still is another reason, which has a time of its own.
        said, *_ = readiness(capture)["reasons"]
        assert said.startswith("sink: ")
        assert fault_proxy.url in said
        # By then it is asked as seldom as it ever is.
        wait_until(lambda: metric(capture, "penstock_behind_seconds") > limit_s + LONGEST_PAUSE_S, "it waits")
        wait_until(lambda: metric(capture, "penstock_frontier_age_seconds") > limit_s, "it stands")
        assert metric(capture, "penstock_ready") == 0
        fault_proxy.restore()
        turns(capture, ready=True)
        wait_until(lambda: metric(capture, "penstock_behind_seconds") == 0, "it is delivered")
        assert metric(capture, "penstock_ready") == 1

        server.stop("fast")
        turns(capture, ready=False, sentence="Connection refused")
        assert readiness(capture)["reasons"][0].startswith("postgres: can't connect to Postgres: ")
        age = "penstock_slot_read_age_seconds"
        wait_until(lambda: metric(capture, age) > 2 * LONGEST_PAUSE_S, "it is asked seldom")
        server.start()
        turns(capture, ready=True)
        site.wait_until_confirmed()


def test_metrics_of_shards_clock_and_credentials(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        fault_proxy.inject(FailRecords(keys={"public.t/1"}), times=3)
        site.psql("INSERT INTO t SELECT generate_series(1, 100)")
        wait_until(lambda: metric(capture, "penstock_sink_records_total") == 100, "all are accepted")
        metrics = capture.metrics()
        by_shard = {name: value for name, value in metrics.items() if "kinesis_shard_records_total{" in name}
        assert sum(by_shard.values()) == 100
        assert len(by_shard) == 4
        assert metrics['penstock_kinesis_shard_throttles_total{shard="shardId-000000000002"}'] == 3
        assert metrics["penstock_credentials_expire_seconds"] == math.inf
        wait_until(lambda: metric(capture, "penstock_clock_offset_seconds") != 0, "the server was asked")
        assert abs(metric(capture, "penstock_clock_offset_seconds")) < 1


def test_a_slot_that_is_lost(site: CaptureSite, server: PrivatePostgres) -> None:
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        turns(capture, ready=True)
        capture.freeze()
        server.set("max_slot_wal_keep_size", "1MB")
        for _ in range(3):
            server.psql("SELECT pg_logical_emit_message(false, '', ''); SELECT pg_switch_wal()")
        server.psql("CHECKPOINT")
        capture.cont()
        turns(capture, ready=False, sentence="replication slot 'in_time' is lost")
        said = len(capture.events("SlotInvalid"))

        server.set("max_slot_wal_keep_size", "-1")
        server.psql("SELECT pg_drop_replication_slot('in_time')")
        turns(capture, ready=True)
        assert capture.events("GAP"), "what is missing is said"
        assert len(capture.events("SlotInvalid")) == said == 1
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
