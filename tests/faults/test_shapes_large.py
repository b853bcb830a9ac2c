"""A transaction that is larger than the log may be, and than the service may grow by."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.lake.spark.session_conf import session_conf
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesProcess, ShapesSite

LONG = 600.0
MIB = 2**20
ROWS = 500_000
MOST_GROWTH_BYTES = 500 * 10**6
COLUMNS = ("id", "v")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(session: int) -> int:
    """The resident memory of all processes of a session: Python, Java and its Python workers."""
    return sum(_resident_pages(session)) * PAGE_BYTES


def _resident_pages(session: int) -> Iterator[int]:
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdecimal() or os.getsid(int(process.name)) != session:
                continue
            # Java's child, until it is another program, has Java's own memory: not a second time.
            if not (_is_java(process) and _is_java(_parent(process))):
                yield int((process / "statm").read_text().split()[1])
        except (ProcessLookupError, FileNotFoundError):
            continue


def _is_java(process: Path) -> bool:
    return (process / "exe").readlink().name == "java"


def _parent(process: Path) -> Path:
    return process.with_name((process / "stat").read_text().rpartition(")")[2].split()[1])


class Peak:
    """The highest that was seen."""

    value = 0


@contextmanager
def watching(service: ShapesProcess) -> Iterator[Peak]:
    """The peak of the service's memory, sampled, inside."""
    peak, ending = Peak(), threading.Event()

    def watch() -> None:
        while not ending.wait(0.2):
            peak.value = max(peak.value, resident_bytes(service.pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ending.set()
        thread.join()


@pytest.mark.timeout(1500)
def test_half_a_million_rows_pass_in_bounded_memory_through_a_log_of_a_mebibyte(
    postgres: PrivatePostgres, database: str, tmp_path: Path
) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql("CREATE TABLE big (id int PRIMARY KEY, v text)")
    site.write_file('name = "big"\ntable = "public.big"\nflush_interval_ms = 100')
    # As people run it: other tests' Java is made for short lives.
    product = session_conf("local[2]", "", [])
    confs = [
        word
        for name in ("spark.driver.memory", "spark.driver.defaultJavaOptions")
        for word in ("--conf", f"{name}={product[name]}")
    ]
    with site.shapes(*confs, LOG_MAX_BYTES=str(MIB)) as service:
        service.wait_for_log("snapshot_done", LONG)
        # Large enough for Spark's workers: they are part of the service, whatever it carries.
        insert(site, service, 1, 20_000)
        usual = resident_bytes(service.pid)
        with watching(service) as peak:
            last = insert(site, service, 100_001, 100_000 + ROWS)
        growth = peak.value - usual
        print(f"usual {usual / MIB:.0f} MiB, peak {peak.value / MIB:.0f} MiB")
        insert(site, service, 0, 0)
        site.wait_until(lambda: site.confirmed_lsn() > last, LONG, service)
        site.assert_equal("big", COLUMNS, "SELECT id, v FROM big")
        assert usual < peak.value
        assert growth <= MOST_GROWTH_BYTES, f"it grew by {growth / MIB:.0f} MiB"


def insert(site: ShapesSite, service: ShapesProcess, first: int, last: int) -> int:
    """One transaction, which becomes exactly one version; returns where the server stood after it."""
    before = site.version("big")
    site.sql(f"INSERT INTO big SELECT g, md5(g::text) FROM generate_series({first}, {last}) g")
    lsn = site.wal_lsn()
    site.wait_until(lambda: site.version("big") > before, LONG, service)
    assert site.version("big") == before + 1
    return lsn
