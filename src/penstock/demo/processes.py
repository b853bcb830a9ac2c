"""`penstock capture` as processes of the demo: started, asked, killed, ended; always by their own id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

import penstock

_ASK_S: Final = 1.0
_RECORDS_METRIC: Final = "penstock_sink_records_total "
# A proxy of the developer's must not stand between us and our own children.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Answers(NamedTuple):
    """What a capture says of itself on its ops port."""

    phase: str
    published: int


class Capture:
    """One `penstock capture` with an environment of its own and its log in a file.

    It runs in `directory`, where no `.env` of the developer is found, and in a session of its own, where
    Ctrl-C doesn't reach it.
    """

    def __init__(self, name: str, env: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.killed = False
        self._told_to_end = False
        self._log = directory / f"{name.replace(' ', '-')}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "capture"],
                cwd=directory,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "HOME": str(directory),
                    "PYTHONPATH": str(Path(penstock.__file__).parents[1]),
                    "OPS_PORT": "0",
                    **env,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # A capture waits for its servers for ever: it must not outlive a demo that is killed itself.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _ || kill -9 "$1"', "sh", str(self.pid)],
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
        """Its phase from /readyz and its count of accepted records from /metrics; None if it is silent."""
        started = self.events("started")
        if not started or self.exit_code is not None:
            return None
        try:
            phase = json.loads(_get(f"{started[0]['ops']}/readyz"))["phase"]
            metrics = _get(f"{started[0]['ops']}/metrics").decode().splitlines()
        except (OSError, HTTPException):
            return None
        published = next(line for line in metrics if line.startswith(_RECORDS_METRIC))
        return Answers(phase, int(float(published.removeprefix(_RECORDS_METRIC))))

    def log_tail(self, lines: int = 15) -> str:
        """The end of its log, under a heading."""
        tail = self._log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"the log of {self.name} ends with:", *tail])

    def kill9(self) -> None:
        """End it without any warning."""
        self.killed = self._told_to_end = True
        self._process.kill()
        self._process.wait()

    def terminate(self) -> None:
        """Ask it to drain and end (SIGTERM)."""
        self._told_to_end = True
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Whatever it does, it ends here."""
        self._process.kill()
        self._process.wait()
        self._guard.communicate(b"\n")


def _get(url: str) -> bytes:
    """The body, of an error too: an unready process answers 503 and says why."""
    try:
        with _OPENER.open(url, timeout=_ASK_S) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.read()
