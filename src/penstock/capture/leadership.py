"""One leadership: from the lock to its release."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from penstock.capture.gauges import Gauges
from penstock.capture.noted_frontier import NoteTrouble
from penstock.capture.slot_memory import Discovery, SlotFinding, SlotMemory, compare, latest
from penstock.capture.wiring import Pipeline, SlotStart
from penstock.clock import awake_or_asleep
from penstock.decoding.decoder import Decoder
from penstock.decoding.plugins import decoder_for
from penstock.errors import SlotInvalid
from penstock.kinesis.write.ports import CaptureSink
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.postgres.catalog.key_catalog import Catalog
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.leader.line import AnotherLeads, EnsuredSlot, LeaderLine
from penstock.postgres.leader.lock import Session
from penstock.postgres.leader.watchdog import Watchdog
from penstock.postgres.slot.note import NoteRefused, NoteStore, NoteUnwritten, SlotNote
from penstock.postgres.slot.state import SlotState, check_slot, describe
from penstock.postgres.stream.replication import ReplicationStream
from penstock.postgres.timeline import ServerIdentity
from penstock.service.slot_creation import say_slot_created
from penstock.settings.services import CaptureSettings
from penstock.status.board import StatusBoard
from penstock.status.health import Fault, Health, Phase
from penstock.status.metrics import CaptureMetrics

LAST_WORDS_S: Final = 0.8
"""For the last requests, the last note and the last status, behind a drain that took all of its time."""
_LATE_S: Final = 0.2
"""By so much a request's time-out may be noticed late."""
RELEASE_S: Final = LAST_WORDS_S + 0.1
"""By then a leadership is over, lines and threads included, unless something hangs. Below a second."""

_log = structlog.get_logger()


