"""`penstock demo`: private servers, the acts that play on them, and the result."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from rich.console import Console

from penstock import exit_codes
from penstock.demo.demo_outcome import DemoOutcome
from penstock.demo.plain import PlainLines
from penstock.demo.play import Play
from penstock.demo.screen import Screen
from penstock.demo.stage import DemoFailed, Stage
from penstock.demo.story import Story
from penstock.errors import PenstockError
from penstock.lake.spark.jars import cache_directory, jar_paths
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres


def demo(*, seconds: int, seed: int, stays: bool = False) -> int:
    """Play it on this machine; gives the exit code: 0 only if everything is proved."""
    _need_spark()
    _forget_other_databases()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    story = Story(f"Penstock demo: Postgres to Kinesis and to Delta tables, with kill -9 (seed {seed})")
    with ExitStack() as at_end:
        plays: list[Play] = []

        def play() -> DemoOutcome:
            stage = _set(story, at_end, seconds=seconds, seed=seed, stays=stays)
            plays.append(Play(stage, story, at_end))
            return plays[0].play()

        return tell(_view(story), play, lambda: plays[0].stay() if stays else None)


def tell(
    view: Screen | PlainLines,
    play: Callable[[], DemoOutcome],
    afterwards: Callable[[], None] = lambda: None,
) -> int:
    """Play while the view shows it, then show how it ended; and what comes after that."""
    try:
        with view:
            outcome = play()
        view.show(outcome)
        afterwards()
    except DemoFailed as failure:
        print(failure, file=sys.stderr)
        return exit_codes.FAILED
    return exit_codes.OK if outcome.holds else exit_codes.FAILED


def _set(story: Story, at_end: ExitStack, *, seconds: int, seed: int, stays: bool) -> Stage:
    """The servers and a directory; they end with `at_end`."""
    directory = Path(at_end.enter_context(tempfile.TemporaryDirectory(prefix="penstock-demo-")))
    kinesis = _start_kinesis(at_end)
    with story.step("a private Postgres starts") as step:
        postgres = at_end.enter_context(PrivatePostgres())
        [(version,)] = postgres.psql("SHOW server_version")
        step.title = f"a private Postgres {version.split()[0]} with wal2json, on port {postgres.port}"
    return Stage(postgres, kinesis, directory, seed, seconds, stays)


def _start_kinesis(at_end: ExitStack) -> Future[LocalKinesis]:
    kinesis = LocalKinesis()

    def start() -> LocalKinesis:
        kinesis.start()
        return kinesis

    aside = at_end.enter_context(ThreadPoolExecutor(1, thread_name_prefix="kinesis"))
    # Before its thread is waited for: one that is still starting then gives up.
    at_end.callback(kinesis.close)
    return aside.submit(start)


def _view(story: Story) -> Screen | PlainLines:
    console = Console()
    # Not console.is_terminal: that is also true in a CI that only asks for colours.
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return Screen(story, console)
    return PlainLines(story)


def _need_spark() -> None:
    """Say what is missing before anything starts."""
    if find_spec("pyspark") is None or find_spec("delta") is None:
        raise PenstockError("the demo needs Spark. Fix: pip install 'penstock[spark]'")
    jar_paths(cache_directory())


def _forget_other_databases() -> None:
    """Let no PGSSLMODE, PGOPTIONS or the like, meant for another server, reach the private one."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]


def _leave(number: int, frame: FrameType | None) -> None:
    """Told to end, or the terminal is gone: end as after Ctrl-C, so that everything is closed."""
    sys.exit(exit_codes.killed_by(number))
