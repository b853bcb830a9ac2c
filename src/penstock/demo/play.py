"""The play: one shop, and two acts over it at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg

from penstock.demo import capture_act, shop
from penstock.demo.capture_act import CaptureAct
from penstock.demo.demo_monitor import Monitor
from penstock.demo.demo_outcome import DemoOutcome
from penstock.demo.processes import Service
from penstock.demo.shapes_act import ShapesAct
from penstock.demo.stage import DemoFailed, Stage
from penstock.demo.stay import Address, stay
from penstock.demo.story import Story
from penstock.demo.watch import Watch
from penstock.demo.witness import Witness
from penstock.demo.workload import BUSY_S, QUIET_S, WRITERS, Pace, Workload


class Play:
    """Played once. `play` is the story from its beginning to both proofs."""

    def __init__(self, stage: Stage, story: Story, at_end: ExitStack) -> None:
        """What is started ends with `at_end`, at the latest."""
        self._stage = stage
        self._story = story
        self._at_end = at_end
        self._conninfo = stage.postgres.conninfo(shop.DATABASE)
        self._pace = Pace(QUIET_S)
        self._workload = Workload(self._conninfo, seed=stage.seed, pace=self._pace)
        self._watch = Watch(self._conninfo, self._workload)
        self._capture = CaptureAct(stage, story, self._watch)
        self._shapes = ShapesAct(stage, story, self._watch)

    def play(self) -> DemoOutcome:
        """Returns when both proofs are made. Then nothing runs but the servers; or all that is to stay."""
        with _named_failures():
            return self._play()

    def stay(self) -> None:
        """Keep it running, with a calm shop, until somebody ends it."""
        with _named_failures():
            stay(self._conninfo, self._stage.seed, self._watch, self._addresses())

    def _play(self) -> DemoOutcome:
        at_end = self._at_end
        witness = self._prepare()
        with self._story.step("shapes A starts") as step:
            shapes = self._shapes.start(at_end)
            step.title = f"shapes A (pid {shapes.pid}) starts Spark, which takes a while"
        self._capture.start(at_end)
        self._shapes.wait_for_spark(shapes)
        at_end.callback(self._workload.close)
        with Monitor(self._story, self._watch, self._workload, self._conninfo):
            shapes = self._run_the_shop(shapes, at_end)
            self._capture.catch_up()
            if not self._stage.stays:
                self._capture.stop()
            self._shapes.wait_until_back(shapes)
            self._shapes.catch_up(shapes)
            if not self._stage.stays:
                self._shapes.stop(shapes)
        # Its Spark starts while the stream is read.
        verify = self._shapes.verify(at_end)
        capture = self._capture.prove(witness, self._workload.books)
        outcome = DemoOutcome(capture, self._shapes.prove(verify), self._stage.stays)
        if self._stage.stays:
            self._capture.stay(at_end)
        return outcome

    def _prepare(self) -> Witness:
        with self._story.step("the shop's tables, and a witness slot for the proof"):
            self._stage.postgres.create_database(shop.DATABASE)
            self._stage.postgres.psql(shop.SCHEMA, shop.DATABASE)
            return Witness(self._conninfo)

    def _run_the_shop(self, shapes: Service, at_end: ExitStack) -> Service:
        """Open it, kill both leaders half-way, close it; gives the shapes that were started again.

        It is quiet until the tables are made: a Spark that warms up needs the cores. It stays open until
        there was something to kill, if that takes longer than it should.
        """
        seconds = self._stage.seconds
        with self._story.step(f"the shop is open: {WRITERS} writers", planned_s=seconds) as step:
            self._workload.stock_up()
            self._workload.open()
            self._shapes.wait_for_tables(shapes)
            self._pace.pause_s = BUSY_S
            self._watch.let_work_until(step.began + seconds / 2)
            again = self._shapes.kill_and_start_again(shapes, step.began, at_end)
            self._capture.kill_the_leader(step.began)
            self._watch.let_work_until(step.began + seconds)
            self._workload.close()
            self._watch.look()
            books = self._workload.books
            step.title = (
                f"the shop was open: {books.changes:,} changes in {books.transactions:,} transactions"
            )
        return again

    def _addresses(self) -> list[Address]:
        """Of everything that runs."""
        services = [service for service in self._watch.services if service.running]
        stage = self._stage
        return [
            *(Address(service.name, f"{service.ops_url}/") for service in services),
            Address("Postgres", f"psql '{self._conninfo}'"),
            Address("Kinesis", f"{stage.kinesis.endpoint_url}, stream {capture_act.STREAM}"),
            Address("Delta tables", str(stage.directory / "lake")),
        ]


@contextmanager
def _named_failures() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise DemoFailed(f"the shop's database failed: {error}") from error
