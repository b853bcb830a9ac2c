"""The commands."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from penstock import exit_codes
from penstock.bench.parts import KINESIS_PARTS, PARTS, KinesisSizes, Sizes, parse_parts, wrong_size
from penstock.cli_help import HELP
from penstock.completion import SHELLS, describe
from penstock.errors import PenstockError
from penstock.model.relation import Relation
from penstock.settings.loading import (
    load_capture_settings,
    load_shapes_settings,
    load_slot_settings,
    load_stream_source,
)

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


_SERVICES: Final = ("capture", "shapes")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    verbose = getattr(arguments, "verbose", False)
    try:
        code: int = arguments.run(arguments)
    except PenstockError as error:
        if verbose:
            traceback.print_exception(error)
        print(error, file=sys.stderr)
        return exit_codes.BAD_INPUT
    except KeyboardInterrupt:
        return exit_codes.killed_by(signal.SIGINT)
    except BrokenPipeError:
        # Whoever read what we print has enough. Python would complain about the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.killed_by(signal.SIGPIPE)
    except Exception as error:
        # What ends a service may not happen a second time, for a --verbose that was forgotten.
        if verbose or arguments.command in _SERVICES:
            traceback.print_exception(error)
        print(f"a defect of Penstock: {_one_line(error)}. Fix: report it, with --verbose", file=sys.stderr)
        return exit_codes.DEFECT
    return code


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Every committed change of a Postgres database, in a Kinesis stream and in lake tables.",
        epilog=HELP[""].epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    about = f"penstock {version('penstock')} (Python {platform.python_version()})"
    parser.add_argument("--version", action="version", version=about, help="print the version")
    _add_verbose(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    capture = _add_command(
        commands, "capture", "carry changes to a Kinesis stream; settings come from the environment"
    )
    capture.set_defaults(run=_capture)

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
    shapes.set_defaults(run=_shapes)

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
    verify.set_defaults(run=_verify)

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
    check.set_defaults(run=_check)

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
    status.set_defaults(run=_status)

    init = _add_command(commands, "init", "write .env and shapes.toml from a look at the database")
    init.add_argument(
        "--directory", type=Path, default=Path(), metavar="DIR", help="where to write (here); it must exist"
    )
    init.add_argument("--stream", help="the Kinesis stream that capture will write to (KINESIS_STREAM)")
    init.add_argument("--region", help="its AWS region (AWS_REGION, or that of your AWS profile)")
    init.set_defaults(run=_init)

    completion = _add_command(commands, "completion", "print a shell's script that completes our arguments")
    completion.add_argument("shell", choices=tuple(SHELLS), help="which shell")
    completion.set_defaults(run=_completion)

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
    demo.set_defaults(run=_demo)

    bench = _add_command(commands, "bench", "measure this machine, side by side with a baseline")
    benches = bench.add_subparsers(required=True, metavar="WHAT")
    bench_capture = benches.add_parser("capture", help="throughput, latency, memory of capture")
    bench_capture.add_argument("--changes", type=int, default=300_000, help="size of the backlog")
    bench_capture.add_argument("--rounds", type=int, default=5, help="how often the backlog is measured")
    bench_capture.add_argument(
        "--outage-minutes", type=float, default=10.0, help="length of the sink outage; 0 leaves it out"
    )
    bench_capture.add_argument("--markdown", type=Path, help="also write the table to this file")
    bench_capture.add_argument("--plot", type=Path, help="write memory during the outage to this SVG file")
    bench_capture.set_defaults(run=_bench_capture)
    bench_shapes = benches.add_parser(
        "shapes",
        help="flushes, snapshots and latency of shapes",
        description="Measure shapes, print a table; exit 1 if a target of it was missed.",
        epilog="\n".join(["parts:", *(f"  {part:<10} {what}" for part, what in PARTS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench_shapes.add_argument(
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
        bench_shapes.add_argument(f"--{name}", type=int, default=default, help=f"{what} ({default:,})")
    bench_shapes.add_argument("--markdown", type=Path, help="also write the table to this file")
    bench_shapes.set_defaults(run=_bench_shapes)
    bench_kinesis = benches.add_parser(
        "kinesis",
        help="readers of a marked stream, and shapes from it; needs penstock[demo]",
        description="Measure readers of a marked stream, print a table; exit 1 if a target of it was missed.",
        epilog="\n".join(["parts:", *(f"  {part:<10} {what}" for part, what in KINESIS_PARTS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench_kinesis.add_argument(
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
        bench_kinesis.add_argument(f"--{name}", type=int, default=default, help=f"{what} ({default:,})")
    bench_kinesis.add_argument("--markdown", type=Path, help="also write the table to this file")
    bench_kinesis.set_defaults(run=_bench_kinesis)
    return parser


def _add_stream(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--from", dest="stream", metavar="kinesis://STREAM", help=what)


def _add_command(commands: Commands, name: str, what: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=HELP[name].epilog(),
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


def _shapes(arguments: argparse.Namespace) -> int:
    from penstock.ops.logs import configure
    from penstock.shapes.definition.shapes_file import load_shapes_file

    settings = load_shapes_settings()
    file = load_shapes_file(arguments.config)
    _need_spark()
    from penstock.shapes.app import Run, run_shapes, stream_address
    from penstock.shapes.progress import open_progress

    run = Run(
        arguments.master,
        dict(arguments.conf),
        once=arguments.once,
        resnapshot=frozenset(arguments.resnapshot),
        stream=None if arguments.stream is None else stream_address(arguments.stream),
    )
    with open_progress() as progress:
        # After the screen, which prints what is logged above itself.
        configure(log_format=settings.log.format, level=settings.log.level)
        return run_shapes(settings, file, run, progress)


def _relation(text: str) -> Relation:
    try:
        return Relation.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def _verify(arguments: argparse.Namespace) -> int:
    if arguments.stream:
        return _verify_stream(arguments)
    from penstock.ops.logs import configure
    from penstock.shapes.definition.shapes_file import load_shapes_file

    settings = load_shapes_settings()
    file = load_shapes_file(arguments.config)
    _need_spark()
    from penstock.shapes.verify.command import VerifyRun, run_verify

    configure(log_format=settings.log.format, level=settings.log.level)
    run = VerifyRun(
        arguments.master,
        dict(arguments.conf),
        shape=arguments.shape,
        timeout_s=arguments.timeout,
        show_values=arguments.show_values,
        json=arguments.json,
    )
    return run_verify(settings, file, run)


def _verify_stream(arguments: argparse.Namespace) -> int:
    from penstock.ops.logs import configure

    settings = load_capture_settings()
    _need_spark()
    from penstock.shapes.verify.stream_command import StreamRun, run_verify_stream

    configure(log_format=settings.log.format, level=settings.log.level)
    run = StreamRun(
        arguments.master,
        dict(arguments.conf),
        tables=tuple(arguments.table),
        complete=arguments.complete,
        timeout_s=arguments.timeout,
        show_values=arguments.show_values,
        json=arguments.json,
    )
    return run_verify_stream(settings, run)


def _positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _need_spark() -> None:
    if find_spec("pyspark") is None or find_spec("delta") is None:
        raise PenstockError("Spark is not installed. Fix: pip install 'penstock[spark]'")


def _bench_capture(arguments: argparse.Namespace) -> int:
    from penstock.bench.app import bench_capture

    return bench_capture(
        changes=arguments.changes,
        rounds=arguments.rounds,
        outage_minutes=arguments.outage_minutes,
        markdown=arguments.markdown,
        plot=arguments.plot,
    )


def _bench_shapes(arguments: argparse.Namespace) -> int:
    sizes = Sizes(*(getattr(arguments, name) for name in Sizes._fields))
    if (wrong := wrong_size(sizes)) is not None:
        raise PenstockError(wrong)
    _need_spark()
    from penstock.bench.shapes_app import bench_shapes

    return bench_shapes(sizes, arguments.only, arguments.markdown)


def _bench_kinesis(arguments: argparse.Namespace) -> int:
    sizes = KinesisSizes(*(getattr(arguments, name) for name in KinesisSizes._fields))
    if (wrong := wrong_size(sizes)) is not None:
        raise PenstockError(wrong)
    _need_spark()
    from penstock.bench.kinesis_app import bench_kinesis

    return bench_kinesis(sizes, arguments.only, arguments.markdown)


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


def _demo(arguments: argparse.Namespace) -> int:
    from penstock.demo.app import demo

    return demo(seconds=arguments.seconds, seed=arguments.seed, stays=arguments.stay)


def _capture(arguments: argparse.Namespace) -> int:
    # Commands import what they need: `capture` must start without rich, moto or Spark.
    from penstock.capture.app import capture
    from penstock.ops.logs import configure

    settings = load_capture_settings()
    configure(log_format=settings.log.format, level=settings.log.level)
    asyncio.new_event_loop().run_until_complete(capture(settings))
    _leave_at_once()


def _leave_at_once() -> NoReturn:
    """End without waiting for threads or tasks that hang: asyncio.run and the interpreter would."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_codes.OK)


