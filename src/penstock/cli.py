"""The commands."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.settings import SettingsError, load_capture_settings

EXIT_BAD_SETTINGS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except SettingsError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return EXIT_BAD_SETTINGS
    except PenstockError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_SETTINGS
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Every committed change of a Postgres database, in Kinesis and in lake tables.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    capture = commands.add_parser(
        "capture", help="carry changes to a Kinesis stream; settings come from the environment"
    )
    capture.set_defaults(run=_capture)
    return parser


def _capture(arguments: argparse.Namespace) -> int:
    # Commands import what they need: `capture` must start without rich, moto or Spark.
    from penstock.capture.app import capture
    from penstock.ops.logs import configure

    settings = load_capture_settings()
    configure(log_format=settings.log.format, level=settings.log.level)
    asyncio.run(capture(settings))
    return 0
