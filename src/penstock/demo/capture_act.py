"""The first act: a leader and a standby carry a shop's changes to Kinesis, and the leader is killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, LiteralString, TypeVar

import psycopg

from penstock.demo import shop
from penstock.demo.monitor import Monitor
from penstock.demo.processes import Capture
from penstock.demo.proof import Proof, prove
from penstock.demo.stage import DemoFailed, Stage
from penstock.demo.story import Story
from penstock.demo.witness import Witness
from penstock.demo.workload import WRITERS, Workload

DATABASE: Final = "shop"
STREAM: Final = "shop"
SHARDS: Final = 4
SLOT: Final = "shop_to_kinesis"
RETRY_S: Final = 1.0
TAKEOVER_BOUND_S: Final = RETRY_S + 1.0
"""What is promised for a leader that is killed."""

_SETTINGS: Final = {
    "REPLICATION_SLOT": SLOT,
    "KINESIS_STREAM": STREAM,
    "STANDBY_RETRY_INTERVAL_S": str(RETRY_S),
    "LEADER_TIMEOUT_S": "5",
}
_Answer = TypeVar("_Answer")

_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.05
_WAL_END: Final[LiteralString] = "SELECT pg_current_wal_flush_lsn()::text"
_REACHED: Final[LiteralString] = (
    "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the act ended."""

    proof: Proof
    takeover_s: float
    rollbacks: int


class CaptureAct:
    """Plays once. `play` is the story from its beginning to the proof."""

    def __init__(self, stage: Stage, story: Story) -> None:
        self._stage = stage
        self._story = story
        self._conninfo = stage.postgres.conninfo(DATABASE)
        self._captures: list[Capture] = []
        self._workload = Workload(self._conninfo, seed=stage.seed)

    def play(self) -> Outcome:
        """Returns when everything that was started has ended, also if it raises."""
        try:
            return self._play()
        except psycopg.Error as error:
            raise DemoFailed(f"the shop's database failed: {error}") from error

    def _play(self) -> Outcome:
        with ExitStack() as at_end:
            witness = self._prepare()
            for name in ("capture A", "capture B"):
                self._start(name, at_end)
            at_end.callback(self._workload.close)
            with Monitor(self._story, self._captures, self._workload, self._conninfo, SLOT):
                takeover_s = self._run_the_shop()
                self._wait_until_confirmed()
                self._stop_the_leader()
            return Outcome(self._prove(witness), takeover_s, self._workload.books.rollbacks)

    def _prepare(self) -> Witness:
        with self._story.step("the shop's tables, and a witness slot for the proof"):
            self._stage.postgres.create_database(DATABASE)
            self._stage.postgres.psql(shop.SCHEMA, DATABASE)
            self._stage.kinesis.create_stream(STREAM, SHARDS)
            return Witness(self._conninfo)

    def _start(self, name: str, at_end: ExitStack) -> None:
        """The first becomes leader, because it is alone."""
        event = "standby" if self._captures else "streaming"
        with self._story.step(f"{name} starts") as step:
            env = {**self._stage.postgres.env(DATABASE), **self._stage.kinesis.env(), **_SETTINGS}
            capture = Capture(name, env, self._stage.directory)
            at_end.callback(capture.close)
            self._captures.append(capture)
            self._wait(lambda: bool(capture.events(event)), f"{name} did not log {event!r}", capture)
            step.title = f"{name} (pid {capture.pid}) {'stands by' if event == 'standby' else 'leads'}"

    def _run_the_shop(self) -> float:
        """Open it, kill the leader half-way, close it; gives the seconds of the takeover."""
        seconds = self._stage.seconds
        title = f"the shop is open: {WRITERS} writers"
        with self._story.step(title, planned_s=seconds) as step:
            self._workload.open()
            self._let_work_until(step.began + seconds / 2)
            takeover_s = self._kill_the_leader(step.began)
            self._let_work_until(step.began + seconds)
            self._workload.close()
            self._look()
            books = self._workload.books
            step.title = (
                f"the shop was open: {books.changes:,} changes in {books.transactions:,} transactions"
            )
        return takeover_s

    def _kill_the_leader(self, opened: float) -> float:
        leader = self._leader()
        standby = next(capture for capture in self._captures if capture is not leader)
        title = f"kill -9 of {leader.name}, the leader, {time.monotonic() - opened:.1f} s after the opening"
        with self._story.step(title, loud=True):
            moment = time.time()
            leader.kill9()
        with self._story.step(f"{standby.name} takes over", loud=True) as step:
            led = self._wait(lambda: standby.led_since(moment), f"{standby.name} did not take over", standby)
            takeover_s = led - moment
            step.title = f"{standby.name} leads, {takeover_s:.1f} s after the kill"
        return takeover_s

    def _leader(self) -> Capture:
        def streaming(capture: Capture) -> bool:
            answers = capture.ask()
            return answers is not None and answers.phase == "streaming"

        return self._wait(
            lambda: next(filter(streaming, self._captures), None), "nobody led", self._captures[-1]
        )

    def _wait_until_confirmed(self) -> None:
        with (
            self._story.step("the stream catches up: all WAL is confirmed to Postgres"),
            psycopg.connect(self._conninfo, autocommit=True) as connection,
        ):
            [(end,)] = connection.execute(_WAL_END).fetchall()
            self._wait(
                lambda: connection.execute(_REACHED, [end, SLOT]).fetchone() == (True,),
                f"the slot did not reach {end}",
                self._leader(),
            )

    def _stop_the_leader(self) -> None:
        leader = self._leader()
        with self._story.step(f"{leader.name} is told to stop: it drains and ends") as step:
            leader.terminate()
            self._wait(lambda: leader.exit_code is not None, f"{leader.name} did not stop", leader)
            if leader.exit_code != 0:
                raise _died(leader)
            step.title = f"{leader.name} was told to stop: drained, exit code 0"

    def _prove(self, witness: Witness) -> Proof:
        with self._story.step("the proof: the stream against the witness and the tables"):
            witnessed = witness.committed()
            books = self._workload.books
            return prove(
                committed=witnessed.changes,
                transactions=witnessed.transactions,
                stream=self._stage.kinesis.read_all(STREAM),
                tables=witness.tables(),
                keys=shop.KEYS,
                claimed_changes=books.changes,
                claimed_transactions=books.transactions,
            )

    def _let_work_until(self, moment: float) -> None:
        while time.monotonic() < moment:
            self._look()
            time.sleep(_POLL_S)

    def _wait(self, ask: Callable[[], _Answer | None], otherwise: str, watched: Capture) -> _Answer:
        """Ask until there is an answer; DemoFailed if a process or a writer ends first, or patience does."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (answer := ask()):
            self._look()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{otherwise} within {_PATIENCE_S:.0f} s\n{watched.log_tail()}")
            time.sleep(_POLL_S)
        return answer

    def _look(self) -> None:
        """Whatever should be running is."""
        self._workload.check()
        for capture in self._captures:
            if capture.died:
                raise _died(capture)


def _died(capture: Capture) -> DemoFailed:
    return DemoFailed(
        f"{capture.name} (pid {capture.pid}) ended unexpectedly, exit code {capture.exit_code};"
        f" {capture.log_tail()}"
    )
