"""`penstock shapes` as a process to be measured, with the Java that it starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from penstock.bench.capture_run import BenchFailed
from penstock.bench.responder import process_cpu_seconds
from penstock.local.postgres import PrivatePostgres

_POLL_S: Final = 0.005
_PATIENCE_S: Final = 600.0
# Spark doesn't count what Parquet reads in threads of its own.
_COUNTING: Final = (
    "spark.eventLog.enabled=true",
    "spark.eventLog.rolling.enabled=false",
    "spark.eventLog.compress=false",
    "spark.hadoop.parquet.hadoop.vectored.io.enabled=false",
)


class ShapesRun:
    """Starts shapes on a file, and measures the processes and the tables from outside."""

    def __init__(self, postgres: PrivatePostgres, database: str, file: Path) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="penstock-bench-", suffix=".log")  # noqa: SIM115
        self._lake = file.parent / "lake"
        self._command = [sys.executable, "-m", "penstock", "shapes", "--config", str(file)]
        self._command += ["--master", "local[2]"]
        self._task_log = file.parent / "spark-events"
        self._task_log.mkdir()
        for setting in (*_COUNTING, f"spark.eventLog.dir={self._task_log.as_uri()}"):
            self._command += ["--conf", setting]
        self._environ = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ},
            **postgres.env(database),
            "OPS_PORT": "0",
            "LOG_MIN_FREE_BYTES": "0",
            "REPLICATION_SLOT": f"{database}_{file.stem}",
        }

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env=self._environ,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; BenchFailed with the log's end if it doesn't come or the process ends."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchFailed(f"shapes did not reach '{what}':\n{self._log_text()[-2000:]}")
            time.sleep(_POLL_S)

    def wait_for_snapshots(self, count: int) -> None:
        """Wait until this many shapes are copied."""
        self.wait_until(lambda: len(self.events("snapshot_done")) >= count, f"{count} snapshots")

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its structured log lines of one event so far."""
        lines = [line for line in self._log_text().splitlines() if f'"event": "{name}"' in line]
        return [json.loads(line) for line in lines]

    def commits(self, shape: str) -> int:
        """How many commits the shape's table has: a commit is visible when its file is there."""
        return len([name for name in os.listdir(self._lake / shape / "_delta_log") if name.endswith(".json")])

    def table_bytes(self, shape: str) -> int:
        """The size of the data files that the table's directory holds."""
        return sum(path.stat().st_size for path in (self._lake / shape).glob("*.parquet"))

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""
        total = 0.0
        for pid in self._pids():
            with suppress(OSError):  # a worker may end at any time
                total += process_cpu_seconds(pid)
        return total

    def bytes_read(self) -> int:
        """What Spark's tasks have read from files so far, as Spark counts it; whole jobs only."""
        (log,) = self._task_log.iterdir()
        events = (
            json.loads(line) for line in log.read_text().splitlines() if '"SparkListenerTaskEnd"' in line
        )
        return sum(event["Task Metrics"]["Input Metrics"]["Bytes Read"] for event in events)

    def _pids(self) -> list[int]:
        """The process, and all that it has started."""
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                try:
                    stat = Path(f"/proc/{entry}/stat").read_text()
                except OSError:
                    continue
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
        found = [self._process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def _log_text(self) -> str:
        return Path(self._log.name).read_text()
