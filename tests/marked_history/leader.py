"""A leadership of capture, from its pure parts, effect by effect: it may stop between any two of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.capture.ack import AckTracker
from penstock.capture.intake import Intake
from penstock.decoding.wal2json import Wal2Json
from penstock.kinesis.aws.outcome import Entry, Outcome, Taken, judge
from penstock.kinesis.marked.manifest import Manifest, encode, partition_key
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.kinesis.write.batcher import MicroBatcher
from penstock.kinesis.write.marks import Marks, Signature
from penstock.kinesis.write.partition_key import Fallback, PartitionKeys
from penstock.kinesis.write.plan import PublishPlan, Request
from penstock.model.key_indexes import KeyIndexes
from penstock.postgres.stream.walk import FrameWalk
from tests.marked_history.delayed_stream import DelayedStream
from tests.marked_history.server import Server

SYSTEM, SLOT = "7", "slot"
THROTTLED = Entry(error="ProvisionedThroughputExceededException")
REFUSED = Entry(error="ValidationException")

Failing = Callable[[int], Entry | None]
"""What becomes of each record of a request that isn't accepted."""


class Sizes(NamedTuple):
    """How much a leadership does at once, and how much it keeps."""

    batch_records: int = 4
    requests: int = 2
    spans: int = 2_000
    overtaking: int = 5_000


@dataclass
class Put:
    """A request on its way: it is carried out once, late, more than once, or never."""

    stream: DelayedStream
    records: list[tuple[str, bytes]]
    request: Request | None = None
    """None: it is a manifest."""
    after: int = 0
    """A manifest gets a higher number than this."""
    entries: list[Entry] | None = None
    """What Kinesis answered."""
    places: set[tuple[str, int]] = field(default_factory=set)
    """Shards and numbers under which records of it stand."""

    def carry_out(self, failing: Failing | None = None, *, early: bool = False) -> None:
        found = []
        for place, (key, data) in enumerate(self.records):
            failure = failing(place) if failing is not None else None
            entry = failure or self.stream.accept(key, data, early=early, after=self.after)
            if entry.code is None:
                self.places.add((entry.shard, int(entry.sequence)))
            found.append(entry)
        self.entries = self.entries or found


class Leader:
    """1. `take` frames; `send` a request, which is then carried out by whoever has the Put.

    2. `hear` the answer, or `give_up` the request: it may be carried out all the same, at any time.
    3. `mark` sends a manifest; `hear_mark` and `give_up_mark` as before.
    4. `tell` Postgres, for as long as the line holds. One whose line is lost has still what it had received.
    """

    def __init__(self, server: Server, by: str, stream: DelayedStream, marks: DelayedStream, sizes: Sizes):
        start = server.confirmed_lsn
        self.server = server
        self._stream, self._marks_stream = stream, marks
        self._prefix = MarkPrefix(server.history, by)
        self._signature = Signature(SYSTEM, SLOT, by, server.history)
        self._tracker = AckTracker(initial_lsn=start)
        self._keys = PartitionKeys(Wal2Json(), by_primary_key=True, fallback=Fallback.TABLE)
        self._intake = Intake(
            walk=FrameWalk(Wal2Json(), confirmed_lsn=start),
            tracker=self._tracker,
            keys=self._keys,
            publish_transactions=False,
            max_event_bytes=10_000,
            window=1_000_000,
            prefix=self._prefix,
        )
        self._plan = PublishPlan(
            batcher=MicroBatcher(max_records=sizes.batch_records, max_bytes=100_000, max_delay_s=0.0),
            max_requests=sizes.requests,
            backoff=lambda _attempt: 0.0,
        )
        self._marks = Marks(start, most_spans=sizes.spans, most_uncounted=sizes.overtaking)
        self._start_lsn = start
        self._read = 0
        """So many entries of the server's log are in frames, or were."""
        self._sees: int | None = None
        """When the line was lost, so many were on their way."""
        self._frames: list[bytes] = []
        self.puts: list[Put] = []
        """Requests that are not answered."""
        self.mark_put: Put | None = None
        self._after = 0

    def lose_line(self) -> None:
        if self._sees is None:
            self._sees = len(self.server.log)

    def take(self, count: int) -> None:
        """Take so many frames, if there are any."""
        log = self.server.log
        end = len(log) if self._sees is None else self._sees
        while len(self._frames) < count and self._read < end:
            entry = log[self._read]
            self._read += 1
            if entry.commit_lsn >= self._start_lsn:
                self._frames += entry.frames()
        taken, self._frames = self._frames[:count], self._frames[count:]
        frames, at = [memoryview(frame) for frame in taken], 0
        while at < len(frames):
            batch = self._intake.take(frames, at, 0.0)
            self._plan.add(batch.events, 0.0)
            if batch.unknown is not None:
                self._keys.learn(batch.unknown, KeyIndexes(["id"]))
            at = batch.next_frame

    def send(self) -> Put | None:
        request = self._plan.next_request(0.0)
        if request is None:
            return None
        records = [(event.partition_key, event.data) for event in request.events]
        self.puts.append(Put(self._stream, records, request))
        return self.puts[-1]

    def hear(self, put: Put) -> None:
        assert put.request is not None, "records"
        assert put.entries is not None, "it is carried out"
        self.puts.remove(put)
        request, entries = put.request, put.entries
        outcomes = judge([event.partition_key for event in request.events], entries)
        settled = self._plan.settle(request, outcomes, 0.0)
        taken = [each for each, what in zip(entries, outcomes, strict=True) if what is Outcome.ACCEPTED]
        if settled.accepted:
            self._tracker.mark_published_ids([event.ack_id for event in settled.accepted])
            self._marks.accepted(settled.accepted, Taken.of(taken), self._tracker.frontier_lsn)
        for event in settled.undeliverable:
            if not event.is_pointer:
                serial = json.loads(event.payload)["serial"]
                event.payload, event.is_pointer = b'{"action":"Q","serial":%d}' % serial, True
            self._plan.replace(event, 0.0)

    def give_up(self, put: Put) -> None:
        assert put.request is not None, "records"
        self.puts.remove(put)
        self._plan.fail(put.request, 0.0)

    def mark(self) -> Put:
        """Send a manifest."""
        manifest: Manifest = self._signature.manifest(self._marks.draft(self._tracker.frontier_lsn))
        records = [(partition_key(SLOT), encode(manifest))]
        self.mark_put = Put(self._marks_stream, records, after=self._after)
        return self.mark_put

    def hear_mark(self) -> None:
        put, self.mark_put = self.mark_put, None
        assert put is not None, "a manifest is under way"
        assert put.entries is not None, "it is carried out"
        if put.entries[0].error is not None:
            self._marks.take_back()
            return
        self._marks.settle()
        self._after = int(put.entries[0].sequence)

    def give_up_mark(self) -> None:
        assert self.mark_put is not None, "a manifest is under way"
        self.mark_put = None
        self._marks.take_back()

    def tell(self) -> None:
        if self._sees is None:
            self.server.confirm(self._marks.since_lsn)

    def flow(self) -> Put:
        """All of it, without a fault, for one that has just begun; returns the manifest."""
        self.take(1_000_000)
        while self._plan.is_active:
            while self.send() is not None:
                pass
            for put in list(self.puts):
                put.carry_out()
                self.hear(put)
        put = self.mark()
        put.carry_out()
        self.hear_mark()
        self.tell()
        return put
