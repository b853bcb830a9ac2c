"""The parts of one leadership, wired together."""

from __future__ import annotations

import gc
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

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
from penstock.kinesis.write.undeliverable import UndeliverablePolicy
from penstock.model.key_indexes import KeyIndexes
from penstock.model.stream_position import History
from penstock.postgres.leader.answering import Answering
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.slot.note import NoteStore, SlotNote
from penstock.postgres.stream.feedback import Feedback, StatusLine
from penstock.postgres.stream.replication import FrameSource
from penstock.postgres.stream.walk import FrameWalk
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.services import CaptureSettings
from penstock.settings.timings import Timings
from penstock.status.capture_metrics import CaptureMetrics
from penstock.status.health import Health

_AIM: Final = 0.5
"""KINESIS_BATCH_MAX_DELAY_MS is an upper bound, and timers are late: the batcher aims at this share of it."""


class Line(FrameSource, StatusLine, Protocol):
    """A replication stream, as the pipeline sees it."""


class Pipeline:
    """Stream to reader to queue to publisher, and the frontier back. A new one for each leadership."""

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        line: Line,
        decoder: Decoder,
        start_lsn: int,
        server: ServerIdentity,
        note: SlotNote,
        note_store: NoteStore | None,
        sink: CaptureSink,
        key_indexes: Callable[[str, str], Awaitable[KeyIndexes]],
        freshness: Freshness,
        health: Health,
        metrics: CaptureMetrics,
    ) -> None:
        jitter = partial(full_jitter, rng=random.Random())  # noqa: S311 - spreads retries, guards nothing
        self.tracker = AckTracker(initial_lsn=start_lsn)
        self.queue = InflightEventQueue(
            max_messages=settings.inflight.max_messages, max_bytes=settings.inflight.max_bytes
        )
        keys = PartitionKeys.of(decoder, settings.partition_key)
        self.walk = FrameWalk(decoder, confirmed_lsn=start_lsn)
        history, by = History(server.timeline, server.switch_points), secrets.token_hex(6)
        prefix = MarkPrefix(history, by) if settings.kinesis.marked_stream else None
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
                marks=Marks(start_lsn),
                signature=Signature(server.system_id, settings.replication.slot, by, history),
                tracker=self.tracker,
                sink=sink,
                freshness=freshness,
                health=health,
                metrics=metrics,
                pace=MarkPace(interval_s=settings.kinesis.mark_interval_ms / 1000, now=time.monotonic()),
                backoff=jitter,
                outage_limit_s=settings.leader.sink_outage_disconnect_s,
            )
        self.noted = NotedFrontier(
            self.marker or self.tracker,
            store=note_store,
            note=note,
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
        quarantine_url = settings.undeliverable.quarantine_url
        quarantining = settings.undeliverable.policy == "quarantine" and quarantine_url is not None
        undeliverable = UndeliverablePolicy(
            store=(
                open_quarantine(quarantine_url, settings.kinesis.region)
                if quarantining and quarantine_url
                else None
            ),
            slot=settings.replication.slot,
            summary=decoder.summary,
            prefix=prefix,
            health=health,
            metrics=metrics,
            backoff=jitter,
        )
        self.publisher = KinesisPublisher(
            queue=self.queue,
            tracker=self.tracker,
            plan=PublishPlan(
                batcher=MicroBatcher(
                    max_records=settings.kinesis.batch_max_records,
                    max_bytes=settings.kinesis.batch_max_bytes,
                    max_delay_s=_AIM * settings.kinesis.batch_max_delay_ms / 1000,
                ),
                max_requests=settings.kinesis.max_requests,
                backoff=jitter,
                refusal_patience_s=undeliverable.patience_s,
            ),
            sink=sink,
            undeliverable=undeliverable,
            freshness=freshness,
            health=health,
            metrics=metrics,
            max_requests=settings.kinesis.max_requests,
            outage_limit_s=settings.leader.sink_outage_disconnect_s,
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
            sink_room=self.publisher.room,
        )
        self.publisher.on_marked(self.feedback.send_if_moved)
        self.publisher.on_marked(self.reader.window_moved)
        self.publisher.on_marked(self.noted.moved)
        if self.marker is not None:
            self.marker.on_moved(self.feedback.send_if_moved)
            self.marker.on_moved(self.noted.moved)
        _spare_the_collector()


def _spare_the_collector() -> None:
    """Take what is alive now out of the garbage collector's sight.

    A full collection stops the event loop while it walks every object, and nearly all of them (botocore's
    models, above all) live as long as the process: 50 ms for nothing. What an earlier leadership left
    behind is let in again and collected first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
