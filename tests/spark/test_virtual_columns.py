"""Columns of PostgreSQL 18 that a change doesn't have. Long: the server has to be fetched first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.local.postgres import PrivatePostgres
from tests.servers.newer_postgres import newer_postgres
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesSite, shape_lines

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(programs=newer_postgres(18)) as server:
        yield server


def test_a_virtual_column_is_in_no_table_and_costs_no_copy(
    server: PrivatePostgres, tmp_path: Path, run_once: RunOnce
) -> None:
    """Issue 9, point 5: the stream would have null for it, and COPY a value."""
    site = ShapesSite(server, server.create_database(), tmp_path)
    site.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (a * 2) VIRTUAL,"
        " s int GENERATED ALWAYS AS (a * 3) STORED);"
        "INSERT INTO t SELECT g, g FROM generate_series(1, 100) g"
    )
    site.write_file(shape_lines("t"))
    assert run_once(site) == 0

    site.sql(
        "UPDATE t SET a = a + 1 WHERE id <= 10; DELETE FROM t WHERE id = 50; INSERT INTO t VALUES (200, 7)"
    )
    assert run_once(site) == 0
    site.sql("ALTER TABLE t ADD COLUMN w int GENERATED ALWAYS AS (a + 100) VIRTUAL, DROP COLUMN v")
    site.sql("UPDATE t SET a = 0 WHERE id = 1")
    assert run_once(site) == 0

    table = DeltaTable(str(site.table("t")))
    assert [field.name for field in table.schema().fields] == ["id", "a", "s"]
    site.wait_equal("t", ("id", "a", "s"), "SELECT id, a, s FROM t", 0.0)
    assert table.version() == 2, "a snapshot, and two flushes"
