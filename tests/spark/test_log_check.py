"""A log that Spark's workers can't see: it is said with the fix, and small flushes work all the same.

The directory is named by a file descriptor of this process, so it is there for nobody else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.lake.jobs.log_check import blind_hosts, runs_in_driver
from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import ShapesSite
from tests.spark.conftest import RunOnce, Started


@pytest.fixture
def unseen(tmp_path: Path) -> Iterator[Path]:
    """A directory that only this process sees."""
    real = tmp_path / "log"
    real.mkdir()
    descriptor = os.open(real, os.O_RDONLY)
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def test_workers_are_asked_whether_they_see_the_log(started: Started, tmp_path: Path, unseen: Path) -> None:
    assert blind_hosts(started.spark, tmp_path / "shared") == []
    assert blind_hosts(started.spark, unseen) == [os.uname().nodename]
    assert [*unseen.iterdir(), *(tmp_path / "shared").iterdir()] == []


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", True),
        ("local[2]", True),
        ("local-cluster[1,1,512]", True),
        ("spark://m:7077", False),
        ("yarn", False),
    ],
)
def test_which_masters_need_a_shared_mount(master: str, expected: bool) -> None:
    assert runs_in_driver(master) == expected


def test_a_large_flush_fails_alone_and_small_ones_go_on(
    postgres: PrivatePostgres,
    database: str,
    tmp_path: Path,
    unseen: Path,
    run_once: RunOnce,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = ShapesSite(postgres, database, tmp_path)
    site.sql("CREATE TABLE small (id int PRIMARY KEY, v text); CREATE TABLE large (LIKE small INCLUDING ALL)")
    site.write_file(*(f'name = "{name}"\ntable = "public.{name}"' for name in ("small", "large")))
    monkeypatch.setenv("LOG_DIR", str(unseen))
    assert run_once(site) == 0
    site.sql("INSERT INTO small VALUES (1, 'x')")
    assert run_once(site) == 0
    site.assert_equal("small", ["id", "v"], "SELECT id, v FROM small")
    site.sql("INSERT INTO large SELECT g, repeat(md5(g::text), 32) FROM generate_series(1, 2000) g")

    with capture_logs() as said:
        assert run_once(site) == 1

    failures = [line for line in said if line["event"] == "flush_failed"]
    assert failures
    for line in failures:
        assert line["shape"] == "large"
        assert line["detail"] == (
            f"a Spark executor can't read the log in {unseen}/{site.slot}, which the driver writes. Fix: set"
            " LOG_DIR to a mount that the driver and all executors share; until then only flushes below 1 MiB"
            " work"
        )
    assert sum(line["event"] == "streaming" for line in said) == 1, "the leadership went on"
