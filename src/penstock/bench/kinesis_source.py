"""`format("penstock")` beside a loop that only counts; for `penstock bench kinesis`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

from penstock.bench.counting_loop import Counted, count_records
from penstock.bench.kinesis_backlog import FilledStream, micros_of, rates_of
from penstock.bench.page_responder import PageResponder, keep_stream
from penstock.bench.spark_jobs import SparkBench
from penstock.bench.spark_source import Read, SourceFailed
from penstock.bench.table import Row, say
from penstock.local.kinesis import LocalKinesis

_TASKS: Final = 2
"""And as many loops."""
_LEAST: Final = 0.4


def source(
    filled: FilledStream, kinesis: LocalKinesis, spark: SparkBench, directory: Path, *, rounds: int
) -> list[Row]:
    """What capture wrote, from a responder that costs both readers next to nothing, by turns."""
    file = directory / "stream.msgpack"
    keep_stream(kinesis, filled.address.stream, file)
    shards = [
        shard["ShardId"] for shard in kinesis.client.list_shards(StreamName=filled.address.stream)["Shards"]
    ]
    loops, reads = list[Counted](), list[Read]()
    with PageResponder(file) as responder:
        address = filled.address._replace(endpoint_url=responder.url)
        stream = spark.source(address)
        if (count := stream.count()) != filled.log.changes:
            raise SourceFailed(f"the stream has {count} changes, not {filled.log.changes}")
        for number in range(rounds + 1):
            say(f"source, round {number} of {rounds}")
            loop = count_records(responder.url, address.region, address.stream, shards, _TASKS)
            read = stream.read()
            if number:
                loops.append(loop)
                reads.append(read)
    changes = filled.log.changes
    counted, found = (
        [each.records / each.seconds for each in loops],
        [changes / each.seconds for each in reads],
    )
    ratio = statistics.median(found) / statistics.median(counted)
    return [
        Row(f'format("penstock") to no-op, {changes} changes, 2 tasks, records/s', rates_of(found), "", None),
        Row("a bare GetRecords loop that counts, 2 processes, records/s", rates_of(counted), "", None),
        Row("ratio of the medians", f"{ratio:.2f}", f"≥ {_LEAST}", ratio >= _LEAST),
        Row("CPU a record, Java and Python, µs", micros_of(reads, changes), "", None),
        Row("… of the bare loop", micros_of(loops, loops[0].records), "", None),
    ]
