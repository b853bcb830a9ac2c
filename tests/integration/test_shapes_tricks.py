"""What people do to tables that no change in the stream tells, or tells under another name."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesProcess, ShapesSite, shape_lines
from tests.servers.slots import SlotWatch

LONG = 240.0
TABLES = """
CREATE TABLE bulk (id int PRIMARY KEY, n int);
CREATE TABLE texts (id int PRIMARY KEY, v text);
CREATE TABLE away (id int PRIMARY KEY, v text);
CREATE TABLE migrated (id int PRIMARY KEY, v text);
CREATE TABLE listed (id int PRIMARY KEY, a text, b text);
CREATE TABLE parts (id int, r int, v text, PRIMARY KEY (id, r)) PARTITION BY RANGE (r);
CREATE TABLE emptied (id int PRIMARY KEY, n int);
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN moods AS mood[];
CREATE TABLE moody (id int PRIMARY KEY, m mood, ms moods);
INSERT INTO moody SELECT g, 'sad', '{sad,glad}' FROM generate_series(1, 9) g;
INSERT INTO bulk SELECT g, 0 FROM generate_series(1, 9) g;
INSERT INTO texts SELECT g, 'old' FROM generate_series(1, 9) g;
INSERT INTO away SELECT g, 'old' FROM generate_series(1, 9) g;
INSERT INTO migrated SELECT g, 'old' FROM generate_series(1, 9) g;
INSERT INTO listed SELECT g, 'old', 'old' FROM generate_series(1, 9) g;
INSERT INTO emptied SELECT g, 0 FROM generate_series(1, 9) g;
"""
COLUMNS = {
    "bulk": ("id", "n"),
    "texts": ("id", "v"),
    "away": ("id", "v"),
    "migrated": ("id", "v"),
    "listed": ("id", "a"),
    "parts": ("id", "r", "v"),
    "emptied": ("id", "n"),
    "moody": ("id", "m", "ms"),
}
# A load without WAL, and back.
UNLOGGED = """
ALTER TABLE {0} SET UNLOGGED; UPDATE {0} SET {1} WHERE id < 4; INSERT INTO {0} VALUES (10, {2});
ALTER TABLE {0} SET LOGGED
"""
RENAMED = """
BEGIN; ALTER TABLE away RENAME TO elsewhere; UPDATE elsewhere SET v = 'new' WHERE id = 1;
INSERT INTO elsewhere VALUES (10, 'ten'); ALTER TABLE elsewhere RENAME TO away; COMMIT
"""
NAME_TAKEN = """
BEGIN; CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
INSERT INTO parts VALUES (1, 1, 'x'); ALTER TABLE parts_1 RENAME TO parts_old;
CREATE TABLE parts_1 (id int PRIMARY KEY); COMMIT
"""
CAME_AND_WENT = """
BEGIN; ALTER TABLE migrated ADD COLUMN tmp text; UPDATE migrated SET tmp = 'x', v = 'new' WHERE id = 2;
ALTER TABLE migrated DROP COLUMN tmp; COMMIT
"""
LISTED_RENAMED = """
BEGIN; ALTER TABLE listed RENAME a TO z; INSERT INTO listed VALUES (10, 'ten', 'x');
UPDATE listed SET z = 'new' WHERE id = 1; ALTER TABLE listed RENAME z TO a; COMMIT
"""


UNSEEN = """
CREATE TABLE nightly (id int PRIMARY KEY, n int);
CREATE TABLE hourly (id int PRIMARY KEY, n int);
CREATE TABLE months (id int, r int, n int, PRIMARY KEY (id, r)) PARTITION BY RANGE (r);
CREATE TABLE months_0 PARTITION OF months FOR VALUES FROM (0) TO (10);
CREATE TABLE taken (id int, r int, n int, PRIMARY KEY (id, r)) PARTITION BY RANGE (r);
CREATE TABLE taken_0 PARTITION OF taken FOR VALUES FROM (0) TO (10);
CREATE TABLE calm (id int, r int, n int, PRIMARY KEY (id, r)) PARTITION BY RANGE (r);
CREATE TABLE calm_0 PARTITION OF calm FOR VALUES FROM (0) TO (10);
INSERT INTO nightly SELECT g, 0 FROM generate_series(1, 9) g;
INSERT INTO hourly SELECT g, 0 FROM generate_series(1, 9) g;
INSERT INTO months VALUES (1, 1, 0), (2, 2, 0);
INSERT INTO taken VALUES (1, 1, 0), (2, 2, 0);
INSERT INTO calm VALUES (1, 1, 0), (2, 2, 0);
"""
UNSEEN_COLUMNS = {
    "nightly": ("id", "n"),
    "hourly": ("id", "n"),
    "months": ("id", "r", "n"),
    "taken": ("id", "r", "n"),
    "calm": ("id", "r", "n"),
}
TRUNCATE_AND_UNLOGGED = (
    "TRUNCATE nightly",
    "ALTER TABLE nightly SET UNLOGGED",
    "INSERT INTO nightly SELECT g, {0} FROM generate_series(1, 1000) g",
    "ALTER TABLE nightly SET LOGGED",
)
ATTACHED_UNLOGGED = """
BEGIN; CREATE UNLOGGED TABLE months_1 (id int, r int, n int, PRIMARY KEY (id, r));
INSERT INTO months_1 SELECT g, 11, 1 FROM generate_series(1, 1000) g;
ALTER TABLE months_1 SET LOGGED;
ALTER TABLE months ATTACH PARTITION months_1 FOR VALUES FROM (10) TO (20); COMMIT
"""
NAME_TAKEN_BY_ITS_LIKE = """
BEGIN; CREATE TABLE taken_1 PARTITION OF taken FOR VALUES FROM (10) TO (20);
INSERT INTO taken SELECT g, 11, 1 FROM generate_series(1, 1000) g;
ALTER TABLE taken_1 RENAME TO taken_old;
CREATE TABLE taken_1 (id int, r int, n int, PRIMARY KEY (id, r)); COMMIT
"""
A_NEW_MONTH = """
BEGIN; CREATE TABLE calm_1 PARTITION OF calm FOR VALUES FROM (10) TO (20);
INSERT INTO calm SELECT g, 11, 1 FROM generate_series(1, 1000) g; UPDATE calm SET n = 2 WHERE id < 5; COMMIT
"""
ALL_COLUMNS = COLUMNS | UNSEEN_COLUMNS


def shape(name: str) -> str:
    return shape_lines(name, *(['columns = ["id", "a"]'] if name == "listed" else []))


class Tricked(NamedTuple):
    """A service that follows all tables of this file."""

    site: ShapesSite
    service: ShapesProcess

    def needed(self) -> list[tuple[str, str]]:
        """Which shapes were to be snapshotted, and why."""
        return [(line["shape"], line["reason"]) for line in self.service.events("snapshot_needed")]

    def wait_equal(self, tables: Mapping[str, tuple[str, ...]]) -> None:
        """Until these tables are what Postgres holds."""
        for name, columns in tables.items():
            self.site.wait_equal(name, columns, query(name), LONG, self.service)


def query(name: str) -> str:
    columns = ALL_COLUMNS[name]
    texts = ", ".join(f"{column}::text" if column in ("m", "ms") else column for column in columns)
    return f"SELECT {texts} FROM {name}"


@pytest.fixture(scope="module")
def tricked(
    postgres: PrivatePostgres, slot_watch: SlotWatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tricked]:
    """One service for all tests: each plays its tricks on tables of its own."""
    site = ShapesSite(postgres, postgres.create_database(), tmp_path_factory.mktemp("tricked"))
    site.sql(TABLES + UNSEEN)
    site.write_file(*map(shape, ALL_COLUMNS))
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG, count=len(ALL_COLUMNS))
        yield Tricked(site, service)
    slot_watch.drop_all_of(site.database)
    postgres.psql(f'DROP DATABASE "{site.database}" WITH (FORCE)')


@pytest.mark.timeout(600)
def test_nothing_is_lost_by_tricks(tricked: Tricked) -> None:
    site, service = tricked
    site.sql(UNLOGGED.format("bulk", "n = 1", "10"))
    site.sql(UNLOGGED.format("texts", "v = 'new'", "'ten'"))
    for trick in (RENAMED, NAME_TAKEN, CAME_AND_WENT, LISTED_RENAMED):
        site.sql(trick)
    site.sql("TRUNCATE emptied; INSERT INTO emptied VALUES (1, 1)")
    site.sql("ALTER TYPE mood RENAME VALUE 'sad' TO 'unhappy'; ALTER TYPE mood ADD VALUE 'so so'")
    site.sql("CREATE TABLE staging AS SELECT 1 AS one, 2 AS two; DROP TABLE staging")

    tricked.wait_equal(COLUMNS)
    for name, reason in (
        ("bulk", "public.bulk was rewritten"),
        ("texts", "public.texts was rewritten"),
        ("away", "public.away was renamed or detached, and back"),
        ("parts", "public.parts_old is a partition of public.parts, and not all of its rows"),
        ("migrated", "column"),
        ("moody", "'sad' to 'unhappy'"),
    ):
        service.wait_for_reason(name, reason, LONG)
    site.sql("INSERT INTO emptied VALUES (2, 2)")
    site.wait_equal("emptied", ("id", "n"), "SELECT id, n FROM emptied", LONG, service)
    reasons = [reason for name, reason in tricked.needed() if name == "emptied"]
    assert reasons == ["it is new"], "a TRUNCATE is in the stream"


@pytest.mark.timeout(600)
def test_what_never_was_in_the_stream_is_copied_again(tricked: Tricked) -> None:
    """Loads without WAL and rows under another name; what is in the stream costs no snapshot."""
    site, service = tricked
    site.sql("; ".join(["BEGIN", *TRUNCATE_AND_UNLOGGED, "COMMIT"]).format(1))
    site.sql("TRUNCATE hourly; INSERT INTO hourly VALUES (1, 1)")
    for trick in (ATTACHED_UNLOGGED, NAME_TAKEN_BY_ITS_LIKE, A_NEW_MONTH):
        site.sql(trick)
    tricked.wait_equal(UNSEEN_COLUMNS)
    for name, reason in (
        ("nightly", "public.nightly was rewritten"),
        ("months", "public.months_1 is a partition of public.months, and not all of its rows"),
        ("taken", "public.taken_old is a partition of public.taken, and not all of its rows"),
    ):
        service.wait_for_reason(name, reason, LONG)
    while not {"public.calm_1", "public.hourly"} <= {
        line["table"] for line in service.events("rows_compared")
    }:
        time.sleep(0.1)
    needed = tricked.needed()
    assert [reason for name, reason in needed if name in ("calm", "hourly")] == ["it is new"] * 2, needed
    site.sql("CREATE TABLE heir () INHERITS (hourly)")
    service.wait_for_log(
        "shape_stopped",
        LONG,
        where=lambda line: "other tables inherit from public.hourly" in line["detail"],
    )
    site.sql("DROP TABLE heir; INSERT INTO hourly VALUES (3, 3)")
    tricked.wait_equal(UNSEEN_COLUMNS)
    # A stop between a copy's commit and the registry's word of it would mean another copy.
    service.wait_for_log("snapshot_done", LONG, count=2, where=lambda line: line["shape"] == "hourly")


@pytest.mark.timeout(600)
def test_what_never_was_in_the_stream_while_nobody_read_it(tricked: Tricked, run_once: RunOnce) -> None:
    """It ends the service: the last of its tests."""
    site, service = tricked
    service.stop()
    assert service.wait(LONG) == 0, service.log_text()[-4000:]
    site.wait_until_nobody_leads()
    for statement in (*TRUNCATE_AND_UNLOGGED, "TRUNCATE hourly", "INSERT INTO hourly VALUES (2, 2)"):
        site.sql(statement.format(2))
    site.sql(
        A_NEW_MONTH.replace("calm_1", "calm_2").replace("(10) TO (20)", "(20) TO (30)").replace("11", "21")
    )
    with capture_logs() as said:
        assert run_once(site, STALL_S="60") == 0, said
    for name, columns in ALL_COLUMNS.items():
        site.assert_equal(name, columns, query(name))
    needed = [(line["shape"], line["reason"]) for line in said if line["event"] == "snapshot_needed"]
    assert [name for name, _ in needed] == ["nightly"], needed


SHORT_LIVED = """
DO $$ BEGIN FOR n IN 1..20 LOOP
    EXECUTE format('CREATE TABLE short_%s AS SELECT g AS id, 1 AS r, 2 AS n FROM generate_series(1, 3) g', n);
    COMMIT;
    EXECUTE format('DROP TABLE short_%s', n);
    COMMIT;
    EXECUTE format('CREATE TABLE keyed_%s (id int, r int, n int, PRIMARY KEY (id, r))', n);
    EXECUTE format('INSERT INTO keyed_%s VALUES (1, 1, 1), (2, 2, 2)', n);
    COMMIT;
    EXECUTE format('DELETE FROM keyed_%s WHERE id = 1', n);
    COMMIT;
    EXECUTE format('TRUNCATE keyed_%s', n);
    COMMIT;
    EXECUTE format('DROP TABLE keyed_%s', n);
    COMMIT;
    EXECUTE format('CREATE TABLE empty_%s ()', n);
    COMMIT;
    EXECUTE format('TRUNCATE empty_%s', n);
    COMMIT;
    EXECUTE format('DROP TABLE empty_%s', n);
    COMMIT;
