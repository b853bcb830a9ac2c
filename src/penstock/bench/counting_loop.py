"""The least that Python can do with a stream: botocore's GetRecords, shard after shard, and a count.

Each loop is a process of its own, as each task of Spark's is. It says when it is ready, begins when it is
told to, and prints what it found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import botocore.session

_MOST_RECORDS: Final = 10_000


class Counted(NamedTuple):
    """What loops have read, each its share of the shards at the same time."""

    records: int
    seconds: float
    """Of the one that took longest."""
    cpu_s: float


def count_records(url: str, region: str, stream: str, shards: Sequence[str], loops: int) -> Counted:
    """Read everything that these shards have; credentials are in the environment."""
    children = [_start(url, region, stream, shards[number::loops]) for number in range(loops)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    found = [Counted(**json.loads(child.communicate()[0])) for child in children]
    return Counted(
        sum(each.records for each in found),
        max(each.seconds for each in found),
        sum(each.cpu_s for each in found),
    )


def _start(url: str, region: str, stream: str, shards: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.bench.counting_loop", url, region, stream, *shards]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _read(client: Any, stream: str, shard: str) -> int:
    count = 0
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")[
        "ShardIterator"
    ]
    while True:
        answer = client.get_records(ShardIterator=iterator, Limit=_MOST_RECORDS)
        if not answer["Records"]:
            return count
        count += len(answer["Records"])
        iterator = answer["NextShardIterator"]


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("region")
    parser.add_argument("stream")
    parser.add_argument("shards", nargs="+")
    options = parser.parse_args()
    client = botocore.session.Session().create_client(
        "kinesis", region_name=options.region, endpoint_url=options.url
    )
    print("ready", flush=True)
    sys.stdin.readline()
    began_at, cpu_before_s = time.perf_counter(), time.process_time()
    records = sum(_read(client, options.stream, shard) for shard in options.shards)
    seconds, cpu_s = time.perf_counter() - began_at, time.process_time() - cpu_before_s
    print(json.dumps(Counted(records, seconds, cpu_s)._asdict()))


if __name__ == "__main__":
    _main()