def _status(arguments: argparse.Namespace) -> int:
    from penstock.ops.address import own_url_of
    from penstock.outside.command import Anybody, Process, Storage, Teller, show_status

    if arguments.config is not None and arguments.url is not None:
        raise PenstockError("--config asks no process, and --url asks one. Fix: give one of them")
    if arguments.stream is not None and arguments.config is None:
        raise PenstockError("--from is for shapes. Fix: give their file, too, by --config")
    if arguments.config is not None:
        from penstock.shapes.definition.shapes_file import load_shapes_file
        from penstock.shapes.definition.source_check import address_of

        settings = load_shapes_settings()
        stream = None if arguments.stream is None else address_of(load_stream_source(arguments.stream))
        teller: Teller = Storage(settings, load_shapes_file(arguments.config), stream)
    elif arguments.url is not None:
        teller = Process(arguments.url.rstrip("/"), load_slot_settings().ops.secret)
    else:
        slot = load_slot_settings()
        teller = Anybody(slot, own_url_of(slot.ops.host, slot.ops.port))
    return show_status(teller, json=arguments.json, watch_s=arguments.watch)


def _init(arguments: argparse.Namespace) -> int:
    import botocore.session

    from penstock.init.command import Wishes, run_init

    replication = load_slot_settings().replication
    region = os.environ.get("AWS_REGION") or botocore.session.get_session().get_config_variable("region")
    wishes = Wishes(
        arguments.directory,
        arguments.region or region,
        arguments.stream or os.environ.get("KINESIS_STREAM"),
        with_shapes=find_spec("pyarrow") is not None,
    )
    return run_init(replication, wishes, os.environ)


def _completion(arguments: argparse.Namespace) -> int:
    print(SHELLS[arguments.shell](describe(_parser())), end="")
    return exit_codes.OK


def _check(arguments: argparse.Namespace) -> int:
    from penstock.check import find, find_for_shapes, report

    if arguments.config is None:
        return report(asyncio.run(find(load_capture_settings())), json=arguments.json)
    from penstock.shapes.definition.shapes_file import load_shapes_file

    settings = load_shapes_settings()
    file = load_shapes_file(arguments.config)
    _need_spark()
    findings = find_for_shapes(settings, file, arguments.master, dict(arguments.conf), arguments.stream)
    return report(findings, json=arguments.json)
