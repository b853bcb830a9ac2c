"""What people do to tables that no change in the stream tells, or tells under another name."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesSite

LONG = 120.0
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


def shape(name: str) -> str:
    lines = [f'name = "{name}"', f'table = "public.{name}"', "flush_interval_ms = 100"]
    return "\n".join([*lines, 'columns = ["id", "a"]'] if name == "listed" else lines)


@pytest.mark.timeout(600)
def test_nothing_is_lost_by_tricks(postgres: PrivatePostgres, database: str, tmp_path: Path) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(TABLES)
    site.write_file(*map(shape, COLUMNS))
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG, count=len(COLUMNS))
        site.sql(UNLOGGED.format("bulk", "n = 1", "10"))
        site.sql(UNLOGGED.format("texts", "v = 'new'", "'ten'"))
        for trick in (RENAMED, NAME_TAKEN, CAME_AND_WENT, LISTED_RENAMED):
            site.sql(trick)
        site.sql("TRUNCATE emptied; INSERT INTO emptied VALUES (1, 1)")
        site.sql("ALTER TYPE mood RENAME VALUE 'sad' TO 'unhappy'; ALTER TYPE mood ADD VALUE 'so so'")
        site.sql("CREATE TABLE staging AS SELECT 1 AS one, 2 AS two; DROP TABLE staging")

        for name, columns in COLUMNS.items():
            texts = ", ".join(f"{column}::text" if column in ("m", "ms") else column for column in columns)
            site.wait_equal(name, columns, f"SELECT {texts} FROM {name}", LONG, service)
        for name, reason in (
            ("bulk", "public.bulk was rewritten"),
            ("texts", "public.texts was rewritten"),
            ("away", "public.elsewhere is not in the database as it was"),
            ("parts", "public.parts_1 is not in the database as it was"),
            ("migrated", "column"),
            ("moody", "'sad' to 'unhappy'"),
        ):
            service.wait_for_reason(name, reason, LONG)
        site.sql("INSERT INTO emptied VALUES (2, 2)")
        site.wait_equal("emptied", ("id", "n"), "SELECT id, n FROM emptied", LONG, service)
        reasons = [line["reason"] for line in service.events("snapshot_needed") if line["shape"] == "emptied"]
        assert reasons == ["it is new"], "a TRUNCATE is in the stream"
        service.stop()
        assert service.wait(LONG) == 0, service.log_text()[-4000:]
