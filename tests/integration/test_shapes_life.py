"""What happens to shapes in a long life: tables are altered, shapes come and go, slots and servers change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import table as arrow_table

from penstock.errors import PenstockError
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesProcess, ShapesSite, shape_lines
from tests.servers.slots import SlotWatch

LONG = 300.0
LIVES = pytest.mark.timeout(1500)


@pytest.fixture
def site(shapes_site: ShapesSite) -> ShapesSite:
    return shapes_site


def snapshots(process: ShapesProcess, name: str) -> int:
    """How many snapshots of a shape were taken."""
    return sum(line["shape"] == name for line in process.events("snapshot_done"))


def stop(process: ShapesProcess) -> None:
    process.stop()
    assert process.wait(LONG) == 0, process.log_text()[-4000:]


ALTERED = """
CREATE TABLE quiet (id int PRIMARY KEY, v text);
CREATE TABLE busy (id int PRIMARY KEY, kept text, doomed text);
CREATE TABLE prices (id int PRIMARY KEY, amount numeric(10,2));
CREATE TABLE notes (id int PRIMARY KEY, note varchar(20));
CREATE TABLE renamed (id int PRIMARY KEY, old text);
CREATE TABLE widened (id int PRIMARY KEY, n int);
CREATE TABLE parts (id int, r int, v text, PRIMARY KEY (id, r)) PARTITION BY RANGE (r);
CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (10) TO (20);
CREATE TABLE parts_2 (id int, r int, v text, PRIMARY KEY (id, r));
INSERT INTO quiet SELECT g, 'v' || g FROM generate_series(1, 20) g;
INSERT INTO busy SELECT g, 'k' || g, 'd' || g FROM generate_series(1, 20) g;
INSERT INTO prices SELECT g, g FROM generate_series(1, 20) g;
INSERT INTO notes SELECT g, 'n' || g FROM generate_series(1, 20) g;
INSERT INTO renamed SELECT g, 'o' || g FROM generate_series(1, 20) g;
INSERT INTO widened SELECT g, g FROM generate_series(1, 20) g;
INSERT INTO parts SELECT g, g % 20, 'p' || g FROM generate_series(1, 60) g;
INSERT INTO parts_2 SELECT g, 20, 'attached' FROM generate_series(101, 110) g;
"""


class AlteredTables:
    """A running service whose tables are altered, one way after the other."""

    def __init__(self, site: ShapesSite, service: ShapesProcess) -> None:
        self.site = site
        self.service = service

    def equal(self, name: str, *columns: str) -> None:
        def has_columns() -> bool:
            fields = DeltaTable(str(self.site.table(name))).schema().fields
            return {field.name for field in fields}.issuperset(columns)

        self.site.wait_until(has_columns, LONG, self.service)
        query = f"SELECT {', '.join(columns)} FROM {name}"
        self.site.wait_equal(name, columns, query, LONG, self.service)

    def is_snapshotted_by(self, name: str, statements: str, reason: str) -> None:
        before = snapshots(self.service, name)
        self.site.sql(statements)
        self.service.wait_for_reason(name, reason, LONG)
        self.site.wait_until(lambda: snapshots(self.service, name) > before, LONG, self.service)

    def add_columns(self) -> None:
        """On a table that nobody writes to, and on one with changes of before and after in the log."""
        self.site.sql("ALTER TABLE quiet ADD COLUMN extra int NOT NULL DEFAULT 5, ADD COLUMN none text")
        self.equal("quiet", "id", "v", "extra", "none")
        self.hold_back_busy()
        self.site.sql("UPDATE busy SET kept = 'before' WHERE id = 2; INSERT INTO busy VALUES (21, 'a', 'b')")
        self.site.sql("ALTER TABLE busy ADD COLUMN extra text DEFAULT 'it''s {\"new\"}'")
        self.site.sql(
            "UPDATE busy SET kept = 'after' WHERE id = 3; INSERT INTO busy VALUES (22, 'a', 'b', 'c')"
        )
        self.equal("busy", "id", "kept", "doomed", "extra")

    def drop_a_column(self) -> None:
        """Old values stay and new ones are null; the log has changes with the column."""
        self.hold_back_busy()
        self.site.sql("UPDATE busy SET doomed = 'last' WHERE id = 4")
        self.site.sql("ALTER TABLE busy DROP COLUMN doomed")
        self.site.sql("UPDATE busy SET kept = 'later' WHERE id = 5; INSERT INTO busy VALUES (23, 'a', 'c')")
        self.equal("busy", "id", "kept", "extra")
        doomed: dict[int, str | None] = dict(self.site.rows("busy", ["id", "doomed"]))
        assert {key: doomed[key] for key in (2, 4, 5, 22, 23)} == {
            2: "d2",
            4: "last",
            5: "d5",
            22: "b",
            23: None,
        }

    def hold_back_busy(self) -> None:
        """After a flush, what follows waits in the log for the shape's long interval."""
        before = self.site.version("busy")
        self.site.sql("UPDATE busy SET kept = kept || '.' WHERE id = 1")
        self.site.wait_until(lambda: self.site.version("busy") > before, LONG, self.service)

    def change_types(self) -> None:
        before = snapshots(self.service, "notes")
        self.site.sql("UPDATE notes SET note = 'short' WHERE id = 1; ALTER TABLE notes ALTER note TYPE text")
        self.site.sql("UPDATE notes SET note = repeat('long', 20) WHERE id = 2")
        self.equal("notes", "id", "note")
        assert snapshots(self.service, "notes") == before
        self.is_snapshotted_by("widened", "ALTER TABLE widened ALTER n TYPE bigint", "was rewritten")
        self.site.sql("INSERT INTO widened VALUES (21, 9000000000)")
        self.equal("widened", "id", "n")
        before = snapshots(self.service, "prices")
        self.site.sql("ALTER TABLE prices ALTER amount TYPE numeric(12,2)")
        self.site.sql("UPDATE prices SET amount = 9999999999.99 WHERE id = 1")
        self.equal("prices", "id", "amount")
        assert snapshots(self.service, "prices") == before, "no value is another"
        self.is_snapshotted_by(
            "renamed", "ALTER TABLE renamed RENAME old TO new", "'old' of public.renamed was renamed to 'new'"
        )
        self.site.sql("UPDATE renamed SET new = 'newer' WHERE id = 1")
        self.equal("renamed", "id", "new")

    def stop_one_alone(self) -> None:
        """A type that the lake can't follow by itself."""
        self.site.sql("ALTER TABLE prices ALTER amount TYPE numeric")
        self.site.sql("INSERT INTO prices VALUES (21, 1234567890.12)")
        said = self.service.wait_for_log("shape_stopped", LONG)
        assert said["shape"] == "prices"
        assert said["detail"] == (
            "column 'amount' of public.prices was numeric(12,2), decimal(12,2) in the lake, and is"
            " numeric, string in the lake. Fix: stop penstock shapes, and start it with --resnapshot prices"
        )
        self.site.sql("INSERT INTO quiet VALUES (21, 'others go on')")
        self.equal("quiet", "id", "v", "extra")
        assert len(self.site.rows("prices", ["id"])) == 20

    def move_partitions(self) -> None:
        before = snapshots(self.service, "parts")
        self.site.sql("CREATE TABLE parts_3 PARTITION OF parts FOR VALUES FROM (30) TO (40)")
        self.site.sql("INSERT INTO parts VALUES (300, 30, 'new leaf'); UPDATE parts SET r = 31 WHERE id = 5")
        self.equal("parts", "id", "r", "v")
        assert snapshots(self.service, "parts") == before, "a new leaf and rows that move are in the stream"
        attach = "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (20) TO (30)"
        for statements, reason in (
            (attach, "parts_2 was attached"),
            ("TRUNCATE parts_1", "parts_1, a partition of public.parts, was truncated alone"),
        ):
            self.is_snapshotted_by("parts", statements, reason)
            since_lsn = self.site.wal_lsn()
            self.site.sql("UPDATE parts SET v = v || '.' WHERE id % 7 = 0")
            self.equal("parts", "id", "r", "v")
        self.site.wait_until_seen("parts", since_lsn=since_lsn, timeout=LONG)
        before = snapshots(self.service, "parts")
        self.site.sql("ALTER TABLE parts DETACH PARTITION parts_3")
        self.equal("parts", "id", "r", "v")
        assert snapshots(self.service, "parts") == before, "its bounds tell its rows"


