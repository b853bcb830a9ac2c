"""Issue 8, point 5: the slot's metrics are true when it matters, and say how old they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.rig import Rig
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, metric, turns, wait_for_phase, wait_until

MUCH = 3 * 1024 * 1024


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    """A server of our own, on which slots get lost."""
    with PrivatePostgres(settings={"wal_keep_size": "0"}) as server:
        yield server


def write_much(site: CaptureSite) -> None:
    site.psql("CREATE TABLE IF NOT EXISTS much (pad text)")
    site.psql("INSERT INTO much SELECT repeat(md5(i::text), 32) FROM generate_series(1, 4000) i")


def slot_metric(capture: CaptureProcess, name: str) -> float:
    return metric(capture, f"penstock_slot_{name}")


def test_during_an_outage_it_shows_what_piles_up(rig: Rig) -> None:
    with rig.capture(SINK_OUTAGE_DISCONNECT_S=1) as capture:
        capture.wait_for_log("streaming")
        wait_until(lambda: slot_metric(capture, "active") == 1, "the slot is seen in use")
        rig.proxy.outage()
        write_much(rig)
        wait_for_phase(capture, "sink_down")
        wait_until(lambda: slot_metric(capture, "active") == 0, "the slot is seen free")
        wait_until(lambda: slot_metric(capture, "retained_bytes") > MUCH, "what is kept is seen")
        assert slot_metric(capture, "read_age_seconds") < 10


def test_a_standby_sees_a_lost_slot(server: PrivatePostgres, kinesis: LocalKinesis, stream: str) -> None:
    site = CaptureSite(server, "postgres", kinesis, stream, slot="lost")
    with site.capture() as leader:
        leader.wait_for_log("streaming")
        # It waits for so long that it never competes in this test: what it knows comes from watching.
        with site.capture(STANDBY_RETRY_INTERVAL_S=600) as standby:
            wait_for_phase(standby, "standby")
            wait_until(lambda: slot_metric(standby, "active") == 1, "the standby sees the slot")
            leader.kill9()
            server.set("max_slot_wal_keep_size", "1MB")
            for _ in range(3):
                server.psql("SELECT pg_logical_emit_message(false, '', ''); SELECT pg_switch_wal()")
            server.psql("CHECKPOINT")
            turns(standby, ready=False, sentence="lost: replication slot 'lost' is lost")
            assert slot_metric(standby, "lost") == 1
            assert standby.metrics()['penstock_phase{phase="standby"}'] == 1

            server.psql("SELECT pg_drop_replication_slot('lost')")
            server.psql("SELECT pg_create_logical_replication_slot('lost', 'wal2json')")
            turns(standby, ready=True)
            assert standby.metrics()['penstock_phase{phase="standby"}'] == 1


def test_when_postgres_is_away_the_reading_gets_old(
    server: PrivatePostgres, kinesis: LocalKinesis, stream: str
) -> None:
    site = CaptureSite(server, "postgres", kinesis, stream, slot="away")
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        wait_until(lambda: slot_metric(capture, "active") == 1, "the slot is seen")
        server.stop("fast")
        wait_until(lambda: slot_metric(capture, "read_age_seconds") > 7, "the reading gets old")
        server.start()
        wait_until(lambda: slot_metric(capture, "read_age_seconds") < 3, "it is read again")
