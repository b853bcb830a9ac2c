"""`penstock capture` as a process to be measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

from penstock.bench.backlog import capture_slot
from penstock.bench.responder import Responder, process_cpu_seconds
from penstock.errors import PenstockError
from penstock.local.ports import free_port
from penstock.local.postgres import PrivatePostgres

_POLL_S: Final = 0.01
_PATIENCE_S: Final = 120.0


class BenchFailed(PenstockError):
    """A measurement could not be made."""


class CaptureRun:
    """Starts capture from a database to a responder, and measures the process from outside."""

    def __init__(self, postgres: PrivatePostgres, database: str, responder_url: str, **settings: str) -> None:
        self._log = tempfile.NamedTemporaryFile(prefix="penstock-bench-", suffix=".log")  # noqa: SIM115
        self._ops_port = free_port()
        self._environ: Mapping[str, str] = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **postgres.env(database),
            "AWS_ENDPOINT_URL_KINESIS": responder_url,
            "AWS_REGION": "local",
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_EC2_METADATA_DISABLED": "true",
            "KINESIS_STREAM": "bench",
            "OPS_PORT": str(self._ops_port),
            "REPLICATION_SLOT": capture_slot(database),
            **settings,
        }

    def __enter__(self) -> Self:
        started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "capture"],
            env=self._environ,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.wait_until(lambda: '"event": "streaming"' in self.log_text(), "streaming")
        self.streaming_at = time.time()
        self.seconds_to_streaming = time.monotonic() - started
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def log_text(self) -> str:
        """What the process has logged."""
        return Path(self._log.name).read_text()

    def wait_until(self, condition: Callable[[], bool], what: str, poll_s: float = _POLL_S) -> None:
        """Wait for a condition; BenchFailed with the log's end if it doesn't come or the process ends."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchFailed(f"capture did not reach '{what}':\n{self.log_text()[-2000:]}")
            time.sleep(poll_s)

    def wait_for_records(self, responder: Responder, records: int) -> None:
        """Wait until the responder has taken this many; it keeps the time, so we ask seldom."""
        self.wait_until(lambda: responder.report()["records"] >= records, f"{records} records", poll_s=0.2)

    def cpu_seconds(self) -> float:
        """CPU time used so far."""
        return process_cpu_seconds(self._process.pid)

    def rss_mb(self) -> float:
        """Resident memory."""
        return self._memory("VmRSS")

    def peak_rss_mb(self) -> float:
        """The highest resident memory so far."""
        return self._memory("VmHWM")

    def core_wait_seconds(self) -> float:
        """How long the main thread, the event loop's, has been ready to run without getting a core."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics, by their full names with labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ops_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def _memory(self, field: str) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        match = re.search(rf"{field}:\s+(\d+) kB", status)
        if match is None:
            raise BenchFailed(f"no {field} in /proc: has the process ended?")
        return int(match[1]) / 1024
