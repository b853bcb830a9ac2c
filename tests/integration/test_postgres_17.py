"""What only newer servers do to us. Long: the server has to be fetched first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.stream_checks import read_changes
from tests.servers.capture_site import CaptureSite, readiness
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import Delay
from tests.servers.newer_postgres import newer_postgres

pytestmark = pytest.mark.long

ROWS = 6_000
LIMIT_S = 2


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(programs=newer_postgres(17)) as server:
        yield server


@pytest.fixture
def site(server: PrivatePostgres, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(server, server.create_database(), kinesis, stream, LEADER_TIMEOUT_S=10)


def test_transaction_timeout_ends_no_stream(site: CaptureSite, fault_proxy: FaultProxy) -> None:
    """Issue 8, point 1: the walsender decodes inside a transaction that takes longer than the limit."""
    ((version,),) = site.psql("SELECT current_setting('server_version_num')::int / 10000")
    assert version == 17
    site.psql("CREATE TABLE t (id int PRIMARY KEY, pad text)")
    site.psql(f"ALTER DATABASE \"{site.database}\" SET transaction_timeout = '{LIMIT_S}s'")
    # The sockets must not take the transaction at once, and neither may the capture.
    slow = {"KINESIS_BATCH_MAX_RECORDS": 100, "INFLIGHT_MAX_MESSAGES": 200, "INFLIGHT_MAX_BYTES": 400_000}
    with site.capture(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url, **slow) as capture:
        capture.wait_for_log("streaming")
        fault_proxy.inject(Delay(before_s=0.4))
        site.psql(f"INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(1, {ROWS}) i")
        site.wait_until_confirmed(timeout=120)
        assert readiness(capture)["status"] == 200
        assert len(capture.events("streaming")) == 1
    changes = read_changes(site.kinesis, site.stream)
    assert len(changes) == ROWS
    assert {change.row["id"] for change in changes} == set(range(1, ROWS + 1))


def test_an_ordinary_life(site: CaptureSite) -> None:
    """Slot, note, kill, restart and a failing session on this version."""
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    with site.capture() as first:
        first.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        first.kill9()
    site.psql("INSERT INTO t VALUES (2)")
    with site.capture() as second:
        second.wait_for_log("streaming")
        slot = site.slot_row()
        assert slot is not None
        site.psql(f"SELECT pg_terminate_backend({slot.active_pid})")
        second.wait_for_log("streaming", count=2)
        site.psql("INSERT INTO t VALUES (3)")
        site.wait_until_confirmed()
        assert second.events("GAP") == []
    assert {change.row["id"] for change in read_changes(site.kinesis, site.stream)} == {1, 2, 3}
