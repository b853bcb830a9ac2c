"""Issue 8, point 3: the server's own words are said, and what no retry mends is not hurried."""

from __future__ import annotations

import time

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import CaptureSite, metric, readiness, wait_until

WATCHED_S = 4.0
"""Several times as long as a retry that isn't slowed waits."""


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream)


def test_a_terminated_walsender_says_so(site: CaptureSite) -> None:
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        slot = site.slot_row()
        assert slot is not None
        site.psql(f"SELECT pg_terminate_backend({slot.active_pid})")
        said = capture.wait_for_log("LineLost")
        assert "terminating connection due to administrator command" in said["detail"]
        capture.wait_for_log("streaming", count=2)


def write_what_cant_be_decoded(site: CaptureSite) -> None:
    """A row with an enum value that has no label any more: the output function fails, whoever decodes it."""
    site.psql("CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TABLE t (id int PRIMARY KEY, n int, m mood)")
    site.psql("INSERT INTO t VALUES (1, 1, 'bad')")
    site.wait_until_confirmed()
    site.psql("DELETE FROM pg_enum WHERE enumlabel = 'bad'")
    site.psql("UPDATE t SET n = 2")


def test_an_error_that_comes_back_at_one_place_needs_a_person(site: CaptureSite) -> None:
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        write_what_cant_be_decoded(site)
        said = capture.wait_for_log(
            "DecodingFailed", timeout=30, where=lambda line: "needs a person" in line["detail"]
        )
        assert said["level"] == "error"
        assert "invalid internal value for enum" in said["detail"]
        assert 'output plugin "wal2json"' in said["detail"]
        leaderships = metric(capture, "penstock_leaderships_total")
        assert leaderships <= 5
        watched_until = time.monotonic() + WATCHED_S
        while time.monotonic() < watched_until:
            answer = readiness(capture)
            assert answer["status"] == 503
            assert "needs a person" in " ".join(answer["reasons"])
            time.sleep(0.1)
        assert metric(capture, "penstock_leaderships_total") == leaderships
        capture.stop()
        assert wait_until(lambda: not capture.running, "it stops", 5.0)


def test_two_processes_that_meet_it_in_turn_need_a_person_too(site: CaptureSite) -> None:
    """Each finds the other leading in between, and that is no headway."""
    with (
        site.capture(STANDBY_RETRY_INTERVAL_S=0.2) as first,
        site.capture(STANDBY_RETRY_INTERVAL_S=0.2) as second,
    ):
        wait_until(lambda: first.events("streaming") or second.events("streaming"), "one leads")
        write_what_cant_be_decoded(site)
        pair = (first, second)
        for capture in pair:
            capture.wait_for_log(
                "DecodingFailed", timeout=30, where=lambda line: "needs a person" in line["detail"]
            )
        leaderships = sum(metric(capture, "penstock_leaderships_total") for capture in pair)
        assert leaderships <= 10
        watched_until = time.monotonic() + WATCHED_S / 2
        while time.monotonic() < watched_until:
            assert [readiness(capture)["status"] for capture in pair] == [503, 503]
            time.sleep(0.1)
        assert sum(metric(capture, "penstock_leaderships_total") for capture in pair) == leaderships
