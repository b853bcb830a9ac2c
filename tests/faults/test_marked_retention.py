"""Retention passes a marked stream's readers, or the stream itself is replaced: an error, never a hole."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from penstock.demo.marked_stream import MarkedStream
from penstock.kinesis.read.chain import StreamGap
from penstock.kinesis.read.errors import RecordsExpired, StreamReadError
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import CaptureSite
from tests.servers.marked_reader import MarkedReader


@pytest.fixture
def marks_stream(kinesis: LocalKinesis, stream: str) -> Iterator[str]:
    name = f"{stream}-marks"
    kinesis.create_stream(name, 1)
    yield name
    kinesis.delete_stream(name)


@pytest.fixture
def site(
    postgres: PrivatePostgres,
    database: str,
    kinesis: LocalKinesis,
    stream: str,
    marks_stream: str,
    monkeypatch: pytest.MonkeyPatch,
) -> CaptureSite:
    for name, value in kinesis.env().items():
        monkeypatch.setenv(name, value)
    site = CaptureSite(
        postgres,
        database,
        kinesis,
        stream,
        KINESIS_MARKED_STREAM="true",
        KINESIS_MARK_INTERVAL_MS=10,
        KINESIS_MARKS_STREAM=marks_stream,
    )
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    return site


def insert(site: CaptureSite, first: int, last: int) -> None:
    """A transaction of one row each."""
    site.psql("".join(f"BEGIN; INSERT INTO t VALUES ({row}); COMMIT;" for row in range(first, last)))
    site.wait_until_confirmed()


def reader_of(site: CaptureSite) -> MarkedReader:
    return MarkedReader(site, marks_stream=f"{site.stream}-marks")


def ids(transactions: list[list[bytes]]) -> list[int]:
    return [json.loads(change)["columns"][0]["value"] for changes in transactions for change in changes]


def split_first(site: CaptureSite) -> None:
    site.kinesis.client.split_shard(
        StreamName=site.stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
    )


def test_records_expire_before_they_are_read(site: CaptureSite) -> None:
    """Their manifests are still there. A reader that has a position is told; a new one begins behind."""
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 1, 20)
        behind = reader_of(site)
        assert ids(behind.read()) == list(range(1, 20))
        insert(site, 20, 40)
        split_first(site)
        kept_from = time.time()
        insert(site, 40, 60)
        current = reader_of(site)
        assert ids(current.read()) == list(range(1, 60))
        site.kinesis.expire(site.stream, kept_from)
        new = reader_of(site)
        assert ids(new.read()) == list(range(40, 60))
        insert(site, 60, 70)
    assert ids(new.read()) == ids(current.read()) == list(range(60, 70))
    place = behind.offset
    with pytest.raises(RecordsExpired, match=r"retention\s+has passed them"):
        behind.read()
    assert behind.offset == place, "nothing was skipped"


def test_a_closed_shard_expires_before_it_is_read(site: CaptureSite) -> None:
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 1, 5)
        behind = reader_of(site)
        assert ids(behind.read()) == [1, 2, 3, 4]
        insert(site, 5, 40)
        split_first(site)
    site.kinesis.expire(site.stream, time.time())
    shards = [each["ShardId"] for each in site.kinesis.client.list_shards(StreamName=site.stream)["Shards"]]
    assert "shardId-000000000000" not in shards
    with pytest.raises(RecordsExpired, match="shardId-000000000000: no such shard any more"):
        behind.read()
    with pytest.raises(RecordsExpired, match="manifests are gone"):
        reader_of(site).read()


def test_manifests_expire_before_they_are_read(site: CaptureSite, marks_stream: str) -> None:
    """The records are still there, and nobody knows where: a gap, with both of its ends."""
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 1, 20)
        behind = reader_of(site)
        behind.read()
        insert(site, 20, 40)
        site.kinesis.expire(marks_stream, time.time())
        insert(site, 40, 60)
    first = MarkedStream([], site.slot, site.kinesis.read_all(marks_stream)).spoken()[0]
    ends = [f"{int(lsn[:8], 16):X}/{int(lsn[8:], 16):X}" for lsn in (resolved(behind), first["since"][9:25])]
    said = "Applied is everything up to {} of timeline 1, and the next manifest begins at {} of timeline 1"
    with pytest.raises(StreamGap, match=re.escape(said.format(*ends))):
        behind.read()
    assert ids(reader_of(site).read())[-20:] == list(range(40, 60))


def resolved(reader: MarkedReader) -> str:
    assert reader.offset is not None
    return reader.offset.resolved[9:25]


def test_a_stream_is_deleted_and_created_again(site: CaptureSite, marks_stream: str) -> None:
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 1, 20)
        behind = reader_of(site)
        behind.read()
    for name in (site.stream, marks_stream):
        site.kinesis.delete_stream(name)
    site.kinesis.create_stream(marks_stream, 1)
    site.kinesis.create_stream(site.stream, 4)
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 20, 60)
    with pytest.raises(StreamReadError, match="The stream was deleted and created again"):
        behind.read()
    assert ids(reader_of(site).read()) == list(range(20, 60))


def test_the_records_stream_alone_is_created_again(site: CaptureSite) -> None:
    """Manifests go on, those of the former stream included: they name numbers that aren't of this one."""
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 1, 5)
        behind = reader_of(site)
        behind.read()
        insert(site, 5, 20)
    site.kinesis.delete_stream(site.stream)
    site.kinesis.create_stream(site.stream, 4)
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        insert(site, 20, 40)
    with pytest.raises(StreamReadError, match=r"deleted and created again|isn't the one that was written to"):
        behind.read()
    assert ids(reader_of(site).read()) == list(range(20, 40))
