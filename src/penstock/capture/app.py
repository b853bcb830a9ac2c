"""`penstock capture`: compete, lead, stand by, until told to stop."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import structlog

from penstock.abandonable import in_daemon_thread
from penstock.capture.leadership import RELEASE_S, Leadership
from penstock.capture.slot_memory import SlotMemory
from penstock.kinesis.aws.outcome import Failed
from penstock.kinesis.write.client import KinesisClient
from penstock.kinesis.write.ports import CaptureSink
from penstock.ops.access import Access
from penstock.ops.server import OpsServer
from penstock.postgres.leader.line import LeaderLine
from penstock.postgres.slot.monitor import SlotMonitor
from penstock.service.cycle import LeaderCycle
from penstock.service.retry_policy import QUICK_RETRY_S
from penstock.settings.services import CaptureSettings
from penstock.status.board import StatusBoard
from penstock.status.health import Fault, Health, Phase
from penstock.status.metrics import CaptureMetrics

_THREAD_SWITCH_S: Final = 0.0002

_log = structlog.get_logger()


class CaptureApp:
    """The outer loop. Nothing but a signal ends it."""

    def __init__(self, settings: CaptureSettings, *, sink: CaptureSink) -> None:
        self._settings = settings
        self._sink = sink
        self._health = Health()
        self._metrics = CaptureMetrics()
        self._board = StatusBoard("capture", self._health, credentials_expire_at=sink.credentials_expire_at)
        self._memory = SlotMemory()
        self._cycle = LeaderCycle(
            self._health, standby_retry_interval_s=settings.leader.standby_retry_interval_s
        )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; then end within SHUTDOWN_DRAIN_S and a second, whatever hangs."""
        self._cycle.listen()
        listen = self._settings.ops
        access = Access(listen.secret, metrics_open=listen.metrics_open)
        ops = OpsServer(self._health, self._board.read, self._metrics.exposition, access)
        url = await ops.start(listen.host, listen.port)
        _log.info("started", slot=self._settings.replication.slot, ops=url)
        for sentence in self._settings.warnings():
            _log.warning("doubtful_setting", note=sentence)
        monitor = SlotMonitor.of(
            self._settings.replication,
            self._settings.leader,
            on_slot=self._board.note_slot,
            on_clock=self._board.note_clock,
        )
        watching = asyncio.create_task(monitor.run(), name="slot monitor")
        serving = asyncio.create_task(self._serve(), name="serve")
        ended = await self._cycle.ends_in_time(
            serving, grace_s=self._settings.leader.shutdown_drain_s + RELEASE_S
        )
        watching.cancel()
        self._health.enter(Phase.STOPPED)
        if ended:
            await ops.stop()
            self._sink.close()
        else:
            _log.warning("stopped_in_the_middle", note="something hangs, and is left behind")
        _log.info("stopped")
        if ended:
            await serving

    async def _serve(self) -> None:
        await self._wait_for_sink()
        while not self._cycle.stop.is_set():
            await self._compete()
            self._health.end_leadership()

    async def _compete(self) -> None:
        leadership = Leadership(
            self._settings,
            sink=self._sink,
            memory=self._memory,
            health=self._health,
            metrics=self._metrics,
            board=self._board,
            stop=self._cycle.stop,
            on_new_history=self._forget_positions,
        )
        try:
            another = await self._cycle.attempt(leadership)
        except Exception as error:
            await self._cycle.recover(error, wait_for_sink=self._wait_for_sink, look=self._look)
            return
        if another is not None:
            await self._cycle.stand_by(another)

    async def _look(self) -> None:
        await LeaderLine(self._settings.replication, self._settings.leader, role="capture").look()

    def _forget_positions(self) -> None:
        self._cycle.forget_positions()
        self._board.forget_positions()

    async def _wait_for_sink(self) -> bool:
        """Compete only when the destination answers: a leader that can't publish only holds others up.

        Returns whether it answered at once.
        """
        at_once = True
        while not self._cycle.stop.is_set():
            unforeseen = None
            try:
                failed = await self._cycle.unless_stopped(in_daemon_thread(self._sink.probe))
            except Exception as error:
                # No more threads, for example. Whatever it is: nothing is published until it works.
                failed = Failed("ProbeFailed", type(error).__name__, stream_fault=False)
                unforeseen = error
            if failed is None:
                self._health.clear_fault(Fault.SINK)
                return at_once
            at_once = False
            self._health.enter(Phase.SINK_DOWN)
            sentence = f"{failed.code}: {failed.message}"
            self._health.set_fault(Fault.SINK, sentence)
            self._cycle.say("error", "sink_down", sentence, unforeseen)
            await self._cycle.pause(min(self._settings.leader.standby_retry_interval_s, QUICK_RETRY_S))
        return at_once


async def capture(settings: CaptureSettings) -> None:
    """Run `penstock capture` with a real Kinesis client."""
    # A request's thread takes the interpreter's lock several times, and a reader with a backlog lets go of
    # it only when asked: with Python's 5 ms each time, requests would starve behind the reader.
    sys.setswitchinterval(_THREAD_SWITCH_S)
    sink = KinesisClient(
        stream=settings.kinesis.stream,
        region=settings.kinesis.region,
        endpoint_url=settings.kinesis.endpoint_url,
        connect_timeout_s=settings.request_timeouts.connect_s,
        read_timeout_s=settings.request_timeouts.read_s,
        keys_matter=settings.keys_matter,
        may_be_unordered=settings.may_be_unordered,
        marks_stream=settings.kinesis.marks_stream,
    )
    await CaptureApp(settings, sink=sink).run()