END LOOP; END $$
"""


@pytest.mark.timeout(300)
def test_short_lived_tables_hold_nobody_up(postgres: PrivatePostgres, database: str, tmp_path: Path) -> None:
    """Not even those that look like a partition."""
    site = ShapesSite(postgres, database, tmp_path)
    site.sql("CREATE TABLE kept (id int, r int, n int, PRIMARY KEY (id, r)) PARTITION BY RANGE (r)")
    site.sql("CREATE TABLE kept_0 PARTITION OF kept FOR VALUES FROM (0) TO (10)")
    site.write_file(shape("kept"))
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG)
        site.sql(SHORT_LIVED)
        site.sql("INSERT INTO kept VALUES (1, 1, 1)")
        ((end,),) = site.sql("SELECT pg_current_wal_lsn()")
        began = time.monotonic()
        read = f"SELECT write_lsn >= '{end}' FROM pg_stat_replication WHERE application_name LIKE 'penstock%'"
        while not any(row[0] for row in site.sql(read)):
            time.sleep(0.1)
        assert time.monotonic() - began < 10, "the reader has waited for tables that nobody follows"
        site.wait_equal("kept", ("id",), "SELECT id FROM kept", LONG, service)
        assert [line["reason"] for line in service.events("snapshot_needed")] == ["it is new"]
