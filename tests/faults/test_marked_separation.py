"""One stream, several writers: each reader sees what its own slot's manifests speak of, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.demo.marked_stream import MarkedStream
from penstock.kinesis.read.errors import StreamReadError
from penstock.local.kinesis import LocalKinesis, StoredRecord
from tests.faults.rig import Rig
from tests.faults.workload import Writers
from tests.servers.capture_site import CaptureSite, wait_until
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import THROTTLED, Answer
from tests.servers.marked_reader import MarkedReader

MARKED = {"KINESIS_MARKED_STREAM": "true", "KINESIS_MARK_INTERVAL_MS": 20}


@pytest.fixture(autouse=True)
def aws(kinesis: LocalKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kinesis.env().items():
        monkeypatch.setenv(name, value)


def committed(rig: Rig, *tables: str) -> list[list[bytes]]:
    """What Postgres itself committed in these tables, by transactions."""
    transactions: dict[int, list[bytes]] = {}
    for change in rig.oracle.committed():
        if json.loads(change.payload)["table"] in tables:
            transactions.setdefault(change.end_lsn, []).append(change.payload)
    return list(transactions.values())


def plain(site: CaptureSite) -> list[list[bytes]]:
    return list(MarkedStream(site.kinesis.read_all(site.stream), site.slot).transactions())


def write_both(rig: Rig, first: int, last: int) -> None:
    """Transactions that touch two tables."""
    both = "BEGIN; INSERT INTO a VALUES ({0}); INSERT INTO b VALUES ({0}); COMMIT;"
    rig.psql("".join(both.format(row) for row in range(first, last)))


def test_two_slots_in_one_stream(rig: Rig) -> None:
    """Their records have the same positions, and stand among each other."""
    rig.psql("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    other = CaptureSite(rig.postgres, rig.database, rig.kinesis, rig.stream, slot=f"{rig.slot}_b")
    share = {**MARKED, "WAL2JSON_ADD_TABLES": "public.b"}
    with rig.capture(**MARKED) as first, other.capture(**share) as second:
        first.wait_for_log("streaming")
        second.wait_for_log("streaming")
        write_both(rig, 1, 30)
        rig.wait_until_confirmed()
        other.wait_until_confirmed()
        readers = [MarkedReader(site) for site in (rig, other)]
        halves = [reader.read() for reader in readers]
        write_both(rig, 30, 60)
        rig.wait_until_confirmed()
        other.wait_until_confirmed()
    for site, reader, half, tables in zip((rig, other), readers, halves, ("ab", "b"), strict=True):
        expected = committed(rig, *tables)
        assert plain(site) == expected
        assert [*half, *reader.read()] == expected
        assert MarkedReader(site).read() == expected
    positions = [each.data[8:46] for each in records(rig)]
    assert len(positions) - len(set(positions)) == 59, "the changes of b are there twice"


def test_a_pointer_and_another_slot_s_record_at_the_same_position(rig: Rig, tmp_path: Path) -> None:
    """What one capture had to put into quarantine the other one could publish, later, in the same shard."""
    rig.psql("CREATE TABLE docs (id int PRIMARY KEY, body text)")
    other = CaptureSite(rig.postgres, rig.database, rig.kinesis, rig.stream, slot=f"{rig.slot}_b")
    with other.capture(**MARKED) as second:
        second.wait_for_log("streaming")
    strict = {
        **MARKED,
        "KINESIS_MAX_RECORD_BYTES": 100_000,
        "UNDELIVERABLE_POLICY": "quarantine",
        "QUARANTINE_URL": tmp_path.as_uri(),
    }
    with rig.capture(**strict):
        rig.psql("INSERT INTO docs VALUES (1, 'small')")
        rig.psql("UPDATE docs SET body = repeat('x', 150000)")
        rig.wait_until_confirmed()
        with other.capture(**MARKED):
            other.wait_until_confirmed()
            rig.psql("UPDATE docs SET body = 'small again'")
            rig.wait_until_confirmed()
            other.wait_until_confirmed()
    for site, expected in ((rig, "IQU"), (other, "IUU")):
        seen = MarkedReader(site).read()
        assert seen == plain(site)
        assert "".join(json.loads(payload)["action"] for (payload,) in seen) == expected


def test_a_late_request_of_a_leadership_with_other_filters(rig: Rig, kinesis: LocalKinesis) -> None:
    """It lands in the midst of what its successor's manifest speaks of, and is no part of it."""
    rig.psql("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    with FaultProxy(kinesis.endpoint_url) as slow:
        with rig.capture(**MARKED, AWS_ENDPOINT_URL_KINESIS=slow.url) as first:
            first.wait_for_log("streaming")
            wait_until(lambda: spoken(rig), "the first manifest, before which nothing is read")
            slow.hold()
            write_both(rig, 1, 20)
            slow.log.wait_for(lambda log: log.held_puts > 0)
            first.kill9()
        rig.proxy.inject(Answer(THROTTLED), operation="PutRecord", after=1)
        with rig.capture(**MARKED, WAL2JSON_FILTER_TABLES="public.b") as second:
            second.wait_for_log("streaming")
            wait_until(lambda: len(senders(rig)) == 1, "the second publishes")
            slow.release()
            wait_until(lambda: len(senders(rig)) == 2, "the late request is carried out")
            write_both(rig, 20, 40)
            wait_until(lambda: any(b'"value":39' in each.data for each in records(rig)), "it goes on")
            rig.proxy.clear()
            rig.wait_until_confirmed()
    expected = committed(rig, "a")
    assert len(expected) == 39
    assert plain(rig) == expected
    assert MarkedReader(rig).read() == expected
    assert strangers_inside(rig) > 0


def records(rig: Rig) -> list[StoredRecord]:
    stream = MarkedStream(rig.kinesis.read_all(rig.stream), rig.slot)
    return [each for each in stream.records if each.data.startswith(b'{"pos":"')]


def senders(rig: Rig) -> set[bytes]:
    return {each.data[54:66] for each in records(rig)}


def spoken(rig: Rig) -> list[dict[str, Any]]:
    return MarkedStream(rig.kinesis.read_all(rig.stream), rig.slot).spoken()


def strangers_inside(rig: Rig) -> int:
    """How many records in the ranges of a manifest, at positions that it speaks of, aren't its own."""
    found = 0
    for manifest in spoken(rig):
        low, high, by = (manifest[name].encode() for name in ("since", "resolved", "by"))
        for each in records(rig):
            first, last, _ = manifest["shards"].get(each.shard_id, (0, -1, 0))
            is_there = int(first) <= int(each.sequence_number) <= int(last) and low <= each.data[8:46] < high
            found += is_there and each.data[54:66] != by
    return found


def test_another_server_under_the_slot_s_name(rig: Rig) -> None:
    writers = Writers(rig.conninfo, seed=41, writers=1)
    with rig.capture(**MARKED) as capture:
        capture.wait_for_log("streaming")
        writers.write(transactions=5)
        rig.wait_until_confirmed()
        reader = MarkedReader(rig)
        assert reader.read()
    last = spoken(rig)[-1]
    stranger = {**last, "system": "7000000000000000001", "by": "f" * 12}
    rig.kinesis.client.put_record(
        StreamName=rig.stream, Data=json.dumps(stranger), PartitionKey=f"penstock/{rig.slot}"
    )
    with pytest.raises(StreamReadError, match="manifests of system 7000000000000000001 under the slot"):
        reader.read()
