"""`penstock` as processes of the demo: started, asked, killed, ended; always by their own ids."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from http.client import HTTPException
from pathlib import Path
from typing import Final, NamedTuple

from penstock.local.penstock_process import PenstockProcess

_ASK_S: Final = 1.0


class Answers(NamedTuple):
    """What a service says of itself on its ops port."""

    phase: str
    done: int
    """Records accepted by Kinesis, or rows applied to tables."""


class Program(PenstockProcess):
    """One `penstock` command with a name, and its log under that name in `directory`.

    It runs there too, where no `.env` of the developer is found.
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
        super().__init__(
            arguments,
            {"HOME": str(directory), **env},
            directory=directory,
            log=directory / f"{name.replace(' ', '-')}.log",
            output=output,
        )

    @property
    def died(self) -> bool:
        """Whether it ended by itself."""
        return not self.running and not self._told_to_end

    def log_tail(self, lines: int = 15) -> str:
        """The end of its log, under a heading."""
        return f"the log of {self.name} ends with:\n{super().log_tail(lines)}"

    def kill9(self) -> None:
        """End it, and whatever it started, without any warning."""
        self.killed = self._told_to_end = True
        super().kill9()

    def stop(self) -> None:
        """Ask it to drain and end (SIGTERM)."""
        self._told_to_end = True
        super().stop()


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
        """`counter`: how the metrics begin that say how much was done."""
        super().__init__(name, arguments, {**env, "REPLICATION_SLOT": slot}, directory)
        self.slot = slot
        self._counter = counter

    def led_since(self, moment: float) -> float | None:
        """When it began to stream, in seconds since the epoch, if that was after `moment`."""
        times = [datetime.fromisoformat(event["timestamp"]).timestamp() for event in self.events("streaming")]
        return next((time for time in times if time > moment), None)

    def ask(self) -> Answers | None:
        """Its phase from /readyz and its counter from /metrics; None if it is silent."""
        if not self.running:
            return None
        try:
            # An unready process answers 503, and says its phase all the same.
            phase = json.loads(self.get("/readyz", _ASK_S).text)["phase"]
            metrics = self.metrics(_ASK_S)
        except (OSError, HTTPException):
            return None
        return Answers(phase, int(sum(metrics[name] for name in metrics if name.startswith(self._counter))))
