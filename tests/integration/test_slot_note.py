"""Issue 8, point 9: a gap that somebody else made is noticed, also by a process that is new."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
from psycopg import AsyncClientCursor, AsyncConnection

from penstock.errors import LockLost
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn
from penstock.postgres.slot.note import NoteStore, SlotNote
from tests.faults.stream_checks import read_changes
from tests.servers.capture_site import CaptureSite, metric, readiness, wait_for_phase, wait_until
from tests.servers.fault_proxy import FaultProxy
from tests.servers.slots import SlotWatch

MAKE = "SELECT pg_create_logical_replication_slot('{}', 'wal2json')"
NOTE = """
    SELECT convert_from(lo_get(m.oid), 'UTF8'), pg_get_userbyid(m.lomowner)
    FROM pg_largeobject_metadata m
    WHERE obj_description(m.oid, 'pg_largeobject') = 'penstock: how far replication slot {} was confirmed'
"""

HOLD = """
    SELECT lo_put(m.oid, 0, lo_get(m.oid)) FROM pg_largeobject_metadata m
    WHERE obj_description(m.oid, 'pg_largeobject') = 'penstock: how far replication slot {} was confirmed'
"""
DAMAGED = """
    DO $$ BEGIN
        EXECUTE format('COMMENT ON LARGE OBJECT %s IS %L', lo_from_bytea(0, convert_to('{1}', 'UTF8')),
                       'penstock: how far replication slot {0} was confirmed');
    END $$
