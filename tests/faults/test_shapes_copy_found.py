"""A copy that was complete when the process died is not made once more."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from penstock import fault_points
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesSite


@pytest.mark.timeout(600)
def test_a_copy_that_the_registry_has_not_heard_of_is_found(
    postgres: PrivatePostgres, database: str, tmp_path: Path
) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT g, 0 FROM generate_series(1, 9) g"
    )
    site.write_file('name = "t"\ntable = "public.t"')
    site.once(expect=-signal.SIGKILL, PENSTOCK_FAULT_POINT=fault_points.SNAPSHOT_COMMITTED)
    assert site.version("t") == 0
    site.sql("UPDATE t SET n = 1 WHERE id < 4")

    said = site.once()

    assert [line["shape"] for line in said if line["event"] == "snapshot_found"] == ["t"]
    assert not [line for line in said if line["event"] in ("snapshot_needed", "snapshot_started")]
    site.assert_equal("t", ["id", "n"], "SELECT id, n FROM t")
    assert site.version("t") == 1, "one flush on top of the copy"