@pytest.mark.long
@LIVES
def test_tables_are_altered_under_a_running_service_and_while_it_is_stopped(site: ShapesSite) -> None:
    site.sql(ALTERED)
    names = ("quiet", "prices", "notes", "renamed", "widened", "parts")
    site.write_file(*map(shape_lines, names), shape_lines("busy", interval_ms=4000))
    with site.shapes(STALL_S="2") as service:
        service.wait_for_log("snapshot_done", LONG, count=7)
        altered = AlteredTables(site, service)
        altered.add_columns()
        altered.drop_a_column()
        altered.change_types()
        altered.move_partitions()
        altered.stop_one_alone()
        stop(service)

    site.sql("""
        UPDATE quiet SET v = 'while stopped' WHERE id = 1;
        ALTER TABLE quiet ADD COLUMN late text DEFAULT 'late';
        UPDATE quiet SET v = 'and after' WHERE id = 2;
        ALTER TABLE renamed ADD COLUMN late int DEFAULT 7;
        ALTER TABLE busy DROP COLUMN kept;
        INSERT INTO busy VALUES (24, 'c');
        UPDATE parts SET v = 'moved' WHERE r = 1;
        ALTER TABLE parts DETACH PARTITION parts_0;
        UPDATE prices SET amount = amount + 1;
        ALTER TABLE widened ALTER id TYPE bigint;
    """)
    with site.shapes("--resnapshot", "prices") as service:
        service.wait_for_reason("prices", "--resnapshot asked for it", LONG)
        service.wait_for_reason("parts", "parts_0, a partition of public.parts, was detached", LONG)
        service.wait_for_reason("widened", "public.widened was rewritten", LONG)
        service.wait_for_log("snapshot_done", LONG, count=3)
        altered = AlteredTables(site, service)
        altered.equal("quiet", "id", "v", "extra", "late")
        altered.equal("renamed", "id", "new", "late")
        altered.equal("busy", "id", "extra")
        site.wait_equal("prices", ("id", "amount"), "SELECT id, amount::text FROM prices", LONG, service)
        altered.equal("widened", "id", "n")
        altered.equal("parts", "id", "r", "v")
        assert not any(snapshots(service, name) for name in ("quiet", "renamed", "busy", "notes"))
        kept: dict[int, str | None] = dict(site.rows("busy", ["id", "kept"]))
        assert (kept[3], kept[24]) == ("after", None)


