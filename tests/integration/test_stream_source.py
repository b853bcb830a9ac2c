"""A marked stream as a source of shapes: where it begins, what `penstock check --from` says, the old slot."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from penstock.finding import Level
from penstock.kinesis.read.client import TRIM_HORIZON
from penstock.kinesis.read.errors import RecordsExpired, StreamReadError
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.stream_position import StreamPosition
from penstock.postgres.slot.moving import SlotMover
from penstock.settings.loading import load_stream_source
from penstock.shapes.definition.source_check import address_of, check_source
from tests.servers.capture_site import CaptureSite

MARKED = {"KINESIS_MARKED_STREAM": "true"}


@pytest.fixture
def site(
    postgres: PrivatePostgres,
    database: str,
    kinesis: LocalKinesis,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
) -> CaptureSite:
    for name, value in kinesis.env().items():
        monkeypatch.setenv(name, value)
    site = CaptureSite(postgres, database, kinesis, stream)
    site.psql("CREATE TABLE t (id int PRIMARY KEY)")
    return site


@pytest.fixture
def address(site: CaptureSite) -> StreamAddress:
    return address_of(load_stream_source(f"kinesis://{site.stream}?slot={site.slot}"))


def write(site: CaptureSite, *ids: int) -> None:
    for number in ids:
        site.psql(f"INSERT INTO t VALUES ({number})")
    site.wait_until_confirmed()


def test_manifests_are_read_from_a_position_on(site: CaptureSite, address: StreamAddress) -> None:
    with site.capture(**MARKED) as capture:
        capture.wait_for_log("streaming")
        write(site, 1, 2)
        stream = MarkedStream(address)
        begins = StreamPosition.parse(stream.begin(None))
        ends = [found.manifest.resolved_position for found in stream.more()]
        assert ends
        assert ends[-1] > begins
        assert not any(found.manifest.changes for found in stream.more())
        write(site, 3)
        more = [found.manifest for found in stream.more() if found.manifest.changes]
        assert more[0].since_position == ends[-1]
        assert set(stream.shards()) >= set(more[0].shards)

        again = MarkedStream(address)
        assert again.begin(ends[0]) == str(ends[0])
        first, *_ = again.more()
        assert first.manifest.since_position <= ends[0]


def test_a_shard_that_is_no_more_has_lost_its_records(address: StreamAddress) -> None:
    client = address.open()
    with pytest.raises(RecordsExpired, match="shardId-000000000099"):
        next(client.pages("shardId-000000000099", TRIM_HORIZON))
    client.close()


def test_check_says_what_the_stream_lacks(site: CaptureSite, address: StreamAddress) -> None:
    settings = load_stream_source(f"kinesis://{site.stream}?slot={site.slot}")
    (unmarked,) = check_source(settings, lambda: None)
    assert (unmarked.level, unmarked.subject) == (Level.FAIL, "stream")
    assert f"has no manifests of the slot {site.slot}" in unmarked.found
    with pytest.raises(StreamReadError, match="KINESIS_MARKED_STREAM=true"):
        MarkedStream(address).begin(None)

    with site.capture(**MARKED) as capture:
        capture.wait_for_log("streaming")
        write(site, 1)
        found = check_source(settings, lambda: None)
        assert [(each.level, each.subject) for each in found] == [
            (Level.OK, "stream"),
            (Level.OK, "manifests"),
        ]
        assert "keeps records 24 h" in found[0].found
        _, reaches = check_source(settings, lambda: StreamPosition(1, site.wal_end()))
        assert (reaches.level, reaches.subject) == (Level.OK, "manifests")
        _, lacks = check_source(settings, lambda: StreamPosition(1, 0x1000))
        assert (lacks.level, lacks.subject) == (Level.FAIL, "manifests")
        assert "the slowest shape needs them from 0/1000 of timeline 1 on" in lacks.found


def test_a_slot_that_nobody_reads_is_moved_along(site: CaptureSite) -> None:
    site.psql(f"SELECT pg_create_logical_replication_slot('{site.slot}', 'wal2json')")
    before = site.slot_row()
    assert before is not None
    site.psql("INSERT INTO t VALUES (1)")
    done = site.wal_end()
    site.psql("INSERT INTO t VALUES (2)")

    async def move(*slots: str) -> None:
        async with await psycopg.AsyncConnection.connect(site.conninfo, autocommit=True) as session:
            for slot in slots:
                await SlotMover(session, slot).move(done)

    asyncio.run(move(site.slot, "no_such_slot"))
    after = site.slot_row()
    assert after is not None
    assert before.confirmed_lsn < after.confirmed_lsn <= done
    rows = site.psql(f"SELECT data FROM pg_logical_slot_peek_changes('{site.slot}', NULL, NULL)")
    assert any("[2]" in row[0] or '"columnvalues":[2]' in row[0] for row in rows)
    assert not any('"columnvalues":[1]' in row[0] for row in rows)
