"""What every act of the demo plays on, and how an act fails."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres


class DemoFailed(PenstockError):
    """Something did not happen that should have; with the log of the process that is to blame."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The servers, a directory for logs, and what the command was asked for."""

    postgres: PrivatePostgres
    starting_kinesis: Future[LocalKinesis]
    """It starts while others do: nobody needs it before capture."""
    directory: Path
    seed: int
    seconds: float
    stays: bool = False
    """Whether everything keeps running after the proofs."""

    @property
    def kinesis(self) -> LocalKinesis:
        """Waits until it has started."""
        return self.starting_kinesis.result()