@contextmanager
def load(site: ShapesSite) -> Iterator[None]:
    """Rows of both tables come, change and go until the end."""
    ending = threading.Event()

    def write() -> None:
        with psycopg.connect(site.postgres.conninfo(site.database), autocommit=True) as connection:
            turn = 0
            while not ending.wait(0.01):
                turn += 1
                for table in ("first", "second"):
                    connection.execute(f"INSERT INTO {table} VALUES ({1000 + turn}, 'new')".encode())
                    connection.execute(f"UPDATE {table} SET v = 't{turn}' WHERE id = {turn % 50}".encode())
                    connection.execute(f"DELETE FROM {table} WHERE id = {990 + turn}".encode())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


@pytest.fixture
def held_commits(postgres: PrivatePostgres) -> Iterator[None]:
    """A commit with synchronous_commit = on waits for a standby that never comes; others don't."""
    postgres.set("synchronous_commit", "local")
    postgres.set("synchronous_standby_names", "nobody")
    yield
    postgres.set("synchronous_standby_names", "")
    postgres.set("synchronous_commit", "on")


@contextmanager
def held_back(site: ShapesSite, statement: str) -> Iterator[Callable[[], None]]:
    """The statement's commit is in the stream and not visible, until what this gives is called."""

    def write() -> None:
        conninfo = site.postgres.conninfo(site.database, options="-c synchronous_commit=on")
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(statement.encode())

    def release() -> None:
        site.postgres.set("synchronous_standby_names", "")
        thread.join()

    thread = threading.Thread(target=write)
    thread.start()
    waits = f"SELECT 1 FROM pg_stat_activity WHERE datname = '{site.database}' AND wait_event = 'SyncRep'"
    try:
        site.wait_until(lambda: bool(site.sql(waits)))
        yield release
    finally:
        release()


FIRST = shape_lines("first")
SECOND = shape_lines("second")
EVEN = shape_lines("even", 'where = "id % 2 = 0"', table="first")
ODD = shape_lines("even", 'where = "id % 2 = 1"', table="first")


QUERIES = {
    "first": "SELECT id, v FROM first",
    "second": "SELECT id, v FROM second",
    "even": "SELECT id, v FROM first WHERE id % 2 = 1",
}


def assert_exact(site: ShapesSite, *names: str) -> None:
    for name in names:
        site.assert_equal(name, ("id", "v"), QUERIES[name])


