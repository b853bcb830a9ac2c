"""The first act: a leader and a standby carry a shop's changes to Kinesis, and the leader is killed."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final

from penstock.demo import shop
from penstock.demo.marked_stream import MarkedStream
from penstock.demo.processes import Service
from penstock.demo.proof import Proof, prove
from penstock.demo.stage import Stage
from penstock.demo.story import Story
from penstock.demo.stream_reader import StreamBroken
from penstock.demo.watch import Watch
from penstock.demo.witness import Witness
from penstock.demo.workload import Books

STREAM: Final = "shop"
SHARDS: Final = 4
SLOT: Final = "shop_to_kinesis"
RETRY_S: Final = 1.0
TAKEOVER_BOUND_S: Final = RETRY_S + 1.0
"""What is promised for a leader that is killed."""

_SETTINGS: Final = {
    "KINESIS_STREAM": STREAM,
    "STANDBY_RETRY_INTERVAL_S": str(RETRY_S),
    "LEADER_TIMEOUT_S": "5",
    "KINESIS_MARKED_STREAM": "true",
}
_RECORDS_METRIC: Final = "penstock_sink_records_total"


@dataclass(frozen=True, slots=True)
class CaptureOutcome:
    """How the act ended."""

    proof: Proof
    takeover_s: float
    rollbacks: int


class CaptureAct:
    """Played once: `start`, `kill_the_leader`, `catch_up`, `stop` or, at the end, `stay`; and `prove`."""

    def __init__(self, stage: Stage, story: Story, watch: Watch) -> None:
        self._stage = stage
        self._story = story
        self._watch = watch
        self._captures: list[Service] = []
        self._takeover_s = 0.0

    def start(self, at_end: ExitStack) -> None:
        """A leader and a standby; the first becomes leader, because it is alone."""
        with self._story.step("an embedded Kinesis starts") as step:
            kinesis = self._stage.kinesis
            kinesis.create_stream(STREAM, SHARDS)
            step.title = f"an embedded Kinesis (moto), at {kinesis.endpoint_url}"
        self._start("capture A", "streaming", "leads", at_end)
        self._start("capture B", "standby", "stands by", at_end)

    def kill_the_leader(self, opened: float) -> None:
        """And see the standby take over. `opened` is when the shop was."""
        leader = self._leader()
        standby = next(capture for capture in self._captures if capture is not leader)
        title = f"kill -9 of {leader.name}, the leader, {time.monotonic() - opened:.1f} s after the opening"
        with self._story.step(title, loud=True):
            moment = time.time()
            leader.kill9()
        with self._story.step(f"{standby.name} takes over", loud=True) as step:
            led = self._watch.wait(
                lambda: standby.led_since(moment), f"{standby.name} did not take over", standby
            )
            self._takeover_s = led - moment
            step.title = f"{standby.name} leads, {self._takeover_s:.1f} s after the kill"

    def catch_up(self) -> None:
        """Everything is in the stream."""
        with self._story.step("the stream catches up: all WAL is confirmed to Postgres"):
            self._watch.wait_until_confirmed(self._leader())

    def stay(self, at_end: ExitStack) -> None:
        """The leader has a standby again."""
        self._start("capture C", "standby", "stands by", at_end)

    def stop(self) -> None:
        """The leader ends."""
        leader = self._leader()
        with self._story.step(f"{leader.name} is told to stop: it drains and ends") as step:
            self._watch.stop(leader)
            step.title = f"{leader.name} was told to stop: drained, exit code 0"

    def prove(self, witness: Witness, books: Books) -> CaptureOutcome:
        """The stream against the witness, the tables and the writers' books."""
        with self._story.step("the proof: the stream against the witness and the tables"):
            stream = MarkedStream(self._stage.kinesis.read_all(STREAM), SLOT)
            proof = prove(
                committed=witness.committed().transactions,
                restored=_restored(stream),
                stream=[replace(record, data=payload) for record, payload in stream.payloads()],
                tables=witness.tables(),
                keys=shop.KEYS,
                claimed_changes=books.changes,
                claimed_transactions=books.transactions,
            )
        return CaptureOutcome(proof, self._takeover_s, books.rollbacks)

    def _start(self, name: str, event: str, role: str, at_end: ExitStack) -> None:
        env = {**self._stage.postgres.env(shop.DATABASE), **self._stage.kinesis.env(), **_SETTINGS}
        with self._story.step(f"{name} starts") as step:
            capture = Service(
                name, ["capture"], env, self._stage.directory, slot=SLOT, counter=_RECORDS_METRIC
            )
            at_end.callback(capture.close)
            self._captures.append(capture)
            self._watch.add(capture)
            self._watch.wait(lambda: bool(capture.events(event)), f"{name} did not log {event!r}", capture)
            step.title = f"{name} (pid {capture.pid}) {role}"

    def _leader(self) -> Service:
        def streaming(capture: Service) -> bool:
            answers = capture.ask()
            return answers is not None and answers.phase == "streaming"

        return self._watch.wait(
            lambda: next(filter(streaming, self._captures), None), "nobody led", self._captures[-1]
        )


def _restored(stream: MarkedStream) -> list[list[bytes]]:
    """What a reader of the manifests sees; as far as it comes, if they don't fit together."""
    found: list[list[bytes]] = []
    with suppress(StreamBroken):
        found += stream.transactions()
    return found
