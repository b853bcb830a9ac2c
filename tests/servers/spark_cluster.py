"""A standalone Spark: a master and workers, each a process with a directory of its own, to be killed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pyspark

from tests.servers.shapes_site import JAVA_OPTIONS

CLUSTER_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "700m",
    "spark.executor.cores": "1",
    "spark.executor.defaultJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
}
"""For applications on it."""
_START_S = 400.0
# The worker and its executors get an empty directory where each of these is.
_HIDE = "for path in {}; do mount -t tmpfs none $path || exit 1; done; exec {}"


class SparkCluster:
    """A master and two workers of one core each.

    Executors inherit the environment of their worker: `env` is where they find servers and credentials. They
    can't see what is in the directories of `hidden`, as if they were on another machine.
    """

    def __init__(self, directory: Path, env: Mapping[str, str], *, hidden: Sequence[Path] = ()) -> None:
        self._directory = directory
        self._env = {
            **os.environ,
            **env,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        }
        self._hidden = hidden
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            places = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self._master = self._launch("master", "org.apache.spark.deploy.master.Master", *places)
            self.url = self._wait_for_log("master", self._master, r"spark://127\.0\.0\.1:\d+")
            for number in (0, 1):
                self._workers.append(self._start_worker(number))
            for number, worker in enumerate(self._workers):
                self._wait_for_log(f"worker-{number}", worker, "Successfully registered with master")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End all of it."""
        for process in (*self._workers, self._master):
            if process is not None:
                _kill(process)

    def tasks_begun(self, worker: int) -> int:
        """How many tasks the executors of a worker have begun."""
        logs = self._work(worker).glob("app-*/*/stderr")
        return sum(log.read_text(errors="replace").count("Running task") for log in logs)

    def kill_worker(self, worker: int) -> None:
        """End a worker and its executors in the middle of whatever they do (SIGKILL)."""
        _kill(self._workers[worker])

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        self._work(number).mkdir()
        places = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        share = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._work(number)))
        name = "org.apache.spark.deploy.worker.Worker"
        return self._launch(f"worker-{number}", name, *places, *share, self.url)

    def _work(self, worker: int) -> Path:
        return self._directory / f"work-{worker}"

    def _launch(self, name: str, of_spark: str, *args: str) -> subprocess.Popen[bytes]:
        command = [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), of_spark, *args]
        if self._hidden and name != "master":
            paths = shlex.join(map(str, self._hidden))
            command = ["unshare", "--mount", "sh", "-c", _HIDE.format(paths, shlex.join(command))]
        with self._log(name).open("wb") as output:
            return subprocess.Popen(
                command, env=self._env, stdout=output, stderr=output, start_new_session=True
            )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _wait_for_log(self, name: str, process: subprocess.Popen[bytes], pattern: str) -> str:
        deadline = time.monotonic() + _START_S
        while (found := re.search(pattern, self._log(name).read_text(errors="replace"))) is None:
            assert process.poll() is None, self._log(name).read_text(errors="replace")
            assert time.monotonic() < deadline, f"{name} doesn't say {pattern!r} within {_START_S} s"
            time.sleep(0.1)
        return found[0]


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Executors are in their worker's group.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
