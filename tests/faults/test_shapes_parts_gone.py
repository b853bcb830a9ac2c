"""Something is taken from under the service: a segment of its log, its Java."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesProcess, ShapesSite

LONG = 120.0
COLUMNS = ("id", "v")
QUERY = "SELECT id, v FROM items"


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql("CREATE TABLE items (id int PRIMARY KEY, v text); INSERT INTO items VALUES (1, 'a')")
    site.write_file('name = "items"\ntable = "public.items"\nflush_interval_ms = 6000')
    return site


def segments(log: Path) -> dict[Path, int]:
    """The files of the log, with their sizes."""
    found = {}
    for path in log.glob("*/*.arrow*"):
        with suppress(FileNotFoundError):  # trimmed just now
            found[path] = path.stat().st_size
    return found


def java_of(service: ShapesProcess) -> int:
    """The Java that the service started."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == service.pid and (process / "exe").readlink().name == "java":
                    return int(process.name)
            except (FileNotFoundError, ProcessLookupError):
                continue
    raise AssertionError("the service has no Java")


@pytest.mark.timeout(600)
def test_what_is_taken_is_noticed(site: ShapesSite, run_once: RunOnce) -> None:
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG)
        # The first change is flushed at once, and the next one waits in the log for the interval.
        site.sql("INSERT INTO items VALUES (2, 'b')")
        site.wait_equal("items", COLUMNS, QUERY, LONG, service)
        log = site.directory / "lake" / "_penstock" / "log"
        before = segments(log)
        site.sql("INSERT INTO items VALUES (3, 'c')")
        site.wait_until(lambda: bool(segments(log).items() - before.items()), LONG, service)
        for segment in segments(log):
            segment.unlink(missing_ok=True)
        service.wait_for_log("streaming", LONG, count=2)
        site.wait_equal("items", COLUMNS, QUERY, LONG, service)
        assert service.events("SegmentUnreadable"), "that is why"

        os.kill(java_of(service), signal.SIGKILL)
        site.sql("INSERT INTO items VALUES (4, 'd')")
        assert service.wait(LONG) == 4, service.log_text()[-4000:]
        (gone,) = service.events("spark_gone")
        assert "Spark's Java has ended with code -9" in gone["detail"]
    assert (4, "d") not in site.rows("items", COLUMNS)
    site.wait_until_nobody_leads()
    assert run_once(site, STALL_S="60") == 0
    site.assert_equal("items", COLUMNS, QUERY)