class Leadership:
    """Competes for the slot's lock and, having it, carries changes until something ends it. Used once."""

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        sink: CaptureSink,
        memory: SlotMemory,
        health: Health,
        metrics: CaptureMetrics,
        board: StatusBoard,
        stop: asyncio.Event,
        on_new_history: Callable[[], None],
    ) -> None:
        """`on_new_history`: LSNs of the server can't be compared with those before."""
        self._settings = settings
        self._sink = sink
        self._memory = memory
        self._health = health
        self._metrics = metrics
        self._board = board
        self._stop = stop
        self._line = LeaderLine(settings.replication, settings.leader, role="capture")
        self._on_new_history = on_new_history
        self._over_by: float | None = None
        self.has_led = False
        self.confirmed_lsn = 0

    @property
    def held(self) -> Session | None:
        """See LeaderLine."""
        return self._line.held

    async def run(self) -> AnotherLeads | None:
        """Lead until `stop` is set (returns None) or until an error ends it; at once if another leads."""
        async with self._line.open():
            another = await self._line.take_lock()
            if another is not None:
                await self._remember_slot()
                return another
            self._health.enter(Phase.PREPARING)
            server = await self._line.identify()
            slot, created = await self._ensure_slot(server)
            note, kept = await self._compare_with_note(server, slot, created=created)
            decoder = decoder_for(self._settings.replication.output_plugin)
            options = decoder.record_options(self._settings.content.of_records)
            stream = await self._line.start_stream(decoder, options, on_dropped=self._dropped_by_server)
            await self._lead(stream, decoder, slot, server, note, kept)
        return None

    async def _remember_slot(self) -> None:
        slot = await self._line.read_slot()
        # A slot that is still being made is in the view too, and may never come to be.
        if slot is not None and slot.confirmed_flush_lsn is not None:
            self._memory.saw(await self._line.identify(), slot.confirmed_flush_lsn)

    async def _ensure_slot(self, server: ServerIdentity) -> EnsuredSlot:
        slot, created = await self._line.ensure_slot()
        if created:
            say_slot_created(slot, self._metrics, note="changes before it are not in the stream")
        try:
            check_slot(slot, self._settings.replication.output_plugin)
        except SlotInvalid:
            # It is ours, and stood there: whoever drops it and lets us make a new one leaves a gap.
            self._memory.saw(server, slot.start_lsn)
            raise
        return EnsuredSlot(slot, created)

    async def _compare_with_note(
        self, server: ServerIdentity, slot: SlotState, *, created: bool
    ) -> tuple[SlotNote, NoteStore | None]:
        """Say what has happened to the slot since somebody led, and begin a note of our own."""
        store = NoteStore(self._line.connect, slot.name, answer_s=self._line.timings.answer_s)
        known = latest(await store.claim(), self._memory.known)
        if known is None and not created:
            _log.warning("slot_without_note", slot=slot.name, note="nothing is known of what it was before")
        findings = compare(known, server, slot.start_lsn)
        for finding in findings:
            self._say(finding, slot.name)
        self._metrics.timeline.set(server.timeline)
        note = SlotNote(server.system_id, server.timeline, slot.start_lsn)
        if known is not None and not findings:
            note = note._replace(confirmed_lsn=max(known.confirmed_lsn, slot.start_lsn))
        self._memory.saw(server, note.confirmed_lsn)
        if not self._settings.replication.note:
            await self._forget(store)
            return note, None
        try:
            await store.take_over(note)
        except NoteRefused as error:
            _log.warning(
                "slot_note_refused",
                slot=slot.name,
                detail=str(error),
                note="a slot that somebody drops and creates again won't be noticed after a restart."
                " Fix: GRANT EXECUTE ON FUNCTION lo_from_bytea(oid, bytea), lo_put(oid, bigint, bytea),"
                " lo_get(oid) TO <role>",
            )
            return note, None
        except NoteUnwritten as error:
            _log.error("slot_note_unwritten", detail=str(error), note="it is tried again while leading")
        return note, store

    async def _forget(self, store: NoteStore) -> None:
        try:
            await store.forget()
        except NoteUnwritten as error:
            _log.warning(
                "slot_note_stays",
                detail=str(error),
                note="who next leads with SLOT_NOTE=true may say a GAP that is none",
            )

    def _note_trouble(self, trouble: NoteTrouble | None) -> None:
        """The note can't be written while we lead, or it can be again."""
        if trouble is None:
            self._health.clear_fault(Fault.NOTE)
            _log.info("slot_note_written_again")
            return
        follows = (
            "until it is, Postgres isn't told what is delivered, and keeps it"
            if trouble.is_held
            else "Postgres is told what is delivered all the same: who leads next may say a GAP that is none"
        )
        self._health.set_fault(Fault.NOTE, f"{trouble.why}; {follows}")
        _log.error("slot_note_unwritten", detail=trouble.why, note=follows)

    def _say(self, finding: SlotFinding, slot: str) -> None:
        say = _log.error
        match finding.kind:
            case Discovery.GAP:
                self._metrics.gaps.inc()
            case Discovery.TIMELINE_SWITCHED:
                self._metrics.timeline_switches.inc()
                say = _log.warning
        if finding.kind is not Discovery.GAP or finding.is_of_another_history:
            self._on_new_history()
        say(finding.kind, slot=slot, note=finding.sentence, **finding.fields)

    def _dropped_by_server(self, relation: Relation) -> None:
        self._metrics.dropped_by_server.inc()
        self._health.set_fault(
            Fault.DROPPED,
            f"Postgres leaves updates and deletes of {relation} out of the stream: it has no replica"
            " identity. They are missing for good. Fix: give it a primary key, or ALTER TABLE ... REPLICA"
            " IDENTITY FULL, take a new snapshot of it downstream, and restart this process",
        )

    async def _lead(
        self,
        stream: ReplicationStream,
        decoder: Decoder,
        slot: SlotState,
        server: ServerIdentity,
        note: SlotNote,
        kept: NoteStore | None,
    ) -> None:
        freshness, watchdog = await self._line.vouch()
        pipeline = Pipeline(
            self._settings,
            line=stream,
            decoder=decoder,
            start=SlotStart(slot.start_lsn, server, note, kept),
            sink=self._sink,
            key_indexes=Catalog(self._line.connect).key_indexes,
            freshness=freshness,
            health=self._health,
            metrics=self._metrics,
        )
        pipeline.noted.on_trouble(self._note_trouble)
        gauges = Gauges(pipeline, freshness, self._health, self._metrics)
        self._health.start_streaming(freshness, awake_or_asleep())
        self._board.lead(gauges.reading)
        self.has_led = True
        self._metrics.leaderships.inc()
        _log.info("streaming", **describe(slot))
        try:
            await self._run_together(pipeline, watchdog, gauges, freshness)
        finally:
            gauges.sample(awake_or_asleep())
            self._board.rest()
            self.confirmed_lsn = pipeline.feedback.confirmed_lsn
            self._memory.saw(server, self.confirmed_lsn)
            # A failure has hung up already. A leader that stops keeps the lock until its last request is
            # over: the next leader's records must not be overtaken by it.
            await pipeline.publisher.close(until=self._over_by)
            if pipeline.marker is not None:
                await pipeline.marker.close(until=self._over_by)
            self._line.hang_up()

    async def _run_together(
        self, pipeline: Pipeline, watchdog: Watchdog, gauges: Gauges, freshness: Freshness
    ) -> None:
        async def until_stopped() -> None:
            await self._stop.wait()

        parts = {
            "publisher": pipeline.publisher.run(),
            "feedback": pipeline.feedback.run(),
            "note": pipeline.noted.run(),
            "watchdog": watchdog.watch(),
            "guard": watchdog.guard(),
            "gauges": gauges.run(),
        }
        if pipeline.marker is not None:
            parts["marker"] = pipeline.marker.run()
        await self._line.run_together(
            pipeline.reader.run(),
            parts,
            until=until_stopped(),
            drain=lambda reader: self._drain(pipeline, reader, freshness),
            settle=lambda: self._settle(pipeline),
        )

    async def _settle(self, pipeline: Pipeline) -> None:
        """Let no more requests leave, and those that have come to their end: within their own time-out."""
        settled_by = time.monotonic() + self._settings.request_timeouts.read_s + _LATE_S
        until = min(settled_by, self._over_by or settled_by)
        await pipeline.publisher.finish(until=until)
        if pipeline.marker is not None:
            await pipeline.marker.finish(until=until)

    async def _drain(self, pipeline: Pipeline, reader: asyncio.Task[None], freshness: Freshness) -> None:
        """Deliver what was read, and tell Postgres: within SHUTDOWN_DRAIN_S, and less than a second more.

        In its last part no request leaves any more, so that those that have can end before it is over.
        """
        self._health.enter(Phase.DRAINING)
        _log.info("draining", pending=pipeline.tracker.pending_count)
        drain_s = self._settings.leader.shutdown_drain_s
        drained_by = time.monotonic() + drain_s
        self._over_by = drained_by + LAST_WORDS_S
        reader.cancel()
        await asyncio.wait([reader])
        try:
            async with asyncio.timeout(drain_s - min(self._settings.request_timeouts.read_s, drain_s / 2)):
                await pipeline.publisher.drained()
        except TimeoutError:
            await pipeline.publisher.finish(until=drained_by + LAST_WORDS_S / 2)
        if pipeline.tracker.pending_count:
            _log.warning("drain_incomplete", pending=pipeline.tracker.pending_count)
        await self._catch_up(pipeline)
        await self._line.last_word(
            lambda: pipeline.feedback.send(reply_requested=True),
            freshness,
            within_s=self._over_by - time.monotonic(),
        )
        _log.info("drained", confirmed_lsn=format_lsn(pipeline.feedback.confirmed_lsn))

    async def _catch_up(self, pipeline: Pipeline) -> None:
        """The last manifest, then the last note, in half of the time that is left."""
        assert self._over_by is not None, "the drain has begun"
        what = "manifest"
        try:
            async with asyncio.timeout((self._over_by - time.monotonic()) / 2):
                if pipeline.marker is not None:
                    await pipeline.marker.catch_up()
                what = "slot_note"
                await pipeline.noted.catch_up()
        except TimeoutError:
            _log.warning(f"{what}_late", note="what was delivered last will come again")
