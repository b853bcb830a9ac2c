"""A server that has run out of transaction ids: nothing can be written, and capture goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.local.postgres_programs import PostgresPrograms, give_to_server_user
from tests.faults.stream_checks import read_changes
from tests.servers.capture_site import CaptureSite, metric, readiness, wait_until

pytestmark = pytest.mark.long

BEFORE_WRAPAROUND = 2_147_483_647 - 3_000_000
"""So many ids behind the oldest one the server gives out no more of them."""
LEFT = 30
IDS_A_SEGMENT = 1 << 20
SEGMENT_BYTES = 256 * 1024
NOTES = "SELECT oid FROM pg_largeobject_metadata"


@pytest.fixture
def server() -> Iterator[PrivatePostgres]:
    """A server with a few transaction ids left, in whose table `held` nothing can be frozen."""
    programs = PostgresPrograms.find()
    with PrivatePostgres() as server:
        server.psql("CREATE TABLE held (id int); CREATE TABLE t (id int PRIMARY KEY)")
        server.stop()
        data = server.directory / "data"
        found = re.search(r"oldestXID:\s+(\d+)", programs.run("pg_controldata", data))
        assert found is not None
        next_id = int(found[1]) + BEFORE_WRAPAROUND - LEFT
        segment = data / "pg_xact" / f"{next_id // IDS_A_SEGMENT:04X}"
        segment.write_bytes(bytes(SEGMENT_BYTES))
        give_to_server_user(segment)
        programs.run("pg_resetwal", "--next-transaction-id", str(next_id), data)
        server.start()
        yield server


def test_a_slot_that_may_be_what_holds_vacuum_goes_on_without_a_note(
    server: PrivatePostgres, kinesis: LocalKinesis, stream: str
) -> None:
    """Its catalog_xmin has to move before there can be ids, and so before there can be a note."""
    site = CaptureSite(server, "postgres", kinesis, stream, slot="wraparound")
    with psycopg.connect(server.conninfo()) as holder:
        holder.execute("LOCK TABLE held IN SHARE UPDATE EXCLUSIVE MODE")
        site.psql("SELECT pg_create_logical_replication_slot('wraparound', 'wal2json')")
        written = use_up_the_ids(site)
        with site.capture() as capture:
            capture.wait_for_log("streaming")
            site.wait_until_confirmed()
            said = capture.wait_for_log(
                "slot_note_unwritten", where=lambda line: "all the same" in line["note"]
            )
            assert "wraparound" in said["detail"]
            assert readiness(capture)["reasons"][0].startswith("note: ")
            assert site.psql(NOTES) == []
            holder.rollback()
            for database in ("postgres", "template1"):
                server.psql("VACUUM FREEZE", database)
            wait_until(lambda: can_write(site), "there are ids again", 60.0)
            capture.wait_for_log("slot_note_written_again", timeout=60.0)
            assert site.psql(NOTES) != []
            wait_until(lambda: readiness(capture)["status"] == 200, "it is well again")
            assert metric(capture, "penstock_leaderships_total") == 1
            assert capture.events("GAP") == []
    ids = [change.row["id"] for change in read_changes(kinesis, stream) if change.row["id"] >= 0]
    assert sorted(ids) == list(range(written)), "each once"


def use_up_the_ids(site: CaptureSite) -> int:
    """Insert rows until the server refuses; returns how many it took."""
    for number in range(10 * LEFT):
        try:
            site.psql(f"INSERT INTO t VALUES ({number})")
        except errors.ProgramLimitExceeded:
            assert number > 0
            return number
    raise AssertionError("the server gives out ids without end")


def can_write(site: CaptureSite) -> bool:
    try:
        site.psql("INSERT INTO t SELECT coalesce(min(id), 0) - 1 FROM t")
    except errors.ProgramLimitExceeded:
        return False
    return True
