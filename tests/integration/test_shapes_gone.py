"""A table is dropped under a running service, and comes back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesSite

LONG = 240.0
COLUMNS = ("id", "v")


def shape(name: str) -> str:
    return "\n".join([f'name = "{name}"', f'table = "public.{name}"', "flush_interval_ms = 100"])


@pytest.mark.timeout(900)
def test_a_table_goes_and_comes_back_while_the_others_go_on(
    postgres: PrivatePostgres, database: str, tmp_path: Path
) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    for name in ("lost", "kept"):
        site.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, 'old')")
    site.write_file(shape("lost"), shape("kept"))
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG, count=2)
        site.sql("DROP TABLE lost; INSERT INTO kept VALUES (2, 'new')")
        said = service.wait_for_log("shape_parked", LONG)
        assert said["shape"] == "lost"
        assert said["detail"].startswith("public.lost was dropped or renamed. Fix: ")
        site.wait_equal("kept", COLUMNS, "SELECT id, v FROM kept", LONG, service)

        # Another leadership begins, with its table gone from the start.
        site.write_file(shape("lost"), shape("kept") + "\n")
        os.kill(service.pid, signal.SIGHUP)
        service.wait_for_log("streaming", LONG, count=2)
        assert not service.events("reload_refused")
        site.sql("INSERT INTO kept VALUES (3, 'newer')")
        site.wait_equal("kept", COLUMNS, "SELECT id, v FROM kept", LONG, service)
        last = site.wal_lsn()
        site.wait_until(lambda: site.confirmed_lsn() >= last, LONG, service)
        assert site.awaited_shapes() == ["lost"]
        assert site.rows("lost", COLUMNS) == [(1, "old")], "its table stays as it was"

        site.sql("CREATE TABLE lost (id int PRIMARY KEY, v text); INSERT INTO lost VALUES (7, 'back')")
        service.wait_for_reason("lost", "there is a table public.lost again", LONG)
        site.sql("INSERT INTO lost VALUES (8, 'and on')")
        site.wait_equal("lost", COLUMNS, "SELECT id, v FROM lost", LONG, service)
        assert not service.events("snapshot_failed"), "it was not even tried"
        service.stop()
        assert service.wait(LONG) == 0, service.log_text()[-4000:]
