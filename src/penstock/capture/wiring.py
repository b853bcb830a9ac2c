"""The parts of one leadership, wired together."""

from __future__ import annotations

import gc
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from penstock.capture.ack import AckTracker
from penstock.capture.intake import Intake
from penstock.capture.noted_frontier import NotedFrontier
from penstock.capture.queue import InflightEventQueue
from penstock.capture.reader import Reader
from penstock.decoding.decoder import Decoder
from penstock.kinesis.aws.backoff import full_jitter
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.kinesis.write.batcher import MicroBatcher
from penstock.kinesis.write.mark_pace import MarkPace
from penstock.kinesis.write.marker import Marker
from penstock.kinesis.write.marks import Marks, Signature
from penstock.kinesis.write.partition_key import PartitionKeys
from penstock.kinesis.write.plan import PublishPlan
from penstock.kinesis.write.ports import CaptureSink
from penstock.kinesis.write.publisher import KinesisPublisher
from penstock.kinesis.write.quarantine_places import open_quarantine
from penstock.kinesis.write.sending import Sending
from penstock.kinesis.write.undeliverable import UndeliverablePolicy
from penstock.model.key_indexes import KeyIndexes
from penstock.model.relation import Relation
from penstock.model.stream_position import History
from penstock.postgres.leader.answering import Answering
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.slot.note import NoteStore, SlotNote
from penstock.postgres.stream.feedback import Feedback, StatusLine
from penstock.postgres.stream.replication import FrameSource
from penstock.postgres.stream.walk import FrameWalk
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.kinesis import KinesisSettings
from penstock.settings.services import CaptureSettings
from penstock.settings.timings import Timings
from penstock.status.health import Health
from penstock.status.metrics import CaptureMetrics

_AIM: Final = 0.5
"""KINESIS_BATCH_MAX_DELAY_MS is an upper bound, and timers are late: the batcher aims at this share of it."""
_MANY_NEW: Final = 20_000
"""So many new objects are alive before the garbage collector looks at them; far more than work needs."""


class Line(FrameSource, StatusLine, Protocol):
    """A replication stream, as the pipeline sees it."""


class SlotStart(NamedTuple):
    """Where the slot stands as a leadership begins."""

    lsn: int
    server: ServerIdentity
    note: SlotNote
    note_store: NoteStore | None
    """None: no note is kept."""


class Pipeline:
    """Stream to reader to queue to publisher, and the frontier back. A new one for each leadership."""

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        line: Line,
        decoder: Decoder,
        start: SlotStart,
        sink: CaptureSink,
        key_indexes: Callable[[Relation], Awaitable[KeyIndexes]],
        freshness: Freshness,
        health: Health,
        metrics: CaptureMetrics,
    ) -> None:
        jitter = partial(full_jitter, rng=random.Random())  # noqa: S311 - spreads retries, guards nothing
        sending = Sending(freshness, health, metrics, jitter, settings.leader.sink_outage_disconnect_s)
        history = History(start.server.timeline, start.server.switch_points)
        by = secrets.token_hex(6)
        prefix = MarkPrefix(history, by) if settings.kinesis.marked_stream else None
        keys = PartitionKeys.of(decoder, settings.partition_key)
        undeliverable = _undeliverable(settings, decoder, sending)
        self.tracker = AckTracker(initial_lsn=start.lsn)
        self.queue = InflightEventQueue(
            max_messages=settings.inflight.max_messages, max_bytes=settings.inflight.max_bytes
        )
        self.walk = FrameWalk(decoder, confirmed_lsn=start.lsn)
        self.intake = Intake(
            walk=self.walk,
            tracker=self.tracker,
            keys=keys,
            publish_transactions=settings.content.include_transactions,
            max_event_bytes=min(settings.kinesis.max_record_bytes, settings.inflight.max_bytes),
            window=settings.inflight.ack_window_max,
            prefix=prefix,
        )
        self.marker = None
        if settings.kinesis.marked_stream:
            self.marker = Marker(
                marks=Marks(start.lsn),
                signature=Signature(start.server.system_id, settings.replication.slot, by, history),
                tracker=self.tracker,
                sink=sink,
                sending=sending,
                pace=MarkPace(interval_s=settings.kinesis.mark_interval_ms / 1000, now=time.monotonic()),
            )
        self.noted = NotedFrontier(
            self.marker or self.tracker,
            store=start.note_store,
            note=start.note,
            accepted=lambda: (
                self.tracker.drained_count if self.marker is None else self.marker.marked_records
            ),
            on_moved=lambda: self.feedback.send_if_moved(),
        )
        self.feedback = Feedback(
            line=line,
            tracker=self.noted,
            received_lsn=lambda: self.walk.received_lsn,
            heartbeat_s=Timings.of(settings.leader.timeout_s).heartbeat_s,
        )
        self.publisher = KinesisPublisher(
            queue=self.queue,
            tracker=self.tracker,
            plan=_publish_plan(settings.kinesis, jitter, undeliverable.patience_s),
            sink=sink,
            undeliverable=undeliverable,
            sending=sending,
            on_accepted=None if self.marker is None else self.marker.accepted,
        )
        self.reader = Reader(
            source=line,
            intake=self.intake,
            queue=self.queue,
            keys=keys,
            key_indexes=key_indexes,
            stand_in=undeliverable.stand_in,
            answering=Answering(self.walk, self.feedback, freshness),
            sink_room=self._sink_room,
        )
        self._tell_when_something_moves()
        _spare_the_collector()

    async def _sink_room(self) -> None:
        """Nothing is read, and so nothing published, that no manifest could speak of."""
        if self.marker is not None:
            await self.marker.begun()
        await self.publisher.room()

    def _tell_when_something_moves(self) -> None:
        self.publisher.on_marked(self.feedback.send_if_moved)
        self.publisher.on_marked(self.reader.window_moved)
        self.publisher.on_marked(self.noted.moved)
        if self.marker is not None:
            self.marker.on_moved(self.feedback.send_if_moved)
            self.marker.on_moved(self.noted.moved)


def _undeliverable(settings: CaptureSettings, decoder: Decoder, sending: Sending) -> UndeliverablePolicy:
    url = settings.undeliverable.quarantine_url if settings.undeliverable.policy == "quarantine" else None
    return UndeliverablePolicy(
        store=None if url is None else open_quarantine(url, settings.kinesis.region),
        slot=settings.replication.slot,
        summary=decoder.summary,
        health=sending.health,
        metrics=sending.metrics,
        backoff=sending.backoff,
    )


def _publish_plan(
    settings: KinesisSettings, backoff: Callable[[int], float], refusal_patience_s: float
) -> PublishPlan:
    return PublishPlan(
        batcher=MicroBatcher(
            max_records=settings.batch_max_records,
            max_bytes=settings.batch_max_bytes,
            max_delay_s=_AIM * settings.batch_max_delay_ms / 1000,
        ),
        max_requests=settings.max_requests,
        backoff=backoff,
        refusal_patience_s=refusal_patience_s,
    )


def _spare_the_collector() -> None:
    """Take what is alive now out of the garbage collector's sight, and let it look at the rest seldom.

    A full collection stops the event loop while it walks every object, and nearly all of them (botocore's
    models, above all) live as long as the process: 50 ms for nothing. What an earlier leadership left
    behind is let in again and collected first. Of what is new, frames and answers are hundreds, and alive for
    a moment only; by default the collector would walk over them, and over each list that holds them, a
    hundred times a second.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_MANY_NEW, *gc.get_threshold()[1:])
