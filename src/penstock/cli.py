"""The commands."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Final, NoReturn

from penstock import exit_codes
from penstock.bench.parts import KinesisSizes, Sizes, wrong_size
from penstock.cli_arguments import new_parser
from penstock.completion import SHELLS, describe
from penstock.errors import PenstockError
from penstock.settings.loading import (
    load_capture_settings,
    load_shapes_settings,
    load_slot_settings,
    load_stream_source,
)

_SERVICES: Final = ("capture", "shapes")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = new_parser().parse_args(argv)
    verbose = getattr(arguments, "verbose", False)
    try:
        code = _run(arguments)
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


def _run(arguments: argparse.Namespace) -> int:
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "capture": _capture,
        "shapes": _shapes,
        "verify": _verify,
        "check": _check,
        "status": _status,
        "init": _init,
        "completion": _completion,
        "demo": _demo,
        "bench": _bench,
    }
    return commands[arguments.command](arguments)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


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


def _need_spark() -> None:
    if find_spec("pyspark") is None or find_spec("delta") is None:
        raise PenstockError("Spark is not installed. Fix: pip install 'penstock[spark]'")


def _bench(arguments: argparse.Namespace) -> int:
    benches = {"capture": _bench_capture, "shapes": _bench_shapes, "kinesis": _bench_kinesis}
    return benches[arguments.bench](arguments)


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
    print(SHELLS[arguments.shell](describe(new_parser())), end="")
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
