"""What is published, what is not, and what the ops port says of it."""

from __future__ import annotations

import json
import re
from collections import Counter

import psycopg
import pytest

from penstock.decoding.wal2json import replication_options
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.postgres.connection import PINNED_SESSION
from penstock.status.health import Phase
from tests.faults.stream_checks import Change, read_changes
from tests.servers.capture_site import CaptureSite, metric, readiness, wait_for_phase, wait_until

MAKE_SLOT = "SELECT pg_create_logical_replication_slot('{}', 'wal2json')"
TYPES = """
    CREATE TYPE mood AS ENUM ('happy', 'it''s "odd"');
    CREATE TABLE everything (
        id bigint PRIMARY KEY, flag bool, small smallint, exact numeric, amount numeric(12, 2), near float8,
        single real, label text, padded char(8), raw bytea, at timestamptz, naive timestamp, day date,
        span interval, doc jsonb, plain json, uid uuid, tags text[], numbers int[], about mood, address inet,
        extent int4range,
        twice bigint GENERATED ALWAYS AS (id * 2) STORED
    );
    ALTER TABLE everything ALTER label SET STORAGE EXTERNAL
"""
# Output follows session settings, and a database can have its own: ours must win.
OWN_WAYS = """
    ALTER DATABASE {0} SET timezone = 'Asia/Tokyo';
    ALTER DATABASE {0} SET datestyle = 'German';
    ALTER DATABASE {0} SET intervalstyle = 'iso_8601';
    ALTER DATABASE {0} SET extra_float_digits = -5;
    ALTER DATABASE {0} SET bytea_output = 'escape'
"""
WRITES = r"""
    SET bytea_output = 'hex';
    INSERT INTO everything VALUES (
        9007199254740993, true, -32768, 12345678901234567890.123456789, 1234567890.10, 0.1, 1e-10,
        E'Zoë "quoted" \\ back\tslash\n\u0001 日本 😀', 'pad', '\x00ff5c27', '2024-02-29 23:59:59.123456+00',
        '2024-02-29 23:59:59.5', '0044-03-15 BC', '1 year -2 days 03:04:05.6', '{"a": [1, null, "x"]}',
        '{"b" :  2}', '00000000-0000-0000-0000-000000000001', '{a,"b c",NULL}', '{1,2,NULL}', 'it''s "odd"',
        '10.0.0.1/8', '[1,5)');
    INSERT INTO everything (id, exact, near, single) VALUES (2, 'NaN', 'Infinity', '-Infinity');
    INSERT INTO everything (id, label) VALUES (3, repeat('toast ', 4000));
    UPDATE everything SET flag = false WHERE id = 3;
    UPDATE everything SET id = 4 WHERE id = 3;
    DELETE FROM everything WHERE id = 4;
    TRUNCATE everything
"""


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream, LEADER_TIMEOUT_S=10)


def published(site: CaptureSite) -> list[Change]:
    """The stream, once all that is committed now is in it."""
    site.wait_until_confirmed()
    return read_changes(site.kinesis, site.stream)


def decoded(site: CaptureSite, slot: str, options: dict[str, str]) -> list[bytes]:
    """What wal2json makes of the changes in another slot, in an ordinary session."""
    pairs = [part for pair in options.items() for part in pair]
    query = "SELECT data FROM pg_logical_slot_peek_changes(%s, NULL, NULL, VARIADIC %s::text[])"
    with psycopg.connect(site.conninfo, options=PINNED_SESSION) as session:
        return [data.encode() for (data,) in session.execute(query, (slot, pairs))]


@pytest.mark.parametrize(
    ("variables", "without"),
    [
        pytest.param({}, set(), id="whole"),
        pytest.param(
            {
                "WAL2JSON_INCLUDE_TIMESTAMP": "false",
                "WAL2JSON_INCLUDE_LSN": "false",
                "WAL2JSON_INCLUDE_PK": "false",
                "PARTITION_KEY_MODE": "fallback",
            },
            {"timestamp", "lsn", "pk"},
            id="bare",
        ),
    ],
)
def test_payloads_are_the_bytes_of_wal2json(
    site: CaptureSite, variables: dict[str, str], without: set[str]
) -> None:
    site.psql(TYPES)
    site.psql(OWN_WAYS.format(site.database))
    for slot in (site.slot, f"other_{site.slot}"):
        site.psql(MAKE_SLOT.format(slot))
    with site.capture(**variables) as capture:
        capture.wait_for_log("streaming")
        site.psql(WRITES)
        changes = published(site)

    options = replication_options(
        include_timestamp="timestamp" not in without,
        include_lsn="lsn" not in without,
        include_pk="pk" not in without,
    )
    frames = decoded(site, f"other_{site.slot}", options)
    expected = {frame for frame in frames if json.loads(frame)["action"] not in "BC"}
    assert len(expected) == 7
    assert {change.data for change in changes} == expected
    assert not any(change.body.keys() & without for change in changes)


def test_begin_and_commit_are_published_on_request(site: CaptureSite) -> None:
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    xids = []
    with site.capture(WAL2JSON_INCLUDE_TRANSACTIONS="true") as capture:
        capture.wait_for_log("streaming")
        with psycopg.connect(site.conninfo) as session:
            for statement in ("INSERT INTO t VALUES (1), (2)", "UPDATE t SET id = 3 WHERE id = 1"):
                session.execute(statement.encode())
                xids.append(session.execute("SELECT txid_current()").fetchone())
                session.commit()
        changes = published(site)

    by_xid = [sorted(str(c.action) for c in changes if (c.body["xid"],) == xid) for xid in xids]
    assert by_xid == [["B", "C", "I", "I"], ["B", "C", "U"]]
    assert all(change.body["nextlsn"] for change in changes if change.action in ("B", "C"))


