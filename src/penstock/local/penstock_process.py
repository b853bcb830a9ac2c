"""`penstock` as a child process of tests, demo and bench: started, watched, asked, ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import penstock
from penstock.errors import PenstockError

_Answer = TypeVar("_Answer")

PENSTOCK: Final = (sys.executable, "-m", "penstock")
"""The program, before its arguments."""

_SOURCE: Final = Path(penstock.__file__).parents[1]
_INHERITED: Final = ("PATH", "HOME", "JAVA_HOME", "XDG_CACHE_HOME")
# Its standard input ends when we do, however that comes about. Not every sh takes `kill -9 --`.
_GUARD: Final = 'group=$1; shift; read -r _ || { kill -s KILL -- "-$group"; rm -f -- "$@"; }'
# A proxy of the developer's must not stand between us and our own children.
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ProcessFailed(PenstockError):
    """A process did not do what was waited for; with the end of its log."""


class OpsAnswer(NamedTuple):
    """What the ops port answered."""

    status: int
    text: str


class PenstockProcess:
    """Runs `python -m penstock <arguments>`.

    Its environment is clean: our own source, a few variables that say where programs and caches are, any
    free ops port, and `env`. It is in a session of its own, where Ctrl-C doesn't reach it; what it starts
    itself (Java, for Spark) is in its process group. It waits for its servers for ever, so a guard ends it
    and its group if we are killed.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        program: Sequence[str] = PENSTOCK,
        directory: Path | None = None,
        log: Path | None = None,
        output: Path | None = None,
    ) -> None:
        """`log`: unset, it is in a temporary file. `output`: for what it prints, if not into its log."""
        self._log = log or _temporary_log()
        self._deleted_at_end = [self._log] if log is None else []
        self._ops_url: str | None = None
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        with self._log.open("ab") as errors, (output or self._log).open("ab") as printed:
            self._process = subprocess.Popen(
                [*program, *arguments],
                cwd=directory,
                env={"OPS_PORT": "0", "PYTHONPATH": str(_SOURCE), **inherited, **env},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", str(self.pid), *self._deleted_at_end],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        """Whether it lives, frozen or not."""
        return self.exit_code is None

    def log_text(self) -> str:
        """Everything that it has printed."""
        return self._log.read_text(errors="replace")

    def log_tail(self, lines: int = 15) -> str:
        """The end of that."""
        return "\n".join(self.log_text().splitlines()[-lines:])

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The structured log lines so far, or those of one event."""
        # Somebody may ask every few milliseconds: what can't be the event is not parsed.
        lines = [line for line in self.log_text().split("\n") if name is None or f'"{name}"' in line]
        parsed = [_structured(line) for line in lines]
        return [event for event in parsed if event is not None and name in (None, event["event"])]

    def wait_until(
        self, ask: Callable[[], _Answer | None], what: str, timeout: float, *, poll_s: float = 0.02
    ) -> _Answer:
        """Ask until the answer is true, and give it; ProcessFailed if the process or the time ends first."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self.exit_code  # asked first: what it did before its end is then seen
            if answer := ask():
                return answer
            if ended is not None:
                raise ProcessFailed(f"penstock ended ({ended}) before {what}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ProcessFailed(f"not within {timeout:g} s: {what}:\n{self.log_tail()}")
            time.sleep(poll_s)

    def get(self, path: str, timeout: float = 5.0) -> OpsAnswer:
        """Ask its ops port; an error status is an answer too. OSError if nobody listens there."""
        try:
            with _DIRECT.open(f"{self.ops_url}{path}", timeout=timeout) as answer:
                return OpsAnswer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                return OpsAnswer(refused.code, refused.read().decode())

    def metrics(self, timeout: float = 5.0) -> dict[str, float]:
        """The samples of /metrics, by their full names with labels."""
        lines = self.get("/metrics", timeout).text.splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def rss_bytes(self) -> int:
        """Its resident memory now."""
        return self._memory("VmRSS")

    def peak_rss_bytes(self) -> int:
        """Its highest resident memory so far."""
        return self._memory("VmHWM")

    def cpu_seconds(self) -> float:
        """The processor time that it has used, user and system."""
        return process_cpu_seconds(self.pid)

    def kill9(self) -> None:
        """End it, and whatever it started, without any warning."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Ask it to drain and end (SIGTERM); `wait()` for it."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for its end, and give its exit code."""
        return self._process.wait(timeout)

    def end(self, timeout: float) -> None:
        """Ask it to end, wait for that, and kill what is left after this time."""
        self.stop()
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout)
        self.kill9()

    def close(self) -> None:
        """Whatever it does, it ends here, and so does a temporary log."""
        self.kill9()
        self._guard.communicate(b"\n")
        for path in self._deleted_at_end:
            path.unlink()

    @property
    def ops_url(self) -> str:
        """Where its ops port is. ConnectionRefusedError if it has not said so yet."""
        if self._ops_url is None:
            started = self.events("started")
            if not started:
                raise ConnectionRefusedError("it has not said yet where it listens")
            self._ops_url = str(started[0]["ops"])
        return self._ops_url

    def _memory(self, field: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"{field}:\s+(\d+) kB", status)
        if found is None:
            raise ProcessFailed(f"no {field} of an ended process:\n{self.log_tail()}")
        return int(found[1]) * 1024


def process_cpu_seconds(pid: int, *, ended_children: bool = False) -> float:
    """User and system time of any process; of those of its children that have ended, too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(map(int, fields[11 : 15 if ended_children else 13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _temporary_log() -> Path:
    with tempfile.NamedTemporaryFile(prefix="penstock-", suffix=".log", delete=False) as file:
        return Path(file.name)


def _structured(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        parsed = json.loads(line)
    except ValueError:  # it is being written
        return None
    return parsed if isinstance(parsed, dict) and "event" in parsed else None