"""


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    site = CaptureSite(postgres, database, kinesis, stream)
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    return site


@pytest.fixture
def plain_role(postgres: PrivatePostgres) -> Iterator[str]:
    """A role with nothing but REPLICATION."""
    role = f"plain_{secrets.token_hex(4)}"
    postgres.psql(f"CREATE ROLE {role} LOGIN REPLICATION")
    yield role
    postgres.psql(f"DROP ROLE {role}")


def noted_lsn(site: CaptureSite) -> int:
    rows = site.psql(NOTE.format(site.slot))
    return parse_lsn(json.loads(rows[0][0]).get("confirmed", "0/0")) if rows else 0


def confirmed_lsn(site: CaptureSite) -> int:
    slot = site.slot_row()
    assert slot is not None
    return slot.confirmed_lsn


def replace_slot(site: CaptureSite, slot_watch: SlotWatch, change: str) -> None:
    """Drop the slot, let something happen, and create it again: what somebody does who knows no better."""
    slot_watch.drop(site.slot)
    site.psql(change)
    site.psql(MAKE.format(site.slot))


def test_a_slot_replaced_while_nobody_ran_is_a_gap(
    site: CaptureSite, slot_watch: SlotWatch, plain_role: str
) -> None:
    """With the least rights that are documented."""
    with site.capture(PGUSER=plain_role) as first:
        first.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        first.stop()
        assert first.wait() == 0
    noted = noted_lsn(site)
    replace_slot(site, slot_watch, "INSERT INTO t VALUES (2)")
    with site.capture(PGUSER=plain_role) as second:
        gap = second.wait_for_log("GAP")
        second.wait_for_log("streaming")
        assert gap["level"] == "error"
        assert parse_lsn(gap["last_known_lsn"]) == noted < parse_lsn(gap["start_lsn"])
        assert metric(second, "penstock_gaps_total") == 1
        site.psql("INSERT INTO t VALUES (3)")
        site.wait_until_confirmed()
        second.kill9()
    with site.capture(PGUSER=plain_role) as third:
        third.wait_for_log("streaming")
        assert third.events("GAP") == [], "it was said before"
    assert {change.row["id"] for change in read_changes(site.kinesis, site.stream)} == {1, 3}
    site.psql(f"DROP OWNED BY {plain_role}")


def test_a_slot_replaced_in_an_outage_is_a_gap(
    site: CaptureSite, slot_watch: SlotWatch, fault_proxy: FaultProxy
) -> None:
    outage = {"AWS_ENDPOINT_URL_KINESIS": fault_proxy.url, "SINK_OUTAGE_DISCONNECT_S": 1}
    with site.capture(**outage) as capture:
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        fault_proxy.outage()
        site.psql("INSERT INTO t VALUES (2)")
        wait_for_phase(capture, "sink_down")
        replace_slot(site, slot_watch, "INSERT INTO t VALUES (3)")
        fault_proxy.restore()
        gap = capture.wait_for_log("GAP")
        assert "somebody moved it" in gap["note"]
        assert metric(capture, "penstock_gaps_total") == 1


def test_kills_and_crashes_are_no_gap_and_the_slot_never_passes_its_note(site: CaptureSite) -> None:
    for number in range(3):
        with site.capture() as capture:
            capture.wait_for_log("streaming")
            for row in range(20):
                site.psql(f"INSERT INTO t VALUES ({100 * number + row})")
                assert confirmed_lsn(site) <= noted_lsn(site)
            capture.kill9()
    site.postgres.crash()
    site.postgres.start()
    with site.capture() as last:
        last.wait_for_log("streaming")
        site.wait_until_confirmed()
        assert last.events("GAP") == []


def test_an_idle_database_is_left_alone(site: CaptureSite) -> None:
    """A note about a note would be one too many."""
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        before = site.wal_end()
        time.sleep(8)
        assert site.wal_end() - before < 20_000
        assert len(read_changes(site.kinesis, site.stream)) == 1, "the note is in no stream"


def test_where_no_note_can_be_kept_it_is_said_and_captured_all_the_same(
    site: CaptureSite, plain_role: str
) -> None:
    site.psql("REVOKE EXECUTE ON FUNCTION lo_from_bytea(oid, bytea) FROM PUBLIC")
    with site.capture(PGUSER=plain_role) as capture:
        said = capture.wait_for_log("slot_note_refused")
        assert "lo_from_bytea" in said["detail"]
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
    assert site.psql(NOTE.format(site.slot)) == []


def test_it_can_be_switched_off_and_leaves_no_wrong_note_behind(site: CaptureSite) -> None:
    for number, keep in enumerate(["false", "true", "false", "true"]):
        with site.capture(SLOT_NOTE=keep) as capture:
            capture.wait_for_log("streaming")
            site.psql(f"INSERT INTO t VALUES ({number})")
            site.wait_until_confirmed()
            assert capture.events("slot_note_refused") == capture.events("GAP") == []
            capture.stop()
            assert capture.wait() == 0
        assert bool(noted_lsn(site)) is (keep == "true")


def ids(site: CaptureSite) -> list[int]:
    """The rows in the stream, repeats included."""
    return sorted(change.row["id"] for change in read_changes(site.kinesis, site.stream))


@pytest.mark.parametrize(
    "begins", ["under the leader", pytest.param("before the leadership", marks=pytest.mark.long)]
)
def test_a_lock_on_the_note_holds_the_slot_and_ends_with_its_holder(site: CaptureSite, begins: str) -> None:
    """Nothing is confirmed meanwhile, nothing is sent twice, and the process says that it isn't well."""
    with site.capture() as first:
        first.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        if begins == "before the leadership":
            first.stop()
            assert first.wait() == 0
        with psycopg.connect(site.conninfo) as holder, ExitStack() as stack:
            holder.execute(HOLD.format(site.slot))
            capture = stack.enter_context(site.capture()) if not first.running else first
            capture.wait_for_log("streaming")
            before = confirmed_lsn(site)
            site.psql("INSERT INTO t VALUES (2)")
            wait_until(lambda: 2 in ids(site), "it is delivered")
            said = capture.wait_for_log(
                "slot_note_unwritten", where=lambda line: "isn't told" in line["note"]
            )
            assert "lock timeout" in said["detail"]
            (reason,) = readiness(capture)["reasons"]
            assert reason.startswith("note: the slot's note can't be written")
            assert confirmed_lsn(site) == before
            holder.rollback()
            site.psql("INSERT INTO t VALUES (3)")
            site.wait_until_confirmed()
            wait_until(lambda: readiness(capture)["status"] == 200, "it is well again")
            capture.wait_for_log("slot_note_written_again")
            assert len(capture.events("streaming")) == 1, "one leadership"
            assert capture.events("GAP") == []
    assert ids(site) == [1, 2, 3]


