"""Shapes from a marked stream that isn't what it was: made again, another server's, a promoted standby's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.demo.marked_stream import MarkedStream
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.shapes_load import Bank, Reader, assert_history_is_right, flushes_more
from tests.servers.failover_site import SLOT, FailoverSite
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesProcess, ShapesSite, shape_lines
from tests.servers.streamed_site import MARKED, QUERIES, Events, StreamedSite, needed

LONG_S = 240.0
SHARDS = 4
STRANGER = "7000000000000000001"


def create_again(kinesis: LocalKinesis, stream: str) -> None:
    kinesis.delete_stream(stream)
    kinesis.create_stream(stream, SHARDS)


@pytest.mark.timeout(900)
def test_another_server_in_the_stream_and_a_stream_that_is_created_again(
    shapes_site: ShapesSite, kinesis: LocalKinesis, stream: str, run_once: RunOnce
) -> None:
    """The first is an error until somebody acts; behind the second lies a gap, and all are copied again."""
    streamed = StreamedSite(shapes_site, kinesis, stream, run_once)
    streamed.make_tables()
    sql = shapes_site.sql
    with streamed.capturing():
        streamed.once(streamed.url)
        streamed.assert_equal()
        last = MarkedStream(kinesis.read_all(stream), streamed.site.slot).spoken()[-1]
        stranger = {**last, "system": STRANGER, "by": "f" * 12}
        key = f"penstock/{streamed.site.slot}"
        kinesis.client.put_record(StreamName=stream, Data=json.dumps(stranger), PartitionKey=key)
        sql("INSERT INTO a VALUES (200, 'x'); UPDATE a SET v = 'y' WHERE id < 10")
        before = versions(shapes_site)
        events = streamed.once(streamed.url, expect=1, STALL_S="2")
        assert said(events, f"manifests of system {STRANGER} under the slot {streamed.site.slot}")
        assert versions(shapes_site) == before, "nothing behind it was applied"
        streamed.site.wait_until_confirmed()
    create_again(kinesis, stream)
    events = streamed.once(streamed.url, expect=1, STALL_S="2")
    assert said(events, f"{stream} has no manifests of the slot {streamed.site.slot}")
    with streamed.capturing():
        sql("DELETE FROM a WHERE id = 50")
        events = streamed.once(streamed.url)
        assert needed(events).keys() == QUERIES.keys()
        assert all("GAP" in reason for reason in needed(events).values())
        streamed.assert_equal()


def versions(site: ShapesSite) -> list[int]:
    return [site.version(shape) for shape in QUERIES]


def said(events: Events, words: str) -> bool:
    return any(words in event.get("detail", "") for event in events)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_stream_is_created_again_under_a_running_service(
    shapes_site: ShapesSite, kinesis: LocalKinesis, stream: str, run_once: RunOnce
) -> None:
    """Nobody is started again; no version of a table ever lacks money."""
    streamed = StreamedSite(shapes_site, kinesis, stream, run_once)
    bank, reader = Bank(shapes_site, seed=53, rewrites=False), Reader(shapes_site)
    bank.write_file()
    with streamed.site.capture(**MARKED) as capture:
        capture.wait_for_log("streaming")
        with streamed.run() as service:
            with bank.writing(), reader.reading():
                service.wait_for_log("snapshot_done", LONG_S, count=3)
                flushes_more(shapes_site, service, 2)
                create_again(kinesis, stream)
                service.wait_for_log("snapshot_done", LONG_S, count=6)
                flushes_more(shapes_site, service, 2)
                shapes_site.assert_verified(LONG_S)
            bank.wait_exact(service)
            service.stop()
            assert service.wait(LONG_S) == 0
    assert_history_is_right(shapes_site)


@pytest.fixture
def servers(kinesis: LocalKinesis, stream: str) -> Iterator[FailoverSite]:
    with PrivatePostgres() as old, old.standby() as new:
        yield FailoverSite(old, new, kinesis, stream)


class Storage:
    """One shape in a storage of its own, before and after another server leads."""

    def __init__(self, servers: FailoverSite, directory: Path, run_once: RunOnce) -> None:
        directory.mkdir()
        self._servers = servers
        self._run_once = run_once
        self.url = f"kinesis://{servers.before.stream}?slot={SLOT}"
        self.before, self.after = (
            ShapesSite(server, "postgres", directory) for server in (servers.old, servers.new)
        )
        self.before.write_file(shape_lines("t"))

    def once(self, site: ShapesSite) -> Events:
        """What `penstock shapes --once` logged, after which the table is equal."""
        with capture_logs() as events:
            variables = {"STALL_S": "60", **self._servers.before.kinesis.env()}
            assert self._run_once(site, stream=self.url, **variables) == 0, events
        site.assert_equal("t", ("id",), "SELECT id FROM t")
        return events

    @contextmanager
    def serving(self) -> Iterator[ShapesProcess]:
        """The service, as a process that goes to whoever leads."""
        over = {**self._servers.before.kinesis.env(), **self._servers.hosts, "LEADER_TIMEOUT_S": "20"}
        with self.before.shapes("--from", self.url, **over) as service:
            yield service
            service.stop()
            assert service.wait(LONG_S) == 0


def insert(servers: FailoverSite, first: int, *, on_new: bool = False) -> None:
    """Ten transactions, which the stream has at the end."""
    site = servers.after if on_new else servers.before
    site.psql("".join(f"BEGIN; INSERT INTO t VALUES ({row}); COMMIT;" for row in range(first, first + 10)))
    site.wait_until_confirmed()


@pytest.mark.timeout(900)
def test_a_standby_that_lagged_is_promoted(servers: FailoverSite, tmp_path: Path, run_once: RunOnce) -> None:
    """The stream has what never happened, and shapes that have not read it go on without it."""
    storage = Storage(servers, tmp_path / "storage", run_once)
    servers.before.psql("CREATE TABLE t (id int PRIMARY KEY)")
    with servers.before.capture() as capture:
        capture.wait_for_log("streaming")
        insert(servers, 1)
        assert needed(storage.once(storage.before)) == {"t": "it is new"}
        insert(servers, 101)
        servers.carry_the_slot_over()
        servers.cut_off()
        insert(servers, 201)
        servers.old.crash()
        servers.new.promote()
        capture.wait_for_log("timeline_switched", timeout=30)
        insert(servers, 301, on_new=True)
        events = storage.once(storage.after)
        assert not needed(events)
        assert any(event["event"] == "manifests_left_out" for event in events)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("has_slot", [True, False])
def test_a_standby_is_promoted_under_a_running_service(
    servers: FailoverSite, tmp_path: Path, run_once: RunOnce, has_slot: bool
) -> None:
    """With the slot, the table has what never happened; without it, the stream has a gap."""
    storage = Storage(servers, tmp_path / "storage", run_once)
    servers.before.psql("CREATE TABLE t (id int PRIMARY KEY)")
    with servers.before.capture() as capture:
        capture.wait_for_log("streaming")
        insert(servers, 1)
        with storage.serving() as service:
            service.wait_for_log("snapshot_done", LONG_S)
            insert(servers, 101)
            if has_slot:
                servers.carry_the_slot_over()
            else:
                servers.replicate()
            servers.cut_off()
            insert(servers, 201)
            storage.before.wait_equal("t", ("id",), "SELECT id FROM t", LONG_S, service)
            servers.old.crash()
            servers.new.promote()
            capture.wait_for_log("timeline_switched" if has_slot else "GAP", timeout=60)
            insert(servers, 301, on_new=True)
            service.wait_for_reason("t", "the database lost", LONG_S)
            storage.after.wait_equal("t", ("id",), "SELECT id FROM t", LONG_S, service)
            insert(servers, 401, on_new=True)
            storage.after.wait_equal("t", ("id",), "SELECT id FROM t", LONG_S, service)
            storage.after.assert_verified(LONG_S)
