"""Tables that are dropped while shapes follow them: each costs its own shape, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesSite
from tests.spark.conftest import RunOnce


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    for table in ("kept", "lost"):
        site.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, n int); INSERT INTO {table} VALUES (1, 1)")
    site.write_file(
        'name = "lost"\ntable = "public.lost"\nwhere = "n > 0"', 'name = "kept"\ntable = "public.kept"'
    )
    return site


def test_a_dropped_table_costs_its_shape_alone_and_comes_back(site: ShapesSite, run_once: RunOnce) -> None:
    assert run_once(site) == 0
    site.sql("DROP TABLE lost; INSERT INTO kept VALUES (2, 2)")
    before = site.wal_lsn()

    with capture_logs() as said:
        assert run_once(site) == 1

    site.assert_equal("kept", ["id", "n"], "SELECT id, n FROM kept")
    assert site.awaited_shapes() == ["lost"]
    assert site.confirmed_lsn() >= before, "nobody waits for the shape"
    (parked,) = [line for line in said if line["event"] == "shape_parked"]
    assert parked["log_level"] == "error"
    assert "there is no table public.lost" in parked["detail"]
    (stalled,) = [line for line in said if line["event"] == "stalled"]
    assert "shape lost" in stalled["detail"]

    site.sql("CREATE TABLE lost (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    site.sql("CREATE TABLE lost_0 PARTITION OF lost FOR VALUES FROM (0) TO (9)")
    site.sql("INSERT INTO lost VALUES (7, 7), (8, 0)")
    assert run_once(site) == 0
    assert site.rows("lost", ["id", "n"]) == [(7, 7)]
    assert site.awaited_shapes() == []
