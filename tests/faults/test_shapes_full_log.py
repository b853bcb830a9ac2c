"""The log has reached its bound: everybody waits for the shape that holds it, and the line lives on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.local.postgres import PrivatePostgres
from penstock.lsn import parse_lsn
from tests.servers.capture_site import metric, readiness, wait_until
from tests.servers.shapes_site import ShapesProcess, ShapesSite

LONG = 240.0
MIB = 2**20
TIMEOUT_S = 5
STALL_S = 1
OVERSHOOT_BYTES = MIB // 4
"""What one read brings, what waits to be written, and the rest of a transaction."""
TRANSACTIONS = 44
COLUMNS = ("id", "v")
TABLES = """
    CREATE TABLE held (id int PRIMARY KEY, v text);
    CREATE TABLE free (id int PRIMARY KEY, v text);
    CREATE TABLE unfollowed (v text);
"""
# More than the bound, in transactions of 32 KiB: reading pauses between transactions only.
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
# More than the sockets between server and service can hold, so that the walsender itself has to wait.
FLOOD = "INSERT INTO unfollowed SELECT repeat(md5(g::text), 64) FROM generate_series(1, 16384) g"
SENT = "SELECT sent_lsn::text FROM pg_stat_replication WHERE application_name = 'penstock shapes {}'"


class Standing(NamedTuple):
    """Where everything is that should stand still."""

    sent_lsn: int
    received_lsn: float
    confirmed_lsn: int
    log_bytes: float
    free_rows: int


def standing(site: ShapesSite, service: ShapesProcess) -> Standing:
    ((sent,),) = site.sql(SENT.format(site.slot))
    return Standing(
        parse_lsn(sent),
        metric(service, "penstock_stream_received_lsn"),
        site.confirmed_lsn(),
        metric(service, "penstock_log_bytes"),
        len(site.rows("free", ("id",))),
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_all_wait_for_the_shape_that_holds_a_full_log(
    postgres: PrivatePostgres, database: str, tmp_path: Path
) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql(TABLES)
    site.write_file(
        *(f'name = "{name}"\ntable = "public.{name}"\nflush_interval_ms = 100' for name in ("held", "free"))
    )
    with site.shapes(
        LOG_MAX_BYTES=str(MIB), LEADER_TIMEOUT_S=str(TIMEOUT_S), STALL_S=str(STALL_S)
    ) as service:
        service.wait_for_log("snapshot_done", LONG, count=2)
        away = site.directory / "away"
        os.rename(site.table("held"), away)
        site.sql("INSERT INTO held VALUES (0, 'first')")
        first_held = site.wal_lsn()
        site.sql(WRITE)
        site.sql(FLOOD)

        assert_all_stand_still(site, service, first_held)

        os.rename(away, site.table("held"))
        for shape in ("held", "free"):
            site.wait_equal(shape, COLUMNS, f"SELECT id, v FROM {shape}", LONG, service)
        last = site.wal_lsn()
        site.wait_until(lambda: site.confirmed_lsn() >= last, LONG, service)
        wait_until(lambda: readiness(service)["status"] == 200, "it is ready again", LONG)
        wait_until(lambda: metric(service, "penstock_log_full") == 0, "it reads again", LONG)
        assert len(service.events("streaming")) == 1, "the line was lost"
        assert "Traceback" not in service.log_text()


def assert_all_stand_still(site: ShapesSite, service: ShapesProcess, first_held: int) -> None:
    """For longer than the server leaves a line alone on which it hears nothing."""
    said = complaint(service, 1)
    wait_until(lambda: flushed_all_that_was_read(service), "the other shape is up to date", LONG)
    before = standing(site, service)
    again = complaint(service, len(complaints(service)) + TIMEOUT_S // STALL_S + 2)

    assert standing(site, service) == before
    assert before.sent_lsn < site.wal_lsn()
    assert before.confirmed_lsn < first_held
    assert MIB <= before.log_bytes < MIB + OVERSHOOT_BYTES
    assert MIB <= bytes_on_disk(site) < MIB + OVERSHOOT_BYTES
    assert 0 < before.free_rows < TRANSACTIONS, "it has what was read, and no more"
    assert metric(service, "penstock_log_full") == 1
    assert [said["shape"], again["shape"]] == ["held", "held"]
    answer = readiness(service)
    assert answer["status"] == 503
    assert answer["phase"] == "streaming"
    assert answer["reasons"][0].startswith(
        "shape: the log is full, and shape held holds it. shape held has made no progress for "
    )
    assert str(site.table("held")) in answer["reasons"][0]
    assert len(service.events("streaming")) == 1


def complaints(service: ShapesProcess) -> list[str]:
    return [line["detail"] for line in service.events("shape_stalled") if is_of_the_log(line)]


def complaint(service: ShapesProcess, count: int) -> dict[str, str]:
    return service.wait_for_log("shape_stalled", LONG, count=count, where=is_of_the_log)


def is_of_the_log(line: dict[str, str]) -> bool:
    return line["detail"].startswith("the log is full")


def flushed_all_that_was_read(service: ShapesProcess) -> bool:
    return service.metrics()['penstock_shape_lag_seconds{shape="free"}'] == 0


def bytes_on_disk(site: ShapesSite) -> int:
    log = site.directory / "lake" / "_penstock" / "log"
    return sum(path.stat().st_size for path in log.rglob("*") if path.is_file())
