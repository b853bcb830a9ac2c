"""A marked stream made at random, read in batches by a reader that restarts: every change, once, in order.

The writer is a model of capture: leaderships that end anywhere and begin where the slot stands, manifests
whose answers are lost, repeats, records of others in between, other filters, and shards that are split. What
a reader should see is what the plain reader of the demo sees, which shares no code with this one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.demo.stream_reader import StreamReader
from penstock.kinesis.aws.outcome import Entry, Taken
from penstock.kinesis.marked.manifest import Manifest, decode, encode, partition_key
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.kinesis.read.client import MOST_RECORDS, Page, ReadRecord, Start, StreamClient
from penstock.kinesis.read.manifest_log import ManifestLog, Place
from penstock.kinesis.read.marked_plan import MarkedOffset, MarkedPlan, ReadLimits
from penstock.kinesis.read.marked_ranges import MarkedRecord, plan_tasks, read_task
from penstock.kinesis.read.shards import ShardInfo
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.marks import Marks, Signature
from penstock.model.stream_position import History

SLOT = "slot"
HISTORY = History(1, {})
TOP = 2**128 - 1
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class MemoryStream:
    """Shards in memory; a page has a few records, and some pages have none."""

    stream = "memory"
    listed_at: datetime | None = None

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        middle = TOP // 2
        self._shards = {
            "shard-0": ShardInfo("shard-0", 0, middle),
            "shard-1": ShardInfo("shard-1", middle + 1, TOP),
        }
        self._records: dict[str, list[ReadRecord]] = {name: [] for name in self._shards}
        self._next = 7

    def put(self, key: str, data: bytes) -> Entry:
        (shard,) = (each for each in self._shards.values() if not each.is_closed and each.has_key(key))
        self._next += self._rng.randrange(1, 40)
        self._records[shard.shard_id].append(ReadRecord(self._next, key, data, NOW))
        return Entry(shard=shard.shard_id, sequence=str(self._next))

    def split(self) -> None:
        shard = self._rng.choice([each for each in self._shards.values() if not each.is_closed])
        middle = (shard.low + shard.high) // 2
        self._shards[shard.shard_id] = shard._replace(is_closed=True)
        for low, high in ((shard.low, middle), (middle + 1, shard.high)):
            name = f"shard-{len(self._shards)}"
            self._shards[name] = ShardInfo(name, low, high, (shard.shard_id,))
            self._records[name] = []

    def between(self, shard: str, first: int, last: int) -> list[tuple[int, bytes]]:
        return [(each.sequence, each.data) for each in self._records[shard] if first <= each.sequence <= last]

    def shards(self) -> list[ShardInfo]:
        return list(self._shards.values())

    def pages(self, shard_id: str, start: Start, *, most: int = MOST_RECORDS) -> Iterator[Page]:
        first = {"TRIM_HORIZON": 0, "AT_SEQUENCE_NUMBER": start.sequence or 0}.get(
            start.kind, (start.sequence or 0) + 1
        )
        rest = [record for record in self._records[shard_id] if record.sequence >= first]
        is_closed = self._shards[shard_id].is_closed
        while True:
            size = self._rng.randrange(min(4, most + 1))
            page, rest = rest[:size], rest[size:]
            # A closed shard ends with its last records, or with an empty page behind them.
            is_last = is_closed and not rest and (not page or self._rng.random() < 0.5)
            yield Page(page, 1000 * bool(rest), is_last)
            if is_last:
                return


class Capture:
    """Writes transactions of a few changes each, as capture would."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.stream = MemoryStream(rng)
        self.log: list[tuple[int, int, list[str]]] = []
        """Of each transaction: its commit LSN, its end, and the keys of its changes."""
        self.confirmed = 100
        self.leaderships = 0

    def commit(self) -> None:
        lsn = (self.log[-1][1] if self.log else 100) + self.rng.randrange(3)
        keys = [f"row {self.rng.randrange(12)}" for _ in range(self.rng.randrange(1, 6))]
        self.log.append((lsn, lsn + 5, keys))

    def lead(self, transactions: int) -> None:
        """Publish from where the slot stands, and end after so many transactions, in the midst of one."""
        rng = self.rng
        self.leaderships += 1
        by = f"{self.leaderships:012x}"
        prefix, marks = MarkPrefix(HISTORY, by), Marks(self.confirmed)
        signature = Signature("7", SLOT, by, HISTORY)
        frontier = self.confirmed
        filtered = rng.choice([None, None, "row 0", "row 1"])
        for lsn, end, keys in [each for each in self.log if each[0] >= self.confirmed][:transactions]:
            events, entries = [], []
            waiting = []
            for place, key in enumerate(keys):
                if key == filtered:
                    continue
                data = prefix.put(b'{"action":"I","at":"%d.%d"}' % (lsn, place), lsn, 2 * place)
                assert data is not None
                event = ChangeEvent(1, data, key, len(data), lsn, 2 * place, 0.0)
                if rng.random() < 0.2:
                    self.stream.put(key, data)  # it slipped through, and is sent again
                    waiting.append(event)
                else:
                    events.append(event)
                    entries.append(self.stream.put(key, data))
                if rng.random() < 0.05:
                    self.stream.put(key, b"somebody else's")
                if rng.random() < 0.05:
                    self.stream.split()
            events += waiting
            entries += [self.stream.put(event.partition_key, event.payload) for event in waiting]
            if rng.random() < 0.05:
                return  # killed before its last transaction was complete
            frontier = end
            marks.accepted(events, Taken.of(entries), frontier)
            if rng.random() < 0.6:
                draft = marks.draft(frontier)
                self.stream.put(partition_key(SLOT), encode(signature.manifest(draft)))
                if rng.random() < 0.3:
                    marks.take_back()  # the answer was lost
                    continue
                marks.settle()
                if rng.random() < 0.8:
                    self.confirmed = marks.since_lsn

    def told(self) -> list[str]:
        """What the plain reader sees, by position."""
        log = ManifestLog(cast(StreamClient, self.stream), SLOT)
        reader = StreamReader("7", SLOT, self.stream.between)
        manifests = [encode(manifest) for _, manifest in log.read(None)]
        seen = [payload for changes in reader.transactions(manifests) for payload in changes]
        reader.end()
        places = [json.loads(payload)["at"].split(".") for payload in seen]
        return [f"00000001.{int(lsn):016X}.{2 * int(place) + 1:012X}" for lsn, place in places]