def test_tables_that_are_not_followed_are_left_out_and_hold_nothing_up(site: CaptureSite) -> None:
    site.psql(
        "CREATE SCHEMA other;"
        "CREATE TABLE kept (id int PRIMARY KEY); CREATE TABLE unnamed (id int PRIMARY KEY);"
        "CREATE TABLE other.kept (id int PRIMARY KEY); CREATE TABLE other.dropped (id int PRIMARY KEY)"
    )
    chosen = {
        "WAL2JSON_ADD_TABLES": "public.kept,other.*",
        "WAL2JSON_FILTER_TABLES": "other.dropped",
    }
    with site.capture(**chosen) as capture:
        capture.wait_for_log("streaming")
        for table in ("kept", "other.kept", "unnamed", "other.dropped"):
            site.psql(f"INSERT INTO {table} SELECT generate_series(1, 10)")
        changes = published(site)

    assert Counter(change.key.partition("/")[0] for change in changes) == {
        "public.kept": 10,
        "other.kept": 10,
    }


def test_logical_messages_are_counted_not_published_and_hold_nothing_up(site: CaptureSite) -> None:
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    emit = "SELECT pg_logical_emit_message({}, 'note', 'for nobody')"
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        with psycopg.connect(site.conninfo) as session:
            session.execute("INSERT INTO t VALUES (1)")
            for transactional in ("true", "false"):
                session.execute(emit.format(transactional).encode())
            session.execute("INSERT INTO t VALUES (2)")
        site.psql(emit.format("true"))
        site.psql(emit.format("false"))
        changes = published(site)
        wait_until(
            lambda: metric(capture, "penstock_stream_messages_total") == 4, "four messages are counted"
        )

    assert sorted(change.row["id"] for change in changes) == [1, 2]


def test_changes_that_the_server_leaves_out_raise_an_alarm(site: CaptureSite) -> None:
    site.psql("CREATE TABLE keyless (id int); CREATE TABLE keyed (id int PRIMARY KEY)")
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        for table in ("keyless", "keyed"):
            site.psql(f"INSERT INTO {table} VALUES (1)")
            site.psql(f"UPDATE {table} SET id = 2")
            site.psql(f"DELETE FROM {table}")
        changes = published(site)
        left_out = metric(capture, "penstock_stream_dropped_by_server_total")
        alarms = capture.events("changes_dropped_by_server")

    assert Counter((c.table, c.action) for c in changes) == Counter(
        {("keyless", "I"): 1, ("keyed", "I"): 1, ("keyed", "U"): 1, ("keyed", "D"): 1}
    )
    assert left_out == 2
    assert [(alarm["level"], "keyless" in alarm["table"]) for alarm in alarms] == [("error", True)]
    assert "REPLICA IDENTITY FULL" in alarms[0]["fix"]


def test_the_ops_port_tells_of_a_leader_and_of_a_standby(site: CaptureSite) -> None:
    site.psql("CREATE TABLE t (id int PRIMARY KEY, pad text)")
    with site.capture() as leader:
        leader.wait_for_log("streaming")
        with site.capture() as standby:
            waiting = wait_for_phase(standby, "standby")
            standby_phases = phases(standby.get("/metrics").text)
            live = json.loads(standby.get("/livez").text)
        for first in (1, 6, 11):
            site.psql(f"INSERT INTO t SELECT g, 'x' FROM generate_series({first}, {first + 4}) g")
        changes = published(site)
        confirmed = site.wal_end()
        wait_until(lambda: metric(leader, "penstock_frontier_lsn") >= confirmed, "the gauges are up to date")
        wait_until(lambda: metric(leader, "penstock_slot_active") == 1, "the slot is seen in use")
        wait_until(
            lambda: metric(leader, "penstock_stream_changes_total") == 15, "the reader's counts are told"
        )
        ready = readiness(leader)
        text = leader.get("/metrics").text

    assert waiting == {"status": 200, "ready": True, "phase": "standby", "reasons": []}
    assert ready == {"status": 200, "ready": True, "phase": "streaming", "reasons": []}
    assert live == {"live": True, "phase": "standby"}
    assert (standby_phases, phases(text)) == ({"standby"}, {"streaming"})
    values = {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}
    expected = {
        "leaderships_total": 1,
        "slot_creations_total": 1,
        "gaps_total": 0,
        "slot_active": 1,
        "slot_lost": 0,
        "stream_changes_total": 15,
        "sink_records_total": 15,
        "sink_bytes_total": sum(len(change.data) + len(change.key) for change in changes),
        "ack_pending": 0,
        "queue_events": 0,
        "inflight_bytes": 0,
        "undeliverable_blocked_total": 0,
    }
    assert {name: values[f"penstock_{name}"] for name in expected} == expected
    assert values["penstock_stream_transactions_total"] >= 3, "the note's own are among them"
    assert values["penstock_stream_bytes_total"] == expected["sink_bytes_total"]
    assert values["penstock_stream_received_lsn"] >= values["penstock_frontier_lsn"] >= confirmed
    assert values["penstock_sink_put_records_seconds_count"] >= 1
    assert values["penstock_read_to_accepted_seconds_count"] >= 1


def phases(metrics: str) -> set[str]:
    """The phases that are marked with 1; each phase has a line."""
    marked = dict(re.findall(r'^penstock_phase\{phase="(\w+)"\} (\S+)$', metrics, re.MULTILINE))
    assert marked.keys() == set(Phase)
    return {phase for phase, mark in marked.items() if float(mark) == 1}
