"""NaN in `numeric(p,s)`, which no decimal holds: snapshot, flush and verify do as the shape says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.lake.comparison import Counts
from penstock.local.postgres import PrivatePostgres
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.definition.shapes_file import load_shapes_file
from penstock.shapes.verify import command as verify_app
from penstock.shapes.verify.command import VerifyRun
from penstock.shapes.verify.report import ShapeResult
from tests.servers.shapes_site import ShapesSite
from tests.spark.conftest import RunOnce, Started

COLUMNS = ["id", "n", "price"]
EXPECTED = "SELECT id, nullif(n, 'NaN'), nullif(price, 'NaN') FROM t"
# wal2json writes domains as strings, NaN too, in any version.
TABLE = """
CREATE DOMAIN price AS numeric(12,2);
CREATE TABLE t (id int PRIMARY KEY, n numeric(9,2), price price NOT NULL);
INSERT INTO t SELECT g, g, g FROM generate_series(1, 9) g;
"""
SHAPE = 'name = "t"\ntable = "public.t"'

Once = Callable[[], int]
Verify = Callable[[], ShapeResult]


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(TABLE)
    site.write_file(SHAPE)
    return site


@pytest.fixture
def once(site: ShapesSite, run_once: RunOnce) -> Once:
    return lambda: run_once(site)


@pytest.fixture
def verify(site: ShapesSite, started: Started, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """`penstock verify` on the Spark that is here, behind a `once`."""
    monkeypatch.setattr(verify_app, "open_session", lambda *_: started.spark)
    monkeypatch.setattr(verify_app, "stop_session", lambda _: None)

    def run() -> ShapeResult:
        settings, file = load_shapes_settings(), load_shapes_file(site.file)
        results = asyncio.run(verify_app.verify(settings, file, VerifyRun("local[2]", {}), lambda _: None))
        return results[0]

    return run


def test_a_snapshot_stops_and_says_how_to_go_on(site: ShapesSite, once: Once) -> None:
    site.sql("UPDATE t SET n = 'NaN' WHERE id = 7")

    with capture_logs() as said:
        assert once() == 1

    failed = next(line for line in said if line["event"] == "snapshot_failed")
    assert failed["shape"] == "t"
    assert "public.t in its snapshot: column n (numeric(9,2)): NaN does not fit" in failed["detail"]
    (query,) = site.sql(failed["detail"].partition("the rows that ")[2].partition(" finds")[0])
    assert query[0] == 7
    site.write_file(f'{SHAPE}\nnumeric_nan = "null"')
    assert once() == 0
    site.assert_equal("t", COLUMNS, EXPECTED)


def test_a_flush_stops_until_the_row_is_changed(site: ShapesSite, once: Once, verify: Verify) -> None:
    assert once() == 0
    site.sql("UPDATE t SET price = 'NaN' WHERE id = 7; UPDATE t SET n = 1 WHERE id = 8")
    with capture_logs() as said:
        assert once() == 1
    failed = next(line for line in said if line["event"] == "flush_failed")
    assert "column price (public.price): NaN does not fit the lake's decimal(12,2)" in failed["detail"]
    assert [line["shape"] for line in said if line["event"] == "snapshot_needed"] == ["t"]

    site.sql("UPDATE t SET price = 7 WHERE id = 7")

    assert once() == 0
    site.assert_equal("t", COLUMNS, EXPECTED)
    assert verify().problem is None
    # wal2json before 2.6 says null here, and COPY doesn't.
    site.sql("UPDATE t SET n = 'NaN' WHERE id = 7")
    assert "SELECT * FROM public.t WHERE \"n\" = 'NaN'" in str(verify().problem)


def test_null_stands_for_it_if_the_shape_says_so(site: ShapesSite, once: Once, verify: Verify) -> None:
    site.write_file(f'{SHAPE}\nnumeric_nan = "null"')
    site.sql("UPDATE t SET n = 'NaN' WHERE id = 1; UPDATE t SET price = 'NaN' WHERE id = 2")
    assert once() == 0
    site.assert_equal("t", COLUMNS, EXPECTED)
    snapshot = site.version("t")

    site.sql("UPDATE t SET n = 'NaN', price = 'NaN' WHERE id IN (3, 4); UPDATE t SET n = 5 WHERE id = 1")
    site.sql("ALTER TABLE t ADD later numeric(5,1) DEFAULT 'NaN'; INSERT INTO t VALUES (10, 1, 1, 2)")
    assert once() == 0

    assert site.version("t") > snapshot
    site.assert_equal("t", [*COLUMNS, "later"], EXPECTED.replace(" FROM", ", nullif(later, 'NaN') FROM"))
    found = verify()
    assert (found.counts, found.problem) == (Counts(10, 10, 10), None)
