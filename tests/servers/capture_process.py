"""`penstock capture` as a process of its own, to be watched, frozen and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import penstock
from penstock.local.ports import free_port

_PENSTOCK = (sys.executable, "-m", "penstock")
_SOURCE = Path(penstock.__file__).parents[1]
_POLL_S = 0.02
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class OpsAnswer(NamedTuple):
    """What the ops port answered."""

    status: int
    text: str


class CaptureProcess:
    """Runs `python -m penstock <args>` with a clean environment: PATH, HOME, our own source, and `env`.

    Standard output and error go to one file; the structured lines in it are `events()`.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        args: Sequence[str] = ("capture",),
        *,
        program: Sequence[str] = _PENSTOCK,
    ) -> None:
        descriptor, name = tempfile.mkstemp(prefix="penstock-capture-", suffix=".log")
        self._log = Path(name)
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.env = {"OPS_PORT": str(free_port()), "PYTHONPATH": str(_SOURCE), **inherited, **env}
        self._process = subprocess.Popen(
            [*program, *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        os.close(descriptor)
        # A capture waits for its servers for ever, so it must not outlive tests that die without closing it.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _ || { kill -9 "$1"; rm "$2"; }', "sh", str(self.pid), self._log],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        if exc_type is not None:
            tail = self.log_text().splitlines()[-60:]
            print(f"--- the log of penstock {self.pid} ends with:", *tail, sep="\n")
        self.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it lives, frozen or not."""
        return self._process.poll() is None

    def log_text(self) -> str:
        """Everything that it has printed."""
        return self._log.read_text(errors="replace")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The structured log lines so far, or those of one event."""
        parsed = [_structured(line) for line in self.log_text().splitlines()]
        return [line for line in parsed if line is not None and name in (None, line["event"])]

    def wait_for_log(
        self,
        event: str,
        timeout: float = 20.0,
        *,
        count: int = 1,
        where: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> dict[str, Any]:
        """Wait until an event was logged `count` times, and give the last of these."""
        deadline = time.monotonic() + timeout
        while True:
            ended = not self.running  # asked first: what it logged before its end is then in the file
            found = [line for line in self.events(event) if where(line)]
            if len(found) >= count:
                return found[count - 1]
            if ended:
                raise AssertionError(f"penstock ended ({self._process.returncode}) before logging {event!r}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{event!r} was logged {len(found)} times in {timeout} s, not {count}")
            time.sleep(_POLL_S)

    def kill9(self) -> None:
        """End it without any warning."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end (SIGTERM); `wait()` for it."""
        self._process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def cont(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for its end, and give its exit code."""
        return self._process.wait(timeout)

    def rss_bytes(self) -> int:
        """Its resident memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """The processor time that it has used, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def get(self, path: str, timeout: float = 5.0) -> OpsAnswer:
        """Ask its ops port; an error status is an answer too."""
        try:
            with _DIRECT.open(f"http://127.0.0.1:{self.env['OPS_PORT']}{path}", timeout=timeout) as answer:
                return OpsAnswer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                return OpsAnswer(refused.code, refused.read().decode())

    def close(self) -> None:
        """End it if need be, and delete its log."""
        if self.running:
            self.kill9()
        self._guard.communicate(b"\n")
        self._log.unlink()


def _structured(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) and "event" in parsed else None
