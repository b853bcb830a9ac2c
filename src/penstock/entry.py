"""The first lines of the process: it hears signals before it imports anything that takes time.

The kernel has no default reaction to SIGTERM for process 1 of a container: without a handler it is lost.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

from penstock import exit_codes

_SERVICES = ("capture", "shapes")


def main() -> int:
    """Run one command; returns the exit code."""
    signal.signal(signal.SIGTERM, _leave)
    from penstock.cli import main as run

    return run()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Nothing has begun yet: a service that is told to stop then has stopped well."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    is_service = command in _SERVICES
    raise SystemExit(exit_codes.OK if is_service else exit_codes.killed_by(number))
