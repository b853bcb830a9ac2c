"""A leadership of the shapes that reads a slot of its own, through a log on disk."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.runs import create_run, remove_older_runs, remove_run
from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.errors import PluginOptionRefused
from penstock.lake.ports import ShapeJobs
from penstock.model.relation import Relation
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.slot.state import describe
from penstock.postgres.stream.replication import ReplicationStream
from penstock.postgres.timeline import ServerIdentity, flushed_lsn
from penstock.shapes.feed.from_postgres import Incoming
from penstock.shapes.leadership import UPKEEP_EVERY_S, ShapesLeadership
from penstock.shapes.preparation import Prepared
from penstock.shapes.wiring import PostgresPipeline, ShapesPipeline

_OLD_RUNS_EVERY_S: Final = 300.0


class PostgresLeadership(ShapesLeadership):
    """See ShapesLeadership."""

    reads_slot: ClassVar[bool] = True

    @property
    def _log_directory(self) -> Path:
        assert isinstance(self._order.source, Path), "there is a log"
        return self._order.source

    async def _lead(self, prepared: Prepared, jobs: ShapeJobs, identity: ServerIdentity) -> None:
        assert prepared.slot is not None, "it was made"
        decoder = decoder_for(self._settings.replication.output_plugin)
        left_out: set[Relation] = set()
        stream = await self._start_stream(decoder, left_out)
        freshness, watchdog = await self._line.vouch()
        run_id = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        run = await asyncio.to_thread(create_run, self._log_directory, run_id)
        limits = self._settings.change_log
        log = ChangeLog(run, LogLimits.of(limits.max_bytes, limits.min_free_bytes))
        pipeline = PostgresPipeline(
            self.file.shapes,
            prepared,
            incoming=Incoming(stream, decoder, freshness, self._line.timings.heartbeat_s, left_out),
            log=log,
            workplace=self._workplace(jobs),
            database=self._database,
            say_needed=self._preparation.say_needed,
        )
        house = {"house": self._keep_house(pipeline)}
        try:
            await self._serve(
                pipeline, jobs, (freshness, watchdog), house, run=run_id, **describe(prepared.slot)
            )
        finally:
            await asyncio.to_thread(log.close)
            with suppress(OSError):
                await asyncio.to_thread(remove_run, run)

    async def _start_stream(self, decoder: Decoder, left_out: set[Relation]) -> ReplicationStream:
        def dropped(relation: Relation) -> None:
            self._metrics.dropped_by_server.inc()
            left_out.add(relation)

        *better, least = decoder.row_options()
        for options in better:
            try:
                return await self._line.start_stream(decoder, options, on_dropped=dropped)
            except PluginOptionRefused:
                continue
        return await self._line.start_stream(decoder, least, on_dropped=dropped)

    async def _target_lsn(self) -> int:
        return await flushed_lsn(await self._line.connect())

    async def _say_last(self, pipeline: ShapesPipeline, freshness: Freshness) -> None:
        await self._line.last_word(pipeline.feed.last_word, freshness)

    async def _keep_house(self, pipeline: PostgresPipeline) -> None:
        """Once a second: forget what nobody needs, and say who holds everybody up."""
        ledger, looked_at = pipeline.ledger, float("-inf")
        trimmed = ledger.tracker.droppable
        while True:
            now = time.monotonic()
            if ledger.tracker.droppable != trimmed or ledger.log.is_over_limit:
                trimmed = ledger.tracker.droppable
                await asyncio.to_thread(ledger.log.trim, trimmed)
            if now - looked_at >= _OLD_RUNS_EVERY_S:
                looked_at = now
                run_id = ledger.log.directory.name
                await asyncio.to_thread(remove_older_runs, self._log_directory, run_id, time.time())
            await pipeline.parking.look(now, self._settings.change_log.stall_s)
            self._report(pipeline, now)
            await asyncio.sleep(UPKEEP_EVERY_S)
