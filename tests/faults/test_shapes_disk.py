"""The disk of the shapes' log is full: nothing is confirmed beyond, and room is all that it needs."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path

import pytest

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesProcess, ShapesSite

LONG = 300.0
MOUNT = 'mount -t tmpfs -o size=4m none "$0"'
NAMESPACE = ("unshare", "--map-root-user", "--mount", "sh", "-c")
FILE_LIMIT = 256 * 1024
QUERY = "SELECT id, v FROM items"


class SmallDisk:
    """A file system in a mount namespace of the service's own, so that nothing stays mounted."""

    trouble = "No space left on device"
    fix = "make room there, or put the log on a larger disk"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.before = (*NAMESPACE, f'{MOUNT} && exec "$@"', str(directory))

    def fill(self, service: ShapesProcess) -> None:
        with pytest.raises(OSError, match=self.trouble):
            self._filler(service).write_bytes(bytes(8 * 2**20))

    def make_room(self, service: ShapesProcess) -> None:
        self._filler(service).unlink()

    def _filler(self, service: ShapesProcess) -> Path:
        return Path(f"/proc/{service.pid}/root{self._directory}/filler")


class SmallFiles:
    """Where nothing may be mounted: a limit on the size of files, which the service's Java doesn't have."""

    trouble = "File too large"
    fix = "raise the limit on file sizes (ulimit -f)"
    before = ()

    def fill(self, service: ShapesProcess) -> None:
        self._limit(service, FILE_LIMIT)

    def make_room(self, service: ShapesProcess) -> None:
        self._limit(service, resource.RLIM_INFINITY)

    def _limit(self, service: ShapesProcess, size: int) -> None:
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    directory.mkdir()
    return directory


@pytest.fixture
def disk(log_directory: Path) -> SmallDisk | SmallFiles:
    tried = subprocess.run([*NAMESPACE, MOUNT, log_directory], check=False, capture_output=True)
    return SmallFiles() if tried.returncode else SmallDisk(log_directory)


@pytest.mark.timeout(900)
def test_a_full_disk_stops_everything_until_there_is_room(
    postgres: PrivatePostgres,
    database: str,
    tmp_path: Path,
    log_directory: Path,
    disk: SmallDisk | SmallFiles,
) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql("CREATE TABLE items (id int PRIMARY KEY, v text)")
    site.write_file('name = "items"\ntable = "public.items"\nflush_interval_ms = 100')
    with site.shapes(before=disk.before, LOG_DIR=str(log_directory)) as service:
        service.wait_for_log("snapshot_done", LONG)
        site.sql("INSERT INTO items SELECT g, 'small' FROM generate_series(1, 10) g")
        site.wait_equal("items", ("id", "v"), QUERY, LONG, service)
        version = site.version("items")

        disk.fill(service)
        site.sql("INSERT INTO items SELECT g, repeat(md5(g::text), 30) FROM generate_series(11, 1000) g")
        # Behind its commit; the slot may go up to that.
        written = site.wal_lsn()
        said = service.wait_for_log("ChangeLogBroken", LONG, count=3)
        assert said["detail"].startswith(f"can't write {log_directory}/")
        assert disk.trouble in said["detail"]
        assert said["detail"].endswith(f"; {disk.fix}")
        assert site.confirmed_lsn() < written
        assert site.version("items") == version
        site.wait_until(lambda: disk.trouble in readiness(service), LONG, service)

        disk.make_room(service)
        site.wait_equal("items", ("id", "v"), QUERY, LONG, service)
        site.wait_until(lambda: site.confirmed_lsn() >= written, LONG, service)
        service.stop()
        assert service.wait(LONG) == 0
        assert "Traceback" not in service.log_text()


def readiness(service: ShapesProcess) -> str:
    """Why it isn't ready."""
    answer = service.get("/readyz")
    return "" if answer.status == 200 else " ".join(json.loads(answer.text)["reasons"])
