"""A leadership of the shapes that reads a marked stream, and no slot: it has a slot's lock only."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

import structlog

from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.kinesis.read.retention import LEAST, is_late, late_sentence
from penstock.lake.ports import ShapeJobs
from penstock.model.lsn import format_lsn
from penstock.model.stream_position import History
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.slot.moving import SlotMover
from penstock.postgres.timeline import ServerIdentity, inserted_lsn
from penstock.shapes.flushing.complaints import slot_holder
from penstock.shapes.leadership import UPKEEP_EVERY_S, ShapesLeadership
from penstock.shapes.preparation import Prepared
from penstock.shapes.stream_wiring import KinesisPipeline, Streamed, position_to_begin
from penstock.shapes.wiring import ShapesPipeline
from penstock.status.health import Fault

_RETENTION_EVERY_S: Final = 300.0
_SILENT_S: Final = 20.0
"""At rest a manifest comes every ten seconds, however short STALL_S is."""

_log = structlog.get_logger()


class KinesisLeadership(ShapesLeadership):
    """See ShapesLeadership."""

    reads_slot: ClassVar[bool] = False
    _mover: SlotMover | None = None
    _silence_said_at: float = float("-inf")

    @property
    def _address(self) -> StreamAddress:
        assert isinstance(self._order.source, StreamAddress), "there is a stream"
        return self._order.source

    async def _lead(self, prepared: Prepared, jobs: ShapeJobs, identity: ServerIdentity) -> None:
        history = History(identity.timeline, identity.switch_points)
        position = position_to_begin(prepared, history)
        stream = await asyncio.to_thread(MarkedStream, self._address)
        try:
            begins = await self._line.kept_awake(asyncio.to_thread(stream.begin, position))
            retention = await self._line.kept_awake(_retention(stream, LEAST))
            vouched = await self._line.vouch()
            self._mover = mover = SlotMover(await self._line.connect(), prepared.keeper.registry.slot)
            pipeline = KinesisPipeline(
                self.file.shapes,
                prepared,
                streamed=Streamed(self._address, stream, begins, identity.system_id, history, mover.move),
                workplace=self._workplace(jobs),
                database=self._database,
                say_needed=self._preparation.say_needed,
            )
            others = {
                "house": self._keep_house(pipeline, stream, retention),
                "line": self._line.stay_awake(),
            }
            start_lsn = format_lsn(pipeline.feed.received_lsn)
            await self._serve(
                pipeline, jobs, vouched, others, stream=self._address.stream, start_lsn=start_lsn
            )
        finally:
            stream.close()

    async def _target_lsn(self) -> int:
        return await inserted_lsn(await self._line.connect())

    async def _say_last(self, pipeline: ShapesPipeline, freshness: Freshness) -> None:
        assert self._mover is not None, "it has led"
        await self._mover.move(pipeline.feed.confirmed_lsn)

    async def _keep_house(
        self, pipeline: KinesisPipeline, stream: MarkedStream, retention: timedelta
    ) -> None:
        """Once a second: forget what nobody needs, and say who holds everybody up, or falls behind."""
        ledger, asked_at = pipeline.ledger, time.monotonic()
        while True:
            now = time.monotonic()
            if now - asked_at >= _RETENTION_EVERY_S:
                asked_at, retention = now, await _retention(stream, retention)
            ledger.backlog.trim(ledger.tracker.minimum)
            shape, age = ledger.oldest_needed(datetime.now(UTC), now)
            self._board.note_source(retention.total_seconds(), age.total_seconds())
            late = {shape: late_sentence(f"shape {shape}", age, retention)} if is_late(age, retention) else {}
            stall_s = self._settings.change_log.stall_s
            holds = slot_holder(self._board.slot, ledger.tracker.stalled(now, 0.0), stall_s=stall_s)
            self._report(pipeline, now, late, holds)
            self._say_silence(pipeline, now)
            await asyncio.sleep(UPKEEP_EVERY_S)

    def _say_silence(self, pipeline: KinesisPipeline, now: float) -> None:
        """Tables that hold all that came look well, also when capture is gone and nothing comes."""
        stall_s = self._settings.change_log.stall_s
        sentence = pipeline.feed.stalled(now, max(stall_s, _SILENT_S), None)
        if sentence is None:
            self._silence_said_at = float("-inf")
            self._health.clear_fault(Fault.SOURCE)
            return
        self._health.set_fault(Fault.SOURCE, sentence)
        if now - self._silence_said_at >= stall_s:
            self._silence_said_at = now
            _log.error("source_silent", detail=sentence)


async def _retention(stream: MarkedStream, known: timedelta) -> timedelta:
    """For how long the stream keeps records, or what is known of that if it doesn't say."""
    try:
        return await asyncio.to_thread(stream.retention)
    except StreamReadError as error:
        _log.warning("retention_unknown", detail=str(error), taken_h=known.total_seconds() / 3600)
        return known