def first_manifest(log: ManifestLog) -> tuple[Place, Manifest] | None:
    return next(iter(log.read(None)), None)


def read_batch(stream: MemoryStream, plan: MarkedPlan, start: MarkedOffset, end: MarkedOffset) -> list[str]:
    shards = {shard.shard_id: shard for shard in stream.shards()}
    links = [link for link in plan.links(start, end, 0.0) if link.manifest.changes]
    found: list[MarkedRecord] = []
    for task in plan_tasks(links, shards, end.resolved) if links else []:
        found += read_task(cast(StreamClient, stream), task)
    return [record.position for record in sorted(found)]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_every_change_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    capture = Capture(rng)
    log = ManifestLog(cast(StreamClient, capture.stream), SLOT)
    plan = MarkedPlan(log.read, SLOT)
    offset: MarkedOffset | None = None
    read: list[str] = []
    for _ in range(rng.randrange(2, 12)):
        for _ in range(rng.randrange(8)):
            capture.commit()
        if rng.random() < 0.8:
            capture.lead(rng.randrange(1, 10))
        if offset is None:
            found = first_manifest(log)
            if found is None:
                continue
            offset = MarkedOffset(found[1].since, None, "7", found[1].since)
        for _ in range(rng.randrange(4)):
            if rng.random() < 0.3:
                plan = MarkedPlan(log.read, SLOT)  # a restart, which knows nothing but the offset
            limits = ReadLimits(changes=rng.choice([None, 1, 5, 20]))
            end = plan.advance(offset, limits, 0.0)
            batch = read_batch(capture.stream, plan, offset, end)
            again = read_batch(capture.stream, MarkedPlan(log.read, SLOT), offset, end)
            assert batch == again, "the same offsets give the same changes"
            read += batch
            offset = end
    if offset is None:
        return
    end = plan.advance(offset, ReadLimits(), 0.0)
    read += read_batch(capture.stream, plan, offset, end)
    assert read == capture.told()


def test_manifests_survive_their_encoding() -> None:
    rng = random.Random(1)
    capture = Capture(rng)
    for _ in range(20):
        capture.commit()
    while first_manifest(ManifestLog(cast(StreamClient, capture.stream), SLOT)) is None:
        capture.lead(20)
    for _, manifest in ManifestLog(cast(StreamClient, capture.stream), SLOT).read(None):
        assert decode(encode(manifest)) == manifest
