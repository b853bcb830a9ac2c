"""Both images, built here and run with a read-only root, without root's rights, as process 1. Long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.deploy.images import USER, Builder, Image
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, wait_for_phase, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MB = 1_000_000
CAPTURE_AT_MOST = 260 * MB
SHAPES_AT_MOST = 1_500 * MB
SHAPES = """
storage = "/mnt"
[[shape]]
name = "orders"
table = "public.orders"
"""
# A driver that waits for executors, and an executor that is started as Spark on Kubernetes starts it.
EXECUTOR = """
import os, subprocess
from pathlib import Path
import pyspark
from pyspark.sql import SparkSession

jars = Path(pyspark.__file__).parent / "jars"
place = ["--host", "127.0.0.1", "--port", "7077"]
master = subprocess.Popen(["java", "-cp", f"{jars}/*", "org.apache.spark.deploy.master.Master", *place])
spark = (
    SparkSession.builder.master("spark://127.0.0.1:7077")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.port", "7078")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
given = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": spark.sparkContext.applicationId,
    "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
    "SPARK_EXECUTOR_POD_NAME": "executor-1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_JAVA_OPT_0": "-Dspark.driver.port=7078",
    "SPARK_JAVA_OPT_1": "-Dof.our.own=with spaces",
}
executor = subprocess.Popen(["spark-executor", "executor"], env={**os.environ, **given})
ids = spark.range(10, numPartitions=2).rdd.map(lambda row: row.id).collect()
print("collected", sum(ids), flush=True)
executor.terminate()
executor.wait(30)
master.kill()
os._exit(0)
"""


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    builder = Builder(tmp_path_factory.mktemp("images"))
    yield builder
    builder.close()


@pytest.fixture(scope="module")
def capture_image(builder: Builder) -> Image:
    return builder.build("capture")


@pytest.fixture(scope="module")
def shapes_image(builder: Builder) -> Image:
    return builder.build("shapes")


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    site = CaptureSite(postgres, database, kinesis, stream)
    site.psql("CREATE TABLE orders (id int PRIMARY KEY, status text)")
    return site


@pytest.fixture
def place(tmp_path: Path, postgres: PrivatePostgres) -> Iterator[Path]:
    """What shapes mount: a lake, a log, the shapes file, and the server's socket."""
    for name in ("lake", "log"):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, USER, USER)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "shapes.toml").write_text(SHAPES)
    mode = postgres.directory.stat().st_mode
    postgres.directory.chmod(0o755)
    yield tmp_path
    postgres.directory.chmod(mode)


def _init_pid(process: CaptureProcess) -> int:
    """Process 1 of the container, as we see it from outside."""
    [pid] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


def _zombies(init: int) -> list[str]:
    """Names of the dead that process 1 has not buried."""
    found = []
    for child in Path(f"/proc/{init}/task/{init}/children").read_text().split():
        name, _, rest = Path(f"/proc/{child}/stat").read_text().rpartition(")")
        if rest.split()[0] == "Z":
            found.append(name)
    return found


@pytest.mark.parametrize("target", ["capture", "shapes"])
def test_an_image_says_how_it_is_run(target: str, request: pytest.FixtureRequest) -> None:
    config = request.getfixturevalue(f"{target}_image").config
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"][-1] == "penstock"
    assert config["Cmd"][0] == target
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "python"]
    assert list(config["ExposedPorts"]) == ["8088/tcp"]


def test_captures_image_is_small_and_has_no_java(capture_image: Image) -> None:
    assert capture_image.size_bytes < CAPTURE_AT_MOST
    assert list(capture_image.root.rglob("*.jar")) == []
    assert not (capture_image.root / "usr" / "lib" / "jvm").exists()


def test_shapes_image_is_not_larger_than_it_must_be(shapes_image: Image) -> None:
    assert shapes_image.size_bytes < SHAPES_AT_MOST


def test_the_root_is_read_only_and_the_user_is_not_root(capture_image: Image) -> None:
    script = "import os; print(os.getuid(), os.getpid()); open('/opt/penstock/new', 'w')"
    command = capture_image.command({}, ("-c", script), entrypoint=("python",))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(USER), "1"]
    assert "Read-only file system" in done.stderr


def test_capture_checks_streams_and_ends_as_process_1(capture_image: Image, site: CaptureSite) -> None:
    checked = subprocess.run(
        capture_image.command(site.env(), ("check", "--json")), capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert {finding["level"] for finding in json.loads(checked.stdout)} <= {"ok", "warn"}

    program = capture_image.command(site.env(OPS_PORT=0))
    with CaptureProcess({}, capture_image.config["Cmd"], program=program) as capture:
        wait_for_phase(capture, "streaming", timeout=30)
        site.psql("INSERT INTO orders SELECT id, 'new' FROM generate_series(1, 100) AS id")
        committed = site.wal_end()
        wait_until(lambda: len(site.kinesis.read_all(site.stream)) == 100, "all records are in the stream")
        ops = capture.events("started")[0]["ops"]
        healthcheck = capture_image.command(
            {"OPS_PORT": ops.rpartition(":")[2]}, entrypoint=capture_image.config["Healthcheck"]["Test"][1:]
        )
        subprocess.run(healthcheck, check=True, timeout=30)
        # From outside of its namespace: only a handler makes process 1 hear it.
        os.kill(_init_pid(capture), signal.SIGTERM)
        assert capture.wait(15) == 0
        site.wait_until_confirmed(committed)


def test_an_executor_of_kubernetes_works_for_its_driver(shapes_image: Image) -> None:
    command = shapes_image.command({}, ("-c", EXECUTOR), entrypoint=("python",), network=False)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert "collected 45" in done.stdout, done.stdout + done.stderr


def test_shapes_check_and_copy_without_a_network(
    shapes_image: Image, site: CaptureSite, postgres: PrivatePostgres, place: Path
) -> None:
    site.psql("INSERT INTO orders SELECT id, 'new' FROM generate_series(1, 1000) AS id")
    env = {**postgres.env(site.database), "PGHOST": "/run", "LOG_DIR": "/srv", "REPLICATION_SLOT": site.slot}
    mounts = {
        place / "lake": "/mnt",
        place / "log": "/srv",
        place / "config": "/media",
        postgres.directory: "/run",
    }
    config = ("--config", "/media/shapes.toml")

    program = shapes_image.command(env, mounts=mounts, network=False)

    checked = subprocess.run([*program, "check", *config], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with CaptureProcess({}, ("shapes", *config), program=program) as shapes:
        table = place / "lake" / "orders"
        wait_until(lambda: list(table.glob("_delta_log/*.json")), "the snapshot is taken", timeout=300)
        site.psql("UPDATE orders SET status = 'sent' WHERE id <= 10")
        sent = [("status", "=", "sent")]

        def has_them() -> bool:
            rows: int = DeltaTable(table).to_pyarrow_table(columns=["id"], filters=sent).num_rows
            return rows == 10

        wait_until(has_them, "the update is in the table", timeout=180)
        assert DeltaTable(table).to_pyarrow_table().num_rows == 1000
        init = _init_pid(shapes)
        assert _zombies(init) == []
        os.kill(init, signal.SIGTERM)
        assert shapes.wait(60) == 0
