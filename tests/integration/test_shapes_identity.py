"""A table's replica identity or key is changed under a running shape, while rows change."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from penstock.local.penstock_process import PENSTOCK
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesProcess, ShapesSite

LONG = 120.0

# Incompressible, and longer than a page's share: stored out of line.
TOASTED = "(SELECT string_agg(md5(g::text || i::text), '') FROM generate_series(1, 200) g)"

TABLES = f"""
CREATE TABLE judged (id int PRIMARY KEY, n int, note text);
ALTER TABLE judged REPLICA IDENTITY FULL;
CREATE TABLE silent (id int PRIMARY KEY, n int);
CREATE TABLE moved (id int PRIMARY KEY, k int NOT NULL UNIQUE, n int);
INSERT INTO judged SELECT i, 0, 'keep' || {TOASTED} FROM generate_series(1, 20) i;
INSERT INTO silent SELECT i, 0 FROM generate_series(1, 20) i;
INSERT INTO moved SELECT i, 100 + i, 0 FROM generate_series(1, 20) i;
"""
SHAPES = (
    'name = "judged"\ntable = "public.judged"\nwhere = "note LIKE \'keep%\'"\nflush_interval_ms = 100',
    'name = "silent"\ntable = "public.silent"\nflush_interval_ms = 100',
    'name = "moved"\ntable = "public.moved"\nflush_interval_ms = 100',
)


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(TABLES)
    site.write_file(*SHAPES)
    return site


def status_of(service: ShapesProcess) -> str:
    """What `penstock status` prints of a service that is not ready."""
    service.wait_for_log("shape_stalled", LONG)
    command = [*PENSTOCK, "status", "--url", service.events("started")[0]["ops"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 1, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_an_identity_that_goes_and_comes_back_loses_nothing(site: ShapesSite) -> None:
    with site.shapes(STALL_S="1") as service:
        service.wait_for_log("snapshot_done", LONG, count=3)

        site.sql(
            "ALTER TABLE silent REPLICA IDENTITY NOTHING;"
            "UPDATE silent SET n = 1 WHERE id <= 5; DELETE FROM silent WHERE id > 15;"
            "ALTER TABLE silent REPLICA IDENTITY DEFAULT"
        )
        service.wait_for_reason("silent", "left out changes of public.silent", LONG)
        site.wait_equal("silent", ["id", "n"], "SELECT id, n FROM silent", LONG, service)

        site.sql("ALTER TABLE judged REPLICA IDENTITY DEFAULT; UPDATE judged SET n = 1 WHERE id <= 5")
        # Either the row that can't be judged is met first, or the look at the table.
        fix = "Fix: ALTER TABLE public.judged REPLICA IDENTITY FULL"
        service.wait_until(
            lambda: any(
                fix in line["detail"]
                for event in ("snapshot_failed", "shape_parked")
                for line in service.events(event)
            ),
            "the shape is parked",
            LONG,
        )
        assert "NOT READY" in (said := status_of(service))
        assert "shape judged has made no progress" in said
        assert re.search(r"shape +judged +FAILING, .* behind, .*: .*REPLICA IDENTITY FULL", said)
        assert re.search(r"shape +moved +idle, at \S+, up to date, 20 rows written since it leads", said)
        site.sql("UPDATE silent SET n = 2 WHERE id = 1")
        last = site.wal_lsn()
        site.wait_equal("silent", ["id", "n"], "SELECT id, n FROM silent", LONG, service)
        site.wait_until(lambda: site.confirmed_lsn() >= last, LONG, service)
        site.sql("ALTER TABLE judged REPLICA IDENTITY FULL; UPDATE judged SET n = 2 WHERE id = 20")
        site.wait_equal("judged", ["id", "n", "note"], "SELECT id, n, note FROM judged", LONG, service)

        site.sql("ALTER TABLE moved DROP CONSTRAINT moved_pkey, ADD PRIMARY KEY (k)")
        service.wait_for_reason("moved", "the key of public.moved was (id) and is (k)", LONG)
        site.sql("UPDATE moved SET id = 1, n = 1 WHERE k > 110")
        site.wait_equal("moved", ["id", "k", "n"], "SELECT id, k, n FROM moved", LONG, service)
        last = site.wal_lsn()
        site.wait_until(lambda: site.confirmed_lsn() >= last, LONG, service)
        service.stop()
        assert service.wait(LONG) == 0, service.log_text()[-4000:]