def reasons(events: list[dict[str, Any]]) -> dict[str, str]:
    """Why shapes were snapshotted."""
    return {line["shape"]: line["reason"] for line in events if line["event"] == "snapshot_needed"}


def make_tables(site: ShapesSite) -> None:
    for table in ("first", "second"):
        site.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(20))")
        site.sql(f"INSERT INTO {table} SELECT g, 'v' FROM generate_series(0, 99) g")


@LIVES
@pytest.mark.long
@pytest.mark.usefixtures("held_commits")
def test_shapes_come_and_go_and_so_do_slots_and_servers(site: ShapesSite, slot_watch: SlotWatch) -> None:
    make_tables(site)
    site.write_file(FIRST, EVEN)
    assert reasons(site.once()) == {"first": "it is new", "even": "it is new"}

    site.write_file(FIRST, ODD, SECOND)
    held = "UPDATE second SET v = 'held' WHERE id >= 50"
    with load(site), held_back(site, held) as release, site.shapes() as service:
        service.wait_for_reason("second", "it is new", LONG)
        service.wait_for_reason("even", "its definition was changed", LONG)
        service.wait_for_log("snapshot_waits", LONG)
        site.sql("INSERT INTO first VALUES (-1, 'meanwhile')")
        site.wait_until(lambda: (-1, "meanwhile") in site.rows("first", ("id", "v")), LONG, service)
        assert not service.events("snapshot_started"), "no cut before the held commit is visible"
        release()
        service.wait_for_log("snapshot_done", LONG, count=2)
        slot_watch.drop(site.slot)
        for name in ("first", "even", "second"):
            service.wait_for_reason(name, f"slot {site.slot} is missing", LONG)
        service.wait_for_log("snapshot_done", LONG, count=5)
        stop(service)

    with site.postgres.standby() as standby:
        promote(site, standby)
        site.sql("UPDATE second SET v = 'lost at the failover' WHERE id < 50")
        site.write_file(ODD, SECOND)
        assert reasons(site.once("--resnapshot", "even")) == {"even": "--resnapshot asked for it"}
        assert_exact(site, "even", "second")

        after = ShapesSite(standby, site.database, site.directory)
        after.sql("DELETE FROM first WHERE id < 10; INSERT INTO second VALUES (-5, 'on the new server')")
        after.write_file(FIRST, ODD, SECOND)
        found = reasons(after.once())
        assert found["first"] == "its table is not in the registry"
        assert all(f"slot {site.slot} is missing" in found[name] for name in ("even", "second"))
        assert_exact(after, "first", "even", "second")
        assert (1, "lost at the failover") not in after.rows("second", ("id", "v"))


def promote(site: ShapesSite, standby: PrivatePostgres) -> None:
    """The standby has everything of before, and nothing of what the old primary does from now on."""
    ((lsn,),) = site.sql("SELECT pg_current_wal_flush_lsn()::text")
    caught_up = f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'"
    site.wait_until(lambda: standby.psql(caught_up) == [(True,)])
    standby.promote()


def refusal(site: ShapesSite, run_once: RunOnce) -> str:
    """What ends a run with exit 2: the only line that it prints."""
    with pytest.raises(PenstockError) as refused:
        run_once(site)
    return str(refused.value)


@LIVES
def test_tables_and_storages_of_others_are_refused(site: ShapesSite, run_once: RunOnce) -> None:
    make_tables(site)
    site.write_file(FIRST)
    write_deltalake(str(site.table("first")), arrow_table({"id": [1], "v": ["somebody's"]}))
    assert refusal(site, run_once) == (
        "the table first in the storage was not written by Penstock for this database."
        " Fix: move it away, or choose another name for the shape"
    )
    assert site.rows("first", ("id", "v")) == [(1, "somebody's")]

    site.write_file(SECOND)
    assert run_once(site, STALL_S="60") == 0
    with PrivatePostgres() as another:
        other = ShapesSite(another, another.create_database(), site.directory)
        make_tables(other)
        assert refusal(other, run_once) == (
            f"this storage belongs to the database system {system_id(site)}, and the server is"
            f" {system_id(other)}. Fix: connect to the former, or use another storage"
        )
        assert other.sql("SELECT 1 FROM pg_replication_slots") == []
    assert_exact(site, "second")


def system_id(site: ShapesSite) -> int:
    ((found,),) = site.sql("SELECT system_identifier FROM pg_control_system()")
    return int(found)
