"""`penstock capture`: compete, lead, stand by, until told to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import Final

import structlog

from penstock.capture.leadership import Leadership
from penstock.capture.pipeline import MAX_REQUESTS
from penstock.capture.slot_memory import SlotMemory
from penstock.errors import PenstockError
from penstock.kinesis.client import KinesisClient, RecordSink
from penstock.ops.health import Fault, Health, Phase
from penstock.ops.metrics import CaptureMetrics
from penstock.ops.server import OpsServer
from penstock.postgres.leader_line import AnotherLeads
from penstock.postgres.timings import Timings
from penstock.retry_policy import SLOW_RETRY_S, Pace, policy_for
from penstock.settings import CaptureSettings

_FIRST_RETRY_S: Final = 0.25
_SAY_AGAIN_S: Final = 30.0
_THREAD_SWITCH_S: Final = 0.0002

_log = structlog.get_logger()


class CaptureApp:
    """The outer loop. Nothing but a signal ends it."""

    def __init__(self, settings: CaptureSettings, *, sink: RecordSink) -> None:
        self._settings = settings
        self._sink = sink
        self._health = Health()
        self._metrics = CaptureMetrics()
        self._memory = SlotMemory()
        self._stop = asyncio.Event()
        self._failures = 0
        self._said: tuple[str, float] = ("", 0.0)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        ops = OpsServer(self._health, self._exposition)
        url = await ops.start(self._settings.ops.host, self._settings.ops.port)
        _log.info("started", slot=self._settings.replication.slot, ops=url)
        for sentence in self._settings.warnings():
            _log.warning("doubtful_setting", note=sentence)
        try:
            await self._wait_for_sink()
            while not self._stop.is_set():
                await self._compete()
                self._health.end_leadership()
        finally:
            self._health.enter(Phase.STOPPED)
            await ops.stop()
            self._sink.close()
            _log.info("stopped")

    async def _compete(self) -> None:
        leadership = Leadership(
            self._settings,
            sink=self._sink,
            memory=self._memory,
            health=self._health,
            metrics=self._metrics,
            stop=self._stop,
        )
        try:
            outcome = await self._unless_stopped_early(leadership)
        except Exception as error:
            if leadership.has_led:
                self._failures = 0
            await self._recover(error)
            return
        self._failures = 0
        if outcome is not None:
            self._health.enter(Phase.STANDBY)
            self._health.clear_fault(Fault.POSTGRES)
            self._health.clear_fault(Fault.STREAM)
            self._say("info", "standby", f"{outcome.description} leads")
            await self._pause(self._settings.leader.standby_retry_interval_s)

    async def _unless_stopped_early(self, leadership: Leadership) -> AnotherLeads | None:
        """A stop that comes before streaming has nothing to drain: it cancels."""
        task = asyncio.create_task(leadership.run(), name="leadership")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not task.done() and self._health.phase not in (Phase.STREAMING, Phase.DRAINING):
            task.cancel()
            await asyncio.wait([task])
            return None
        return await task

    async def _recover(self, error: Exception) -> None:
        policy = policy_for(error)
        self._failures += 1
        self._health.enter(Phase.WAITING)
        known = isinstance(error, PenstockError)
        if policy.pace is not Pace.WHEN_SINK_ANSWERS:
            self._health.set_fault(Fault.POSTGRES, str(error) if known else type(error).__name__)
        name = type(error).__name__
        self._say(policy.level, name, str(error), exc_info=None if known else error)
        match policy.pace:
            case Pace.SLOW:
                await self._pause(SLOW_RETRY_S)
            case Pace.WHEN_SINK_ANSWERS:
                # A sink may answer the probe and still refuse our records: give another the chance to lead.
                await self._pause(self._settings.leader.standby_retry_interval_s)
                await self._wait_for_sink()
            case Pace.SOON:
                longest = self._settings.leader.standby_retry_interval_s
                await self._pause(min(longest, _FIRST_RETRY_S * 2.0 ** min(self._failures - 1, 10)))

    async def _wait_for_sink(self) -> None:
        """Compete only when the destination answers: a leader that can't publish only holds others up."""
        while not self._stop.is_set():
            failed = await asyncio.to_thread(self._sink.probe)
            if failed is None:
                self._health.clear_fault(Fault.SINK)
                return
            self._health.enter(Phase.SINK_DOWN)
            sentence = f"{failed.code}: {failed.message}"
            self._health.set_fault(Fault.SINK, sentence)
            self._say("error", "sink_down", sentence)
            await self._pause(self._settings.leader.standby_retry_interval_s)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return

    def _say(self, level: str, event: str, sentence: str, exc_info: Exception | None = None) -> None:
        """The same sentence again and again is said once in a while."""
        now = time.monotonic()
        if self._said[0] == sentence and now - self._said[1] < _SAY_AGAIN_S:
            return
        self._said = (sentence, now)
        getattr(_log, level)(event, detail=sentence, **({"exc_info": exc_info} if exc_info else {}))

    def _exposition(self) -> bytes:
        self._metrics.set_phase(self._health.phase)
        return self._metrics.exposition()


async def capture(settings: CaptureSettings) -> None:
    """Run `penstock capture` with a real Kinesis client."""
    # A request's thread takes the interpreter's lock several times, and a reader with a backlog lets go of
    # it only when asked: with Python's 5 ms each time, requests would starve behind the reader.
    sys.setswitchinterval(_THREAD_SWITCH_S)
    timings = Timings.of(settings.leader.timeout_s)
    sink = KinesisClient(
        stream=settings.kinesis.stream,
        region=settings.kinesis.region,
        endpoint_url=settings.kinesis.endpoint_url,
        connect_timeout_s=timings.connect_s,
        read_timeout_s=timings.answer_s,
        max_connections=MAX_REQUESTS,
    )
    await CaptureApp(settings, sink=sink).run()
