"""Issue 8, points 2 and 7: whoever gives out AWS credentials is slow, silent or talks nonsense."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.stream_checks import read_changes
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, readiness, wait_for_phase, wait_until
from tests.servers.fake_sts import FakeSts

TABLE = "CREATE TABLE items (id int PRIMARY KEY, version int)"
END_READER = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'"


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream, STANDBY_RETRY_INTERVAL_S=0.2)


def test_a_slow_sts_does_not_let_a_stale_record_out(site: CaptureSite, sts: FakeSts, token: Path) -> None:
    """Point 2: the leader has v1 and no credentials; another publishes v1 and v2; then the STS answers."""
    site.psql(TABLE)
    sts.lifetime_s = 2
    with site.capture(**sts.env(token), SINK_OUTAGE_DISCONNECT_S=1) as first:
        first.wait_for_log("streaming")
        with site.capture() as second:
            wait_for_phase(second, "standby")
            sts.delay_s = 5
            time.sleep(sts.lifetime_s + 0.5)
            site.psql("INSERT INTO items VALUES (1, 1)")
            time.sleep(0.3)
            # By now it may have given up by itself.
            site.psql(END_READER.format(site.slot))
            second.wait_for_log("streaming")
            site.psql("UPDATE items SET version = 2")
            site.wait_until_confirmed()
            time.sleep(sts.delay_s)
            assert first.running
            assert "Traceback" not in first.log_text()
    versions = [change.row["version"] for change in read_changes(site.kinesis, site.stream)]
    assert versions == [1, 2]


@pytest.mark.parametrize("trouble", ["missing token file", "html"])
def test_nonsense_from_the_chain_is_waited_out_at_the_start(
    site: CaptureSite, sts: FakeSts, token: Path, trouble: str
) -> None:
    """Point 7: the process lives, and says it once."""
    if trouble == "html":
        sts.html = True
    else:
        token.unlink()
    with site.capture(**sts.env(token)) as capture:
        down = wait_for_phase(capture, "sink_down")
        said = capture.wait_for_log("sink_down")
        assert said["detail"].startswith("CredentialsRefresh: ")
        assert down["status"] == 503
        sts.html = False
        token.write_text("a token")
        capture.wait_for_log("streaming")
        assert readiness(capture)["status"] == 200
        assert_quiet(capture)


def test_an_sts_that_is_down_under_a_leader(site: CaptureSite, sts: FakeSts, token: Path) -> None:
    """Point 7: one leadership, a few lines."""
    site.psql(TABLE)
    sts.lifetime_s = 2
    with site.capture(**sts.env(token)) as capture:
        capture.wait_for_log("streaming")
        sts.html = True
        time.sleep(sts.lifetime_s + 0.5)
        site.psql("INSERT INTO items VALUES (1, 1)")
        said = capture.wait_for_log("stream_fault")
        assert said["code"] == "CredentialsExpired"
        assert "ResponseParserError" in said["message"]
        assert readiness(capture)["status"] == 503
        time.sleep(3)
        assert_quiet(capture)
        sts.html = False
        site.wait_until_confirmed()
        wait_until(lambda: readiness(capture)["status"] == 200, "it is ready again")
        assert len(capture.events("streaming")) == 1, "one leadership"


def assert_quiet(capture: CaptureProcess) -> None:
    """A few lines, each an event or one of a library's, and no traceback."""
    lines = capture.log_text().splitlines()
    assert len(lines) < 20, lines
    assert "Traceback" not in capture.log_text()
    assert sum(not line.startswith("{") for line in lines) <= 3
    assert all("exception" not in json.loads(line) for line in lines if line.startswith("{"))
