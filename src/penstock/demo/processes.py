"""`penstock` as processes of the demo: started, asked, killed, ended; always by their own ids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

import penstock

_ASK_S: Final = 1.0
# A proxy of the developer's must not stand between us and our own children.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Answers(NamedTuple):
    """What a service says of itself on its ops port."""

    phase: str
    done: int
    """Records accepted by Kinesis, or rows applied to tables."""


class Program:
    """One `penstock` command with an environment of its own and its log in a file.

    It runs in `directory`, where no `.env` of the developer is found, and in a session of its own, where
    Ctrl-C doesn't reach it. What it starts itself (Java, for Spark) is in its process group and ends with it.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        directory: Path,
        *,
        output: Path | None = None,
    ) -> None:
        """`output`: a file for what it prints, if that is not to be in its log."""
        self.name = name
        self.killed = False
        self._told_to_end = False
        self._log = directory / f"{name.replace(' ', '-')}.log"
        with self._log.open("wb") as log, (output or self._log).open("ab") as printed:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *arguments],
                cwd=directory,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "HOME": str(directory),
                    "PYTHONPATH": str(Path(penstock.__file__).parents[1]),
                    "OPS_PORT": "0",
                    **env,
                },
                stdin=subprocess.DEVNULL,
                stdout=log if output is None else printed,
                stderr=log,
                start_new_session=True,
            )
        # A service waits for its servers for ever: it must not outlive a demo that is killed itself.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _ || kill -9 -- "-$1"', "sh", str(self.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def died(self) -> bool:
        """Whether it ended by itself."""
        return self.exit_code is not None and not self._told_to_end

    def log_tail(self, lines: int = 15) -> str:
        """The end of its log, under a heading."""
        tail = self._log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"the log of {self.name} ends with:", *tail])

    def kill9(self) -> None:
        """End it, and whatever it started, without any warning."""
        self.killed = self._told_to_end = True
        self._kill_group()

    def terminate(self) -> None:
        """Ask it to drain and end (SIGTERM)."""
        self._told_to_end = True
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Whatever it does, it ends here."""
        self._kill_group()
        self._guard.communicate(b"\n")

    def _kill_group(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


class Service(Program):
    """A program that competes for a slot, and answers on its ops port."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        env: Mapping[str, str],
        directory: Path,
        *,
        slot: str,
        counter: str,
    ) -> None:
        """`counter`: the metric that says how much was done."""
        super().__init__(name, arguments, {**env, "REPLICATION_SLOT": slot}, directory)
        self.slot = slot
        self._counter = counter

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its structured log lines of one event so far."""
        lines = self._log.read_bytes().split(b"\n")[:-1]  # what follows the last newline is being written
        parsed = (json.loads(line) for line in lines if line.startswith(b'{"'))
        return [event for event in parsed if event.get("event") == name]

    def led_since(self, moment: float) -> float | None:
        """When it began to stream, in seconds since the epoch, if that was after `moment`."""
        times = [datetime.fromisoformat(event["timestamp"]).timestamp() for event in self.events("streaming")]
        return next((time for time in times if time > moment), None)

    def ask(self) -> Answers | None:
        """Its phase from /readyz and its counter from /metrics; None if it is silent."""
        started = self.events("started")
        if not started or self.exit_code is not None:
            return None
        try:
            phase = json.loads(_get(f"{started[0]['ops']}/readyz"))["phase"]
            metrics = _get(f"{started[0]['ops']}/metrics").decode().splitlines()
        except (OSError, HTTPException):
            return None
        counts = [line.rpartition(" ")[2] for line in metrics if line.startswith(self._counter)]
        return Answers(phase, int(sum(map(float, counts))))


def _get(url: str) -> bytes:
    """The body, of an error too: an unready process answers 503 and says why."""
    try:
        with _OPENER.open(url, timeout=_ASK_S) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.read()
