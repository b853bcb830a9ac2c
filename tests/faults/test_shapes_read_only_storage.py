"""The storage becomes read-only while a service runs: nothing is confirmed, nothing ends, and it heals."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import readiness, wait_until
from tests.servers.shapes_site import ShapesProcess, ShapesSite

LONG = 90.0
STALL_S = 1
COLUMNS = ("id", "v")
NAMESPACE = ("unshare", "--map-root-user", "--mount")
INSIDE = ("nsenter", "--user", "--mount", "--preserve-credentials", "--target")
# A mount of its own over the directory: the former one can't become read-only while a file is open there.
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
UNMOUNT = 'umount --lazy "$0"'


class ReadOnlyMount:
    """Read-only in a mount namespace of the service's own; tests see the same files, and may write."""

    trouble = "Read-only file system"
    fix = "mount it writable, or use another storage"
    before = NAMESPACE

    @contextmanager
    def read_only(self, directory: Path, service: ShapesProcess) -> Iterator[None]:
        self._run(service, MOUNT, directory)
        yield
        self._run(service, UNMOUNT, directory)

    def _run(self, service: ShapesProcess, command: str, directory: Path) -> None:
        subprocess.run([*INSIDE, str(service.pid), "sh", "-c", command, directory], check=True)


class NoRightToWrite:
    """Where nothing may be mounted: directories without the right to write, which root has to obey too."""

    trouble = "Permission denied"
    fix = "give this user the right to write there"
    before = () if os.geteuid() else ("setpriv", "--bounding-set=-dac_override")

    @contextmanager
    def read_only(self, directory: Path, service: ShapesProcess) -> Iterator[None]:
        directories = [directory, *(path for path in directory.rglob("*") if path.is_dir())]
        for path in directories:
            path.chmod(0o555)
        try:
            yield
        finally:
            for path in directories:
                path.chmod(0o755)


@pytest.fixture
def storage(tmp_path: Path) -> ReadOnlyMount | NoRightToWrite:
    tried = subprocess.run([*NAMESPACE, "sh", "-c", MOUNT, tmp_path], check=False, capture_output=True)
    return NoRightToWrite() if tried.returncode else ReadOnlyMount()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_storage_that_becomes_read_only_holds_the_slot_until_it_is_writable(
    postgres: PrivatePostgres,
    database: str,
    tmp_path: Path,
    storage: ReadOnlyMount | NoRightToWrite,
) -> None:
    """One life: first the table alone, then the whole storage, where the registry and the log are."""
    site = ShapesSite(postgres, database, tmp_path)
    site.sql("CREATE TABLE items (id int PRIMARY KEY, v text); CREATE TABLE unfollowed (id int)")
    site.write_file('name = "items"\ntable = "public.items"\nflush_interval_ms = 100')
    lake, table = site.directory / "lake", site.table("items")
    with site.shapes(before=storage.before, STALL_S=str(STALL_S)) as service:
        service.wait_for_log("snapshot_done", LONG)
        write_and_wait(site, service, 1)

        with storage.read_only(table, service):
            version, change_lsn = site.version("items"), write(site, 2)
            sentence = f": can't write {table}: {storage.trouble}; {storage.fix}."
            service.wait_for_log("shape_stalled", LONG, where=lambda line: line["detail"].endswith(sentence))
            answer = readiness(service)
            assert (answer["status"], answer["phase"]) == (503, "streaming")
            assert answer["reasons"][0].startswith("shape: shape items has made no progress for ")
            assert answer["reasons"][0].endswith(sentence)
            assert service.metrics()['penstock_shape_failing{shape="items"}'] == 1
            assert site.confirmed_lsn() < change_lsn
            assert site.version("items") == version
        wait_healed(site, service, change_lsn)
        assert len(service.events("streaming")) == 1, "a table's trouble ended the leadership"

        with storage.read_only(lake, service):
            version = site.version("items")
            site.sql("INSERT INTO unfollowed VALUES (1)")
            said = service.wait_for_log("RegistryError", LONG)
            change_lsn, tries = write(site, 3), len(service.events("lock_acquired"))
            service.wait_for_log("lock_acquired", LONG, count=tries + 2)
            assert said["detail"].startswith(
                f"can't write {lake}/_penstock/registry: {storage.trouble}. Fix: "
            )
            assert "make the storage writable" in said["detail"]
            wait_until(lambda: said["detail"] in " ".join(readiness(service)["reasons"]), "it says so", LONG)
            assert site.confirmed_lsn() < change_lsn
            assert site.version("items") == version
        wait_healed(site, service, change_lsn)

        service.stop()
        assert service.wait(LONG) == 0
        assert "Traceback" not in service.log_text()


def write(site: ShapesSite, number: int) -> int:
    """One transaction; returns where the server stood after it."""
    site.sql(f"INSERT INTO items SELECT {1000 * number} + g, 'v' FROM generate_series(1, 100) g")
    return site.wal_lsn()


def write_and_wait(site: ShapesSite, service: ShapesProcess, number: int) -> None:
    wait_healed(site, service, write(site, number))


def wait_healed(site: ShapesSite, service: ShapesProcess, change_lsn: int) -> None:
    """The table is what Postgres holds, the slot has moved past the change, and all is well."""
    site.wait_equal("items", COLUMNS, "SELECT id, v FROM items", LONG, service)
    site.wait_until(lambda: site.confirmed_lsn() >= change_lsn, LONG, service)
    wait_until(lambda: readiness(service)["status"] == 200, "it is ready", LONG)
