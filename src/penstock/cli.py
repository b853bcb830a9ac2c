"""The commands."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

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
        description="Every committed change of a Postgres database, in a Kinesis stream.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    capture = commands.add_parser(
        "capture", help="carry changes to a Kinesis stream; settings come from the environment"
    )
    capture.set_defaults(run=_capture)

    check = commands.add_parser(
        "check", help="say what stands in the way of a capture with these settings, and the fix"
    )
    check.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    check.set_defaults(run=_check)

    demo = commands.add_parser(
        "demo", help="watch a shop's changes reach a local Kinesis while the leader is killed; then the proof"
    )
    demo.add_argument(
        "--seconds", type=_demo_seconds, default=25, help="how long the shop is open, 4 to 60 (25)"
    )
    demo.add_argument("--seed", type=int, default=7, help="of the shop's random choices (7)")
    demo.set_defaults(run=_demo)

    bench = commands.add_parser("bench", help="measure this machine, side by side with a baseline")
    benches = bench.add_subparsers(required=True, metavar="WHAT")
    bench_capture = benches.add_parser("capture", help="throughput, latency, memory of capture")
    bench_capture.add_argument("--changes", type=int, default=300_000, help="size of the backlog")
    bench_capture.add_argument("--rounds", type=int, default=3, help="how often the backlog is measured")
    bench_capture.add_argument(
        "--outage-minutes", type=float, default=10.0, help="length of the sink outage; 0 leaves it out"
    )
    bench_capture.add_argument("--markdown", type=Path, help="also write the table to this file")
    bench_capture.add_argument("--plot", type=Path, help="write memory during the outage to this SVG file")
    bench_capture.set_defaults(run=_bench_capture)
    return parser


def _bench_capture(arguments: argparse.Namespace) -> int:
    from penstock.bench.app import bench_capture

    return bench_capture(
        changes=arguments.changes,
        rounds=arguments.rounds,
        outage_minutes=arguments.outage_minutes,
        markdown=arguments.markdown,
        plot=arguments.plot,
    )


def _demo_seconds(text: str) -> int:
    """Long enough for a takeover, short enough for the whole demo to end within two minutes."""
    if not (text.isdecimal() and 4 <= int(text) <= 60):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 4 to 60")
    return int(text)


def _demo(arguments: argparse.Namespace) -> int:
    from penstock.demo.app import demo

    return demo(seconds=arguments.seconds, seed=arguments.seed)


def _capture(arguments: argparse.Namespace) -> int:
    # Commands import what they need: `capture` must start without rich, moto or Spark.
    from penstock.capture.app import capture
    from penstock.ops.logs import configure

    settings = load_capture_settings()
    configure(log_format=settings.log.format, level=settings.log.level)
    asyncio.run(capture(settings))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from penstock.check import check

    return check(load_capture_settings(), json=arguments.json)
