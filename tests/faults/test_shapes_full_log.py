"""A shape that fails, or was stopped, while the others go on: slot and log don't wait for it."""

from __future__ import annotations

import os

import pytest

from tests.servers.capture_site import metric, readiness, wait_until
from tests.servers.shapes_site import ShapesProcess, ShapesSite, shape_lines

LONG = 240.0
MIB = 2**20
TIMEOUT_S = 5
STALL_S = 1
TRANSACTIONS = 44
COLUMNS = ("id", "v")
TABLES = """
    CREATE TABLE held (id int PRIMARY KEY, v text);
    CREATE TABLE free (id int PRIMARY KEY, v text);
"""
# More than the bound, in transactions of 32 KiB.
WRITE = f"""
    DO $$ BEGIN
        FOR n IN 1..{TRANSACTIONS} LOOP
            INSERT INTO held SELECT 4 * n + g, repeat(md5(g::text), 256) FROM generate_series(1, 4) g;
            COMMIT;
            INSERT INTO free VALUES (n, 'little');
            COMMIT;
        END LOOP;
    END $$
"""


@pytest.fixture
def site(shapes_site: ShapesSite) -> ShapesSite:
    shapes_site.sql(TABLES)
    shapes_site.write_file(shape_lines("held"), shape_lines("free"))
    return shapes_site


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_shape_that_fails_is_parked_before_it_stops_the_others(site: ShapesSite) -> None:
    """Until then it holds the log: its table counts, and catching up is cheaper than a copy."""
    with site.shapes(
        LOG_MAX_BYTES=str(MIB), LEADER_TIMEOUT_S=str(TIMEOUT_S), STALL_S=str(STALL_S)
    ) as service:
        service.wait_for_log("snapshot_done", LONG, count=2)
        os.rename(site.table("held"), site.directory / "away")
        site.table("held").write_text("neither flushes nor copies can be written here")
        site.sql("INSERT INTO held VALUES (0, 'first')")
        first_held = site.wal_lsn()
        service.wait_for_log("shape_stalled", LONG, where=lambda line: line["shape"] == "held")
        assert site.confirmed_lsn() < first_held
        assert not service.events("shape_parked"), "there is room in the log"
        site.sql(WRITE.replace(f"1..{TRANSACTIONS}", f"1..{TRANSACTIONS // 2}"))

        parked = service.wait_for_log("shape_parked", LONG)
        assert parked["shape"] == "held"
        assert parked["detail"].startswith("the log is half full, and it held it: ")
        assert metric(service, "penstock_log_full") == 0, "nobody had to wait"
        assert_others_go_on(site, service)

        site.table("held").unlink()
        service.wait_for_log("snapshot_done", LONG, count=2, where=lambda line: line["shape"] == "held")
        for shape in ("held", "free"):
            site.wait_equal(shape, COLUMNS, f"SELECT id, v FROM {shape}", LONG, service)
        wait_until(lambda: readiness(service)["status"] == 200, "it is ready again", LONG)
        assert len(service.events("streaming")) == 1, "the line was lost"
        assert "Traceback" not in service.log_text()


def assert_others_go_on(site: ShapesSite, service: ShapesProcess) -> None:
    """With more than the log can hold, once more, while the shape fails."""
    site.sql(WRITE.replace("4 * n + g", "1000 + 4 * n + g").replace("VALUES (n,", "VALUES (1000 + n,"))
    last = site.wal_lsn()
    site.wait_equal("free", COLUMNS, "SELECT id, v FROM free", LONG, service)
    site.wait_until(lambda: site.confirmed_lsn() >= last, LONG, service)
    wait_until(lambda: metric(service, "penstock_log_full") == 0, "it reads", LONG)
    assert metric(service, "penstock_log_bytes") < MIB
    answer = readiness(service)
    assert answer["status"] == 503
    assert any("shape held has made no progress" in reason for reason in answer["reasons"])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_shape_that_is_stopped_costs_the_others_nothing(site: ShapesSite) -> None:
    """In this life and in the next one; it is copied when its table can be followed again."""
    with site.shapes(LOG_MAX_BYTES=str(MIB), STALL_S=str(STALL_S)) as service:
        service.wait_for_log("snapshot_done", LONG, count=2)
        site.sql("ALTER TABLE held DROP CONSTRAINT held_pkey")
        assert service.wait_for_log("shape_parked", LONG)["shape"] == "held"
        assert_others_go_on(site, service)
        assert metric(service, 'penstock_shape_failing{shape="held"}') == 1
        service.kill9()

    site.sql("INSERT INTO held VALUES (1, 'while stopped'); INSERT INTO free VALUES (3000, 'too')")
    site.once(expect=1, STALL_S=str(STALL_S))
    with site.shapes(LOG_MAX_BYTES=str(MIB), STALL_S=str(STALL_S)) as service:
        service.wait_for_log("snapshot_failed", LONG, where=lambda line: line["shape"] == "held")
        site.sql("INSERT INTO held VALUES (2, 'parked'); INSERT INTO free VALUES (3001, 'not parked')")
        last = site.wal_lsn()
        site.wait_until(lambda: site.confirmed_lsn() >= last, LONG, service)
        site.sql("ALTER TABLE held ADD PRIMARY KEY (id)")
        site.sql("INSERT INTO held VALUES (3, 'mended')")
        for shape in ("held", "free"):
            site.wait_equal(shape, COLUMNS, f"SELECT id, v FROM {shape}", LONG, service)
        assert not [line for line in service.events("snapshot_done") if line["shape"] == "free"]
