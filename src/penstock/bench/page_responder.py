"""A GetRecords responder that does as little as possible, in a process of its own.

It has a stream's shards and records from a file, and each record's JSON is made before the first request: a
page is a slice. So what is measured against it is the reader, and not an emulator.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
from bisect import bisect_left
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from penstock.bench.answering import Answer, AnsweringProcess, serve
from penstock.local.kinesis import LocalKinesis

_MOST_RECORDS: Final = 10_000
_ARRIVED: Final = 1_700_000_000.123
_BEHIND_MS: Final = 1_000
"""Nobody asks how far behind exactly: only whether there is more."""


class KeptRecord(NamedTuple):
    """A record of a stream."""

    sequence: str
    partition_key: str
    data: bytes


class KeptStream(msgspec.Struct):
    """What is in the file."""

    shards: list[Any]
    """As ListShards gives them."""
    records: dict[str, list[KeptRecord]]
    """Of each shard, in order."""


class _Shard(NamedTuple):
    sequences: list[int]
    rendered: list[bytes]


def keep_stream(kinesis: LocalKinesis, stream: str, path: Path) -> None:
    """Write what a stream holds now into a file."""
    shards = kinesis.client.list_shards(StreamName=stream)["Shards"]
    kept = KeptStream(shards, {shard["ShardId"]: [] for shard in shards})
    for each in kinesis.read_all(stream):
        kept.records[each.shard_id].append(KeptRecord(each.sequence_number, each.partition_key, each.data))
    path.write_bytes(msgspec.msgpack.encode(kept))


class PageResponder(AnsweringProcess):
    """The responder as a child process, with the stream of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__("penstock.bench.page_responder", str(path))


def _answers(kept: KeptStream) -> Answer:
    listed = msgspec.json.encode({"Shards": kept.shards})
    shards = {name: _shard(records) for name, records in kept.records.items()}

    def answer(head: bytes, body: bytes) -> bytes:
        asked = msgspec.json.decode(body)
        if b"kinesis_20131202.getrecords" in head:
            name, _, begin = asked["ShardIterator"].partition(":")
            return _page(name, shards[name], int(begin), asked.get("Limit", _MOST_RECORDS))
        if b"kinesis_20131202.getsharditerator" in head:
            name = asked["ShardId"]
            place = _place(shards[name], asked["ShardIteratorType"], asked.get("StartingSequenceNumber"))
            return msgspec.json.encode({"ShardIterator": f"{name}:{place}"})
        return listed

    return answer


def _shard(records: list[KeptRecord]) -> _Shard:
    rendered = [
        msgspec.json.encode(
            {
                "SequenceNumber": each.sequence,
                "ApproximateArrivalTimestamp": _ARRIVED,
                "Data": base64.b64encode(each.data).decode(),
                "PartitionKey": each.partition_key,
            }
        )
        for each in records
    ]
    return _Shard([int(each.sequence) for each in records], rendered)


def _place(shard: _Shard, kind: str, number: str | None) -> int:
    if number is None:
        return 0 if kind == "TRIM_HORIZON" else len(shard.sequences)
    return bisect_left(shard.sequences, int(number) + (kind == "AFTER_SEQUENCE_NUMBER"))


def _page(name: str, shard: _Shard, begin: int, most: int) -> bytes:
    end = min(len(shard.rendered), begin + most)
    behind_ms = _BEHIND_MS if end < len(shard.rendered) else 0
    return b'{"Records":[%b],"NextShardIterator":"%b:%d","MillisBehindLatest":%d}' % (
        b",".join(shard.rendered[begin:end]),
        name.encode(),
        end,
        behind_ms,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    stream = msgspec.msgpack.decode(parser.parse_args().path.read_bytes(), type=KeptStream)
    asyncio.run(serve(_answers(stream)))
