"""Looks at a stream in memory; test_look_model.py has all that can be said in general."""

from __future__ import annotations

from datetime import timedelta

from penstock.kinesis.read.look import Look
from penstock.kinesis.read.reach import UNLIMITED
from penstock.kinesis.read.stream_offset import Starting
from penstock.kinesis.read.watch import watch
from tests.stream_in_memory import StreamInMemory


def test_a_doubt_after_a_long_rest_brings_nothing_from_before_the_start() -> None:
    stream = StreamInMemory(1)
    [shard] = stream.open_shards()
    stream.put(shard)
    stream.pass_time(timedelta(seconds=10))
    offset = Starting("LATEST", None).offset("s", stream.shards(), stream.now)

    stream.pass_time(timedelta(hours=23))
    doubting = Look(offset, stream.shards(), stream.now)
    offset = watch(stream, doubting, UNLIMITED)
    assert doubting.losses
    late = stream.put(shard)
    [part] = watch(stream, Look(offset, stream.shards(), stream.now), UNLIMITED).ranges()

    assert (part.first, part.last) == (late, late)
