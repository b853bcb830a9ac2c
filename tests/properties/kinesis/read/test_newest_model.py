"""A query that begins with `latest`, at any moment of any history of leaders, never finds a gap afterwards.

Leaders come and go, rest, are away for hours, and leave a last manifest that is carried out late. The shard
of the manifests is split meanwhile, and others write to it, too.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import NamedTuple, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kinesis.marked.manifest import Manifest, encode, partition_key
from penstock.kinesis.read.chain import Chain
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.manifest_log import ManifestLog, Place
from penstock.kinesis.read.newest import Newest
from penstock.model.stream_position import StreamPosition
from tests.stream_in_memory import StreamInMemory

SLOT = "slot"
KEY = partition_key(SLOT)


class Arrival(NamedTuple):
    at_s: float
    data: bytes
    is_late: bool = False


def manifest(by: int, since: int, resolved: int) -> bytes:
    low, high = (str(StreamPosition(1, lsn)) for lsn in (since, resolved))
    return encode(Manifest("R", "7", SLOT, f"{by:012x}", low, high, 0, 0, {}, {}))


def history(rng: random.Random) -> list[Arrival]:
    """What arrives, and when: every leader begins where Postgres was told that the one before had come to."""
    told, now = 100, 0.0
    arrivals: list[Arrival] = []
    for by in range(rng.randrange(1, 6)):
        since = told
        for _ in range(rng.randrange(1, 15)):
            resolved = since + rng.choice([0, 0, 1, 5])
            now += 10.0 if resolved == since else rng.choice([0.1, 2.0])
            arrivals.append(Arrival(now, manifest(by, since, resolved)))
            if rng.random() < 0.15:
                continue  # its answer was lost
            since = resolved
            if rng.random() < 0.9:
                told = since
        if rng.random() < 0.5:
            late_s = rng.choice([1.0, 60.0, 4000.0, 20_000.0])
            last = manifest(by, since, since + rng.choice([0, 3]))
            arrivals.append(Arrival(now + late_s, last, is_late=True))
        now += rng.choice([3.0, 30.0, 600.0, 9000.0])
    return sorted(arrivals)


def play(stream: StreamInMemory, arrivals: list[Arrival], rng: random.Random) -> None:
    for arrival in arrivals:
        behind_s = arrival.at_s - (stream.now - BEGAN).total_seconds()
        stream.pass_time(timedelta(seconds=max(0.0, behind_s)))
        if rng.random() < 0.1:
            stream.split(stream.open_shard_of(KEY))
        shard = stream.open_shard_of(KEY)
        if rng.random() < 0.5:
            stream.put(shard)
        stream.put(shard, arrival.data, KEY)


BEGAN = StreamInMemory().now


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_latest_is_never_followed_by_a_gap(seed: int) -> None:
    rng = random.Random(seed)
    stream = StreamInMemory(rng.choice([1, 3]))
    stream.empty_pages = rng.randrange(2)
    log = ManifestLog(cast(StreamClient, stream), SLOT)
    arrivals = history(rng)
    late = [place for place, each in enumerate(arrivals, start=1) if each.is_late]
    looked_at = rng.choice(late) if late else rng.randrange(1, len(arrivals) + 1)
    play(stream, arrivals[:looked_at], rng)
    stream.pass_time(timedelta(seconds=rng.choice([0, 5, 100, 5000])))

    newest, parts = Newest(), []
    for part in log.backwards():
        parts.append(list(part))
        newest.take(parts[-1])
        if newest.is_certain:
            break
    known = list(log.read(None))
    assert [each for part in reversed(parts) for each in part] == known[-sum(map(len, parts)) :]
    offset = newest.offset
    assert offset is not None
    assert offset.place == known[-1][0]

    play(stream, arrivals[looked_at:], rng)
    chain = Chain[Place | None](slot=SLOT, system="7", applied=offset.resolved, place=offset.place)
    for place, found in log.read(offset.place):
        chain.take(found, place)
    assert chain.gap is None
