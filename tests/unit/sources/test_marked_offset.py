"""What a checkpoint keeps of a query over a marked stream, and whose it is."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.manifest_log import Place
from penstock.kinesis.read.marked_plan import MarkedOffset
from penstock.model.stream_position import StreamPosition
from penstock.sources.marked_offset import offset_json, parse_offset
from penstock.sources.marked_query import MarkedQuery
from penstock.sources.marked_source import MarkedStreamReader

BEGINS, RESOLVED = (str(StreamPosition(1, lsn)) for lsn in (10, 20))
OFFSET = MarkedOffset(RESOLVED, Place("shardId-000000000001", 10**55), "7", BEGINS)
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/shop"


@pytest.mark.parametrize("offset", [OFFSET, OFFSET._replace(place=None, begins_behind=Place("s", 1))])
def test_an_offset_comes_back(offset: MarkedOffset) -> None:
    kept = json.loads(json.dumps(offset_json(offset, stream="shop", slot="etl")))
    assert parse_offset(kept, stream="shop", slot="etl") == offset
    assert parse_offset(kept, stream=ARN, slot="etl") == offset


def test_where_a_query_begins_is_only_a_word() -> None:
    assert parse_offset({"start": "latest"}, stream="shop", slot="etl") is None


@pytest.mark.parametrize(
    ("stream", "slot", "sentence"),
    [
        ("shop", "other", "is of the slot etl, and the query reads the slot other"),
        ("other", "etl", "is of the stream shop, and the query reads the stream other"),
    ],
)
def test_a_checkpoint_is_of_one_slot_and_stream(stream: str, slot: str, sentence: str) -> None:
    kept = offset_json(OFFSET, stream=ARN, slot="etl")
    with pytest.raises(StreamReadError, match=sentence):
        parse_offset(kept, stream=stream, slot=slot)
    options = {"kinesis.streamName": stream, "kinesis.region": "eu-west-1", "slot": slot}
    reader = MarkedStreamReader(MarkedQuery.parse(options), None)
    with pytest.raises(StreamReadError, match=sentence):
        reader.latestOffset(kept, ReadAllAvailable())
    with pytest.raises(StreamReadError, match=sentence):
        reader.partitions({"start": "earliest"}, kept)


def test_an_older_checkpoint_names_neither() -> None:
    kept = offset_json(OFFSET, stream="shop", slot="etl")
    del kept["stream"], kept["slot"]
    assert parse_offset(kept, stream="other", slot="other") == OFFSET