@pytest.mark.long
def test_a_note_that_may_not_be_written_any_more_does_not_hold_the_slot(
    site: CaptureSite, plain_role: str
) -> None:
    """As with a server that has run out of disk or of transaction ids, which the slot may be holding."""
    with site.capture(PGUSER=plain_role) as capture:
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        noted = noted_lsn(site)
        site.psql("REVOKE EXECUTE ON FUNCTION lo_put(oid, bigint, bytea) FROM PUBLIC")
        site.psql("INSERT INTO t VALUES (2)")
        site.wait_until_confirmed()
        assert noted_lsn(site) == noted
        said = capture.wait_for_log("slot_note_unwritten")
        assert "lo_put" in said["detail"]
        assert readiness(capture)["status"] == 503
        site.psql("GRANT EXECUTE ON FUNCTION lo_put(oid, bigint, bytea) TO PUBLIC")
        site.psql("INSERT INTO t VALUES (3)")
        capture.wait_for_log("slot_note_written_again")
        site.wait_until_confirmed()
        wait_until(lambda: noted_lsn(site) >= confirmed_lsn(site), "the note is ahead")
        assert len(capture.events("streaming")) == 1, "one leadership"
    assert ids(site) == [1, 2, 3]
    site.psql(f"DROP OWNED BY {plain_role}")


def test_switched_off_it_works_whatever_ails_the_note(site: CaptureSite) -> None:
    with site.capture() as first:
        first.wait_for_log("streaming")
    with psycopg.connect(site.conninfo) as holder:
        holder.execute(HOLD.format(site.slot))
        with site.capture(SLOT_NOTE="false") as capture:
            assert "lock timeout" in capture.wait_for_log("slot_note_stays")["detail"]
            capture.wait_for_log("streaming")
            site.psql("INSERT INTO t VALUES (1)")
            site.wait_until_confirmed()
            assert readiness(capture)["status"] == 200


AHEAD = '{"system": "1", "timeline": 1, "confirmed": "FFFF/0"}'
INFINITE = '{"system": "1", "timeline": Infinity, "confirmed": "0/1"}'


@pytest.mark.parametrize("content", [INFINITE, "[" * 200, '{"system": "1"}', AHEAD, "no JSON"])
def test_a_damaged_note_is_said_and_replaced(site: CaptureSite, content: str) -> None:
    site.psql(MAKE.format(site.slot))
    site.psql(DAMAGED.format(site.slot, content.ljust(256)))
    with site.capture() as capture:
        capture.wait_for_log("slot_note_unusable")
        capture.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        assert noted_lsn(site) > 0
        assert "Traceback" not in capture.log_text()


def test_a_note_that_vacuumlo_took_is_written_again(site: CaptureSite) -> None:
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql("SELECT lo_unlink(oid) FROM pg_largeobject_metadata")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        assert noted_lsn(site) > 0
        assert len(capture.events("streaming")) == 1


def test_a_leader_that_is_no_more_one_cannot_write_the_note(site: CaptureSite) -> None:
    """It was frozen before it wrote, and wakes when another has written."""
    with site.capture() as leader:
        leader.wait_for_log("streaming")
        site.psql("INSERT INTO t VALUES (1)")
        site.wait_until_confirmed()
        with site.capture() as standby:
            wait_for_phase(standby, "standby")
            leader.freeze()
            standby.wait_for_log("streaming")
            site.psql("INSERT INTO t VALUES (2)")
            site.wait_until_confirmed()
            noted = noted_lsn(site)
            leader.cont()
            wait_for_phase(leader, "standby")
            assert noted_lsn(site) >= noted
            wait_until(lambda: noted_lsn(site) >= confirmed_lsn(site), "the note is ahead")


async def test_a_former_leader_cant_write_where_the_next_one_stands(
    postgres: PrivatePostgres, database: str
) -> None:
    """Also while both stand at the same LSN: a leader that was frozen has read the same note."""
    sessions: list[AsyncConnection] = []

    async def connect() -> AsyncConnection:
        sessions.append(
            await AsyncConnection.connect(
                postgres.conninfo(database), autocommit=True, cursor_factory=AsyncClientCursor
            )
        )
        return sessions[-1]

    at = SlotNote("7", 1, 42)
    former, latter = NoteStore(connect, "s"), NoteStore(connect, "s")
    assert await former.claim() is None
    await former.take_over(at)
    assert await latter.claim() == at
    with pytest.raises(LockLost):
        await former.write(at._replace(confirmed_lsn=43))
    await latter.take_over(at)
    await latter.write(at._replace(confirmed_lsn=44))
    assert await NoteStore(connect, "s").claim() == at._replace(confirmed_lsn=44)
    for session in sessions:
        await session.close()
