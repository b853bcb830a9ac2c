"""SIGHUP: the shapes file is read again, and the service goes on with what it says now."""

from __future__ import annotations

import os
import signal

import pytest
from deltalake import write_deltalake
from pyarrow import table as arrow_table

from tests.servers.shapes_site import ShapesProcess, ShapesSite, shape_lines

LONG = 240.0
COLUMNS = ("id", "v")
TABLES = "".join(
    f"CREATE TABLE {name} (id int PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, 'old'), (5, 'old');"
    for name in ("stays", "goes", "edited", "comes")
)


def hang_up(service: ShapesProcess) -> None:
    os.kill(service.pid, signal.SIGHUP)


def snapshots(service: ShapesProcess) -> list[str]:
    return sorted(line["shape"] for line in service.events("snapshot_done"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_shapes_come_go_and_are_edited_without_a_restart(shapes_site: ShapesSite) -> None:
    site = shapes_site
    site.sql(TABLES)
    site.write_file(shape_lines("stays"), shape_lines("goes"), shape_lines("edited"))
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG, count=3)
        assert_a_bad_file_changes_nothing(site, service)

        site.write_file(shape_lines("stays"), shape_lines("edited", 'where = "id > 3"'), shape_lines("comes"))
        hang_up(service)
        said = service.wait_for_log("reloaded", LONG, count=2)
        assert (said["added"], said["removed"], said["edited"]) == (["comes"], ["goes"], ["edited"])
        service.wait_for_log("snapshot_done", LONG, count=5)
        site.sql("".join(f"INSERT INTO {name} VALUES (9, 'new');" for name in ("stays", "goes", "comes")))
        for name in ("stays", "comes"):
            site.wait_equal(name, COLUMNS, f"SELECT id, v FROM {name}", LONG, service)
        site.wait_equal("edited", COLUMNS, "SELECT id, v FROM edited WHERE id > 3", LONG, service)
        last = site.wal_lsn()
        site.wait_until(lambda: site.confirmed_lsn() >= last, LONG, service)
        assert site.rows("goes", COLUMNS) == [(1, "old"), (5, "old")], "its table stays as it was"
        assert 'penstock_shape_lag_seconds{shape="goes"}' not in service.metrics()

        site.write_file(shape_lines("stays"), shape_lines("goes"))
        hang_up(service)
        service.wait_for_log("snapshot_done", LONG, count=6)
        site.wait_equal("goes", COLUMNS, "SELECT id, v FROM goes", LONG, service)
        assert snapshots(service) == ["comes", "edited", "edited", "goes", "goes", "stays"]
        assert service.running
        service.stop()
        assert service.wait(LONG) == 0
        assert "Traceback" not in service.log_text()


def assert_a_bad_file_changes_nothing(site: ShapesSite, service: ShapesProcess) -> None:
    good = site.file.read_text()
    write_deltalake(str(site.table("comes")), arrow_table({"id": [1]}))
    for number, (added, trouble) in enumerate(
        {
            "name = ": "shapes.toml",
            shape_lines("nowhere"): "there is no table public.nowhere",
            shape_lines("comes", 'where = "nonsense("'): "where",
            shape_lines("comes"): "was not written by Penstock",
        }.items(),
        1,
    ):
        site.file.write_text(f"{good}\n[[shape]]\n{added}\n")
        hang_up(service)
        said = service.wait_for_log("reload_refused", LONG, count=number)
        assert trouble in said["detail"], said
    os.rename(site.table("comes"), site.directory / "theirs")
    site.file.write_text(good.replace('"public.edited"', '"public.edited"\nwhere = "id > 3"'))
    hang_up(service)
    said = service.wait_for_log("reload_refused", LONG, count=5)
    assert "where needs REPLICA IDENTITY FULL on public.edited" in said["detail"]
    site.sql("ALTER TABLE edited REPLICA IDENTITY FULL")
    site.file.write_text(good)
    hang_up(service)
    assert service.wait_for_log("reloaded", LONG)["added"] == []
    site.sql("INSERT INTO stays VALUES (7, 'meanwhile')")
    site.wait_equal("stays", COLUMNS, "SELECT id, v FROM stays", LONG, service)
    assert len(service.events("streaming")) == 1
