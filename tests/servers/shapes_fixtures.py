"""A place for shapes; and one Spark for all tests that need one in their own process.

Starting it takes longer than most of them. Imports are inside: whoever runs tests without Spark shouldn't
wait for it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pytest

from penstock.local.postgres import PrivatePostgres
from tests.servers.shapes_site import JAVA_OPTIONS, ShapesSite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.shapes.app import ShapesApp

MASTER = "local[2]"

# Small batches don't pay for many tasks.
SHORT_LIFE = {
    "spark.driver.defaultJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}


class Started(NamedTuple):
    """Spark, and what its start wrote to the terminal."""

    spark: SparkSession
    stderr: bytes


class RunOnce(Protocol):
    """`penstock shapes --once` in this process, on the Spark that is here."""

    def __call__(self, site: ShapesSite, *, stream: str | None = ..., **over: str) -> int:
        """Returns the exit code, or raises what ends the command with 2; `over` are variables.

        `stream`: what stands behind `--from`.
        """


class Serve(Protocol):
    """`penstock shapes` in this process, while a story is told in a thread; stopped when that ends."""

    def __call__(
        self,
        site: ShapesSite,
        story: Callable[[], None],
        *,
        resnapshot: Set[str] = ...,
        stream: str | None = ...,
        **over: str,
    ) -> None:
        """`over` are variables, `stream` is what stands behind `--from`."""


class NewApp(Protocol):
    """The command, ready to run on the Spark that is here."""

    def __call__(
        self,
        site: ShapesSite,
        over: Mapping[str, str],
        *,
        once: bool,
        resnapshot: Set[str] = ...,
        stream: str | None = ...,
    ) -> ShapesApp:
        """`over` are variables, `stream` is what stands behind `--from`."""


@pytest.fixture
def shapes_site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    """A fresh database and an empty directory."""
    return ShapesSite(postgres, database, tmp_path)


@pytest.fixture(scope="session")
def started() -> Iterator[Started]:
    """Spark with our own settings. It is started with file descriptor 2 pointing at a file."""
    from penstock.lake.spark.spark_session import open_session, stop_session

    with tempfile.TemporaryFile() as noise:
        terminal = os.dup(2)
        os.dup2(noise.fileno(), 2)
        try:
            spark = open_session(MASTER, "penstock-tests", SHORT_LIFE)
            spark.range(1).count()
            gateway = spark.sparkContext._gateway
            if "PYTEST_XDIST_WORKER" in os.environ and gateway is not None:
                give_way(gateway.proc.pid)
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
        noise.seek(0)
        yield Started(spark, noise.read())
    stop_session(spark)


def give_way(pid: int) -> None:
    """Let everybody else go first: another worker may have tests that say how long something may take.

    Spark wants all cores at once. What a process starts from now on, threads included, is as nice as it is.
    """
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread that has just ended needs no time.
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(task.name), 10)


@pytest.fixture
def new_app(started: Started, monkeypatch: pytest.MonkeyPatch) -> NewApp:
    """For what a process of its own, with a Java of its own, would prove no better."""
    from penstock.settings.loading import load_shapes_settings
    from penstock.shapes.app import Run, ShapesApp, check_without_spark, stream_address
    from penstock.shapes.definition.shapes_file import load_shapes_file
    from penstock.shapes.progress import LoggedProgress

    def new(
        site: ShapesSite,
        over: Mapping[str, str],
        *,
        once: bool,
        resnapshot: Set[str] = frozenset(),
        stream: str | None = None,
    ) -> ShapesApp:
        variables = {
            **site.postgres.env(site.database),
            "REPLICATION_SLOT": site.slot,
            "STANDBY_RETRY_INTERVAL_S": "0.2",
            "LOG_MIN_FREE_BYTES": "0",
            "STALL_S": "3",
            "OPS_PORT": "0",
            **over,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
            # Where tasks find the database.
            monkeypatch.setitem(started.spark.sparkContext.environment, name, value)
        settings, file = load_shapes_settings(), load_shapes_file(site.file)
        address = None if stream is None else stream_address(stream)
        run = Run(MASTER, {}, once=once, resnapshot=frozenset(resnapshot), stream=address)
        check_without_spark(settings, file, run)
        return ShapesApp(settings, file, run, spark=started.spark, progress=LoggedProgress())

    return new


@contextmanager
def sessions_end(site: ShapesSite) -> Iterator[None]:
    """What a service opens in the block is gone behind it, and so is its lock.

    The server notices the end of a session a moment later. Who comes in between finds that another leads.
    """
    ours = f"SELECT pid FROM pg_stat_activity WHERE application_name = 'penstock shapes {site.slot}'"
    before = site.postgres.psql(ours)
    try:
        yield
    finally:
        if site.postgres.running:
            site.wait_until(lambda: set(site.postgres.psql(ours)) <= set(before))


@pytest.fixture
def run_once(new_app: NewApp) -> RunOnce:
    """See RunOnce."""

    def run(site: ShapesSite, *, stream: str | None = None, **over: str) -> int:
        app = new_app(site, over, once=True, stream=stream)
        with sessions_end(site):
            return asyncio.run(app.run())

    return run


@pytest.fixture
def serve(new_app: NewApp) -> Serve:
    """See Serve."""

    async def live(app: ShapesApp, story: Callable[[], None]) -> None:
        serving = asyncio.create_task(app.run())
        telling = asyncio.create_task(asyncio.to_thread(story))
        try:
            await asyncio.wait([serving, telling], return_when=asyncio.FIRST_COMPLETED)
            assert not serving.done(), "the service has ended"
            await telling
        finally:
            app._cycle.stop.set()
            await serving

    def run(
        site: ShapesSite,
        story: Callable[[], None],
        *,
        resnapshot: Set[str] = frozenset(),
        stream: str | None = None,
        **over: str,
    ) -> None:
        # Whoever tells the story takes time from the loop that it is told about.
        variables = {"LEADER_TIMEOUT_S": "60", **over}
        app = new_app(site, variables, once=False, resnapshot=resnapshot, stream=stream)
        with sessions_end(site):
            asyncio.run(live(app, story))

    return run
