"""The arguments of every command: what can be typed, and what `--help` says. `cli.py` carries them out."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from penstock import exit_codes
from penstock.bench.parts import KINESIS_PARTS, PARTS, parse_parts
from penstock.cli_help import HELP, table
from penstock.completion import SHELLS
from penstock.model.relation import Relation

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


class _Parser(argparse.ArgumentParser):
    """Says in a line what is wrong with an argument, as every error of ours: no page of usage before it."""

    def error(self, message: str) -> NoReturn:
        """See ArgumentParser."""
        self.exit(
            exit_codes.BAD_INPUT, f"{self.prog}: {' '.join(message.split())}. Fix: see {self.prog} --help\n"
        )


def new_parser() -> argparse.ArgumentParser:
    """What was typed has `command`, and behind that `bench` says of what."""
    parser: argparse.ArgumentParser = _Parser(
        prog="penstock",
        description="Every committed change of a Postgres database, in a Kinesis stream and in lake tables.",
        epilog=HELP[""].epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    about = f"penstock {version('penstock')} (Python {platform.python_version()})"
    parser.add_argument("--version", action="version", version=about, help="print the version")
    _add_verbose(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _add_capture(commands)
    _add_shapes(commands)
    _add_verify(commands)
    _add_check(commands)
    _add_status(commands)
    _add_init(commands)
    _add_completion(commands)
    _add_demo(commands)
    _add_bench(commands)
    return parser


def _add_capture(commands: Commands) -> None:
    _add_command(commands, "capture", "carry changes to a Kinesis stream; settings come from the environment")


def _add_shapes(commands: Commands) -> None:
    shapes = _add_command(
        commands,
        "shapes",
        "keep Delta tables equal to Postgres, as a shapes file says; needs penstock[spark]",
    )
    shapes.add_argument("--config", type=Path, required=True, metavar="FILE", help="the shapes file (TOML)")
    shapes.add_argument("--once", action="store_true", help="end when the tables have all that is there now")
    _add_stream(shapes, "read changes from this marked stream, and not from a slot of its own")
    shapes.add_argument(
        "--resnapshot",
        action="append",
        default=[],
        metavar="NAME",
        help="rebuild this shape's table; may be given several times",
    )
    _add_spark(shapes)


def _add_verify(commands: Commands) -> None:
    verify = _add_command(
        commands,
        "verify",
        "compare the tables of a shapes file, or a marked stream, with Postgres; exit 1 if they differ",
    )
    compared = verify.add_mutually_exclusive_group(required=True)
    compared.add_argument("--config", type=Path, metavar="FILE", help="the shapes file (TOML)")
    compared.add_argument(
        "--stream", action="store_true", help="the marked stream of capture's settings (KINESIS_STREAM, …)"
    )
    verify.add_argument("--shape", metavar="NAME", help="only this shape")
    verify.add_argument(
        "--table",
        type=_relation,
        action="append",
        default=[],
        metavar="SCHEMA.TABLE",
        help="with --stream: only this table; may be given several times",
    )
    verify.add_argument(
        "--complete",
        action="store_true",
        help="with --stream: it has all that ever happened to the tables, so rows that it lacks are missing",
    )
    verify.add_argument(
        "--timeout",
        type=_positive_seconds,
        default=60.0,
        metavar="S",
        help="seconds to wait until the service has reached the snapshot (60)",
    )
    verify.add_argument("--show-values", action="store_true", help="print values that differ, not only keys")
    verify.add_argument("--json", action="store_true", help="print the result as a JSON list")
    _add_spark(verify)


def _add_check(commands: Commands) -> None:
    check = _add_command(
        commands,
        "check",
        "say what stands in the way of a capture or, with --config, of shapes, and the fix",
    )
    check.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    check.add_argument(
        "--config", type=Path, metavar="FILE", help="a shapes file: check for `penstock shapes` instead"
    )
    _add_stream(check, "with --config: check for shapes that read changes from this marked stream")
    _add_spark(check)


def _add_status(commands: Commands) -> None:
    status = _add_command(
        commands, "status", "say how a capture or shapes is, running or not; exit 1 if it isn't ready"
    )
    status.add_argument("--url", help="ask this ops port (http://OPS_HOST:OPS_PORT) and nobody else")
    status.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a shapes file: ask no process, but Postgres, the registry and the tables",
    )
    _add_stream(status, "with --config: the shapes read changes from this marked stream")
    status.add_argument("--json", action="store_true", help="print everything, as JSON")
    status.add_argument(
        "--watch",
        type=_positive_seconds,
        nargs="?",
        const=2.0,
        metavar="S",
        help="print it again every S seconds (2) until Ctrl-C",
    )


def _add_init(commands: Commands) -> None:
    init = _add_command(commands, "init", "write .env and shapes.toml from a look at the database")
    init.add_argument(
        "--directory", type=Path, default=Path(), metavar="DIR", help="where to write (here); it must exist"
    )
    init.add_argument("--stream", help="the Kinesis stream that capture will write to (KINESIS_STREAM)")
    init.add_argument("--region", help="its AWS region (AWS_REGION, or that of your AWS profile)")


def _add_completion(commands: Commands) -> None:
    completion = _add_command(commands, "completion", "print a shell's script that completes our arguments")
    completion.add_argument("shell", choices=tuple(SHELLS), help="which shell")


def _add_demo(commands: Commands) -> None:
    demo = _add_command(
        commands, "demo", "watch a shop reach Kinesis and a lake while leaders are killed; then the proofs"
    )
    demo.add_argument(
        "--seconds", type=_demo_seconds, default=25, help="how long the shop is open, 4 to 60 (25)"
    )
    demo.add_argument("--seed", type=int, default=7, help="of the shop's random choices (7)")
    demo.add_argument(
        "--stay", action="store_true", help="keep everything running after the proofs, and say where it is"
    )


def _add_bench(commands: Commands) -> None:
    bench = _add_command(commands, "bench", "measure this machine, side by side with a baseline")
    benches = bench.add_subparsers(required=True, metavar="WHAT", dest="bench")
    _add_bench_capture(benches)
    _add_bench_shapes(benches)
    _add_bench_kinesis(benches)


def _add_bench_capture(benches: Commands) -> None:
    capture = _add_command(benches, "bench capture", "measure throughput, latency and memory of capture")
    capture.add_argument("--changes", type=int, default=300_000, help="size of the backlog")
    capture.add_argument("--rounds", type=int, default=5, help="how often the backlog is measured")
    capture.add_argument(
        "--outage-minutes", type=float, default=10.0, help="length of the sink outage; 0 leaves it out"
    )
    capture.add_argument("--markdown", type=Path, help="also write the table to this file")
    capture.add_argument("--plot", type=Path, help="write memory during the outage to this SVG file")


def _add_bench_shapes(benches: Commands) -> None:
    shapes = _add_command(benches, "bench shapes", "measure flushes, snapshots and latency of shapes", PARTS)
    shapes.add_argument(
        "--only",
        type=_bench_parts,
        default=tuple(PARTS),
        metavar="PART,…",
        help="measure these parts alone (all that are named below)",
    )
    for name, default, what in (
        ("changes", 300_000, "size of the backlog"),
        ("rows", 1_000_000, "size of the table, in `snapshot`, `age`, `verify` and `service`"),
        ("rounds", 3, "how often each pair is measured, after one that doesn't count"),
        ("commits", 10, "one-row transactions to time, in `service`"),
        ("shapes", 100, "how many get a row a second each, in `many`; 0 leaves it out"),
        ("seconds", 180, "for how long they do, and once more beside a parked one"),
    ):
        shapes.add_argument(f"--{name}", type=int, default=default, help=f"{what} ({default:,})")
    shapes.add_argument("--markdown", type=Path, help="also write the table to this file")


def _add_bench_kinesis(benches: Commands) -> None:
    kinesis = _add_command(
        benches,
        "bench kinesis",
        "measure readers of a marked stream, and shapes from it; needs penstock[demo]",
        KINESIS_PARTS,
    )
    kinesis.add_argument(
        "--only",
        type=_bench_kinesis_parts,
        default=tuple(KINESIS_PARTS),
        metavar="PART,…",
        help="measure these parts alone (all that are named below)",
    )
    for name, default, what in (
        ("changes", 300_000, "size of the backlog"),
        ("rounds", 3, "how often each pair is measured, after one that doesn't count"),
        ("commits", 10, "transactions to time, in `batches` and `latency`"),
    ):
        kinesis.add_argument(f"--{name}", type=int, default=default, help=f"{what} ({default:,})")
    kinesis.add_argument("--markdown", type=Path, help="also write the table to this file")


def _add_stream(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--from", dest="stream", metavar="kinesis://STREAM", help=what)


def _add_command(
    commands: Commands, name: str, what: str, parts: Mapping[str, str] | None = None
) -> argparse.ArgumentParser:
    """`name`: all of its words; `parts`: those that it can be asked for by `--only`."""
    epilog = HELP[name].epilog()
    parser = commands.add_parser(
        name.split()[-1],
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=f"{table('parts', list(parts.items()))}\n\n{epilog}" if parts else epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_verbose(parser)
    return parser


def _add_verbose(parser: argparse.ArgumentParser) -> None:
    # Without a default: that of a command would hide what was said before its name.
    parser.add_argument(
        "--verbose", action="store_true", default=argparse.SUPPRESS, help="print the traceback of an error"
    )


def _add_spark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", default="local[*]", help="the Spark master (local[*])")
    parser.add_argument(
        "--conf",
        type=_spark_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting for Spark; may be given several times",
    )


def _spark_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.startswith("spark."):
        raise argparse.ArgumentTypeError(f"{text!r} is not spark.KEY=VALUE")
    return key, value


def _relation(text: str) -> Relation:
    try:
        return Relation.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _bench_parts(text: str, parts: Iterable[str] = PARTS) -> tuple[str, ...]:
    try:
        return parse_parts(text, parts)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bench_kinesis_parts(text: str) -> tuple[str, ...]:
    return _bench_parts(text, KINESIS_PARTS)


def _demo_seconds(text: str) -> int:
    """Long enough for a takeover, short enough for the whole demo to end within two minutes."""
    if not (text.isdecimal() and 4 <= int(text) <= 60):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 4 to 60")
    return int(text)
