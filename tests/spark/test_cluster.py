"""A real cluster: a master and two workers; one of them is killed in the middle of its work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import CaptureSite, wait_until
from tests.servers.marked_query import MarkedQuery, insert_pairs
from tests.servers.shapes_site import ShapesProcess, ShapesSite, shape_lines
from tests.servers.spark_cluster import CLUSTER_CONF, SparkCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

ROWS = 150_000


def confs(conf: dict[str, str]) -> list[str]:
    return [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]


def at_rest(cluster: SparkCluster) -> list[int]:
    """How many tasks each worker has begun, when no more are begun."""
    counts: list[list[int]] = []

    def is_quiet() -> bool:
        time.sleep(0.5)
        counts.append([cluster.tasks_begun(worker) for worker in (0, 1)])
        return len(counts) > 4 and counts[-1] == counts[-4]

    wait_until(is_quiet, "the cluster is at rest", 400)
    return counts[-1]


def make_tables(site: ShapesSite) -> None:
    site.sql("CREATE TABLE small (id int PRIMARY KEY)")
    site.sql("CREATE TABLE big (id int PRIMARY KEY, version int, pad text)")
    site.sql(f"INSERT INTO big SELECT i, 0, repeat('x', 100) FROM generate_series(1, {ROWS}) i")
    site.write_file(shape_lines("big"), shape_lines("small"))


@contextmanager
def losing_a_worker_in_mid_flush(
    site: ShapesSite, cluster: SparkCluster, service: ShapesProcess
) -> Iterator[None]:
    """Worker 0 is killed while it is at a flush; more comes, and inside somebody waits for all of it."""
    service.wait_for_log("snapshot_done", 400.0, count=2)
    before = at_rest(cluster)
    assert min(before) > 0, "both have worked"
    # Far more than the driver decodes by itself.
    site.sql("UPDATE big SET version = 1; INSERT INTO small VALUES (1)")
    flushed = site.version("big")
    wait_until(lambda: cluster.tasks_begun(0) > before[0], "worker 0 is at the flush", 400)
    cluster.kill_worker(0)
    assert site.version("big") == flushed, "it was not done by then"
    site.sql("INSERT INTO small VALUES (2); DELETE FROM big WHERE id % 3 = 0")
    yield
    assert cluster.tasks_begun(1) > before[1]
    assert site.version("big") > flushed


def test_shapes_from_postgres_lose_a_worker_in_mid_flush(shapes_site: ShapesSite, tmp_path: Path) -> None:
    """The log and the tables are in a directory that all of them see."""
    site = shapes_site
    make_tables(site)
    (tmp_path / "cluster").mkdir()
    with SparkCluster(tmp_path / "cluster", site.postgres.env(site.database)) as cluster:
        on_cluster = ("--master", cluster.url, *confs(CLUSTER_CONF))
        with site.shapes(*on_cluster) as service:
            with losing_a_worker_in_mid_flush(site, cluster, service):
                goal = site.wal_lsn()
                site.wait_until(lambda: site.confirmed_lsn() >= goal, 600, running=service)
            assert service.events("log_not_shared") == []
            service.stop()
            assert service.wait(400.0) == 0
        site.assert_verified(600.0, *on_cluster)


def test_shapes_from_kinesis_lose_a_worker_in_mid_flush(
    shapes_site: ShapesSite, kinesis: LocalKinesis, stream: str, tmp_path: Path
) -> None:
    """Only the tables are in a directory that all of them see; the driver's own files are hidden."""
    site = shapes_site
    make_tables(site)
    for name in ("cluster", "driver"):
        (tmp_path / name).mkdir()
    driver = tmp_path / "driver"
    captured = CaptureSite(site.postgres, site.database, kinesis, stream, KINESIS_MARKED_STREAM="true")
    env = {**site.postgres.env(site.database), **kinesis.env()}
    own = {**kinesis.env(), "LOG_DIR": str(driver / "log"), "TMPDIR": str(driver), "LEADER_TIMEOUT_S": "30"}
    with (
        SparkCluster(tmp_path / "cluster", env, hidden=[driver]) as cluster,
        captured.capture(LEADER_TIMEOUT_S=30) as capture,
    ):
        capture.wait_for_log("streaming")
        on_cluster = ("--master", cluster.url, *confs({**CLUSTER_CONF, "spark.local.dir": str(driver)}))
        with site.shapes("--from", f"kinesis://{stream}?slot={captured.slot}", *on_cluster, **own) as service:
            with losing_a_worker_in_mid_flush(site, cluster, service):
                wait_until(lambda: len(site.rows("big", ["id"])) == ROWS - ROWS // 3, "all is flushed", 600)
                site.wait_equal("small", ["id"], "SELECT id FROM small", 600, service)
            assert len(service.events("snapshot_needed")) == 2, "at the start"
            service.stop()
            assert service.wait(400.0) == 0
        site.assert_verified(600.0, *on_cluster)


def test_a_marked_stream_is_read_without_a_shared_disk(
    postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str, tmp_path: Path
) -> None:
    """What the driver writes is invisible to the executors, and the other way round."""
    site = CaptureSite(
        postgres, database, kinesis, stream, KINESIS_MARKED_STREAM="true", KINESIS_MARK_INTERVAL_MS=10
    )
    site.psql("CREATE TABLE t (id int PRIMARY KEY, amount int)")
    for name in ("cluster", "driver"):
        (tmp_path / name).mkdir()
    driver = tmp_path / "driver"
    with (
        SparkCluster(tmp_path / "cluster", kinesis.env(), hidden=[driver]) as cluster,
        site.capture() as capture,
    ):
        capture.wait_for_log("streaming")
        query = MarkedQuery(site, driver, master=cluster.url, conf=CLUSTER_CONF)
        insert_pairs(site, 1, 150)
        with query.running("endless") as process:
            wait_until(
                lambda: query.done() >= 2 and min(map(cluster.tasks_begun, (0, 1))) > 0, "both work", 400
            )
            seen = cluster.tasks_begun(0)
            wait_until(lambda: cluster.tasks_begun(0) > seen, "worker 0 has a task", 400)
            cluster.kill_worker(0)
            insert_pairs(site, 150, 200)
            site.wait_until_confirmed(timeout=120)
            wait_until(lambda: query.done() >= 10, "the other worker goes on", 400)
            assert process.poll() is None
        with query.running("available") as process:
            assert process.wait(400) == 0
    query.assert_exact()
