"""The marked stream: whatever fails, a plain reader sees every transaction whole, once and in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest

from penstock.demo.marked_stream import MarkedStream
from penstock.demo.stream_reader import StreamBroken
from penstock.local.kinesis import LocalKinesis
from tests.faults.rig import Rig
from tests.faults.workload import Writers
from tests.servers.capture_site import metric, readiness, wait_for_phase, wait_until
from tests.servers.faults import (
    ACCESS_DENIED,
    INTERNAL_FAILURE,
    THROTTLED,
    Answer,
    CutAfter,
    CutBefore,
    FailRecords,
)

MARKED = {"KINESIS_MARKED_STREAM": "true", "KINESIS_MARK_INTERVAL_MS": 20}
SUM = 1_000


@pytest.fixture
def marks_stream(kinesis: LocalKinesis, stream: str) -> Iterator[str]:
    name = f"{stream}-marks"
    kinesis.create_stream(name, 1)
    yield name
    kinesis.delete_stream(name)


def marked(rig: Rig, marks_stream: str | None = None) -> MarkedStream:
    marks = None if marks_stream is None else rig.kinesis.read_all(marks_stream)
    return MarkedStream(rig.kinesis.read_all(rig.stream), rig.slot, marks)


def writes_more(writers: Writers, changes: int) -> None:
    goal = len(writers.committed) + changes
    wait_until(lambda: len(writers.committed) >= goal, "the writers go on")


def move_money(rig: Rig) -> None:
    """Two rows whose sum never changes; they are in different shards."""
    rig.psql("CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, amount int)")
    rig.psql(f"INSERT INTO accounts VALUES (1, {SUM}), (2, 0)")
    for amount in range(1, 40):
        rig.psql(
            f"BEGIN; UPDATE accounts SET amount = {SUM - amount} WHERE id = 1;"
            f" UPDATE accounts SET amount = {amount} WHERE id = 2; COMMIT"
        )


def assert_sums(transactions: list[list[bytes]]) -> None:
    amounts: dict[int, int] = {}
    for changes in transactions:
        for payload in changes:
            change = json.loads(payload)
            if change["table"] == "accounts":
                row = {column["name"]: column["value"] for column in change["columns"]}
                amounts[row["id"]] = row["amount"]
        assert not amounts or sum(amounts.values()) == SUM
    assert amounts == {1: SUM - 39, 2: 39}


def assert_chain(stream: MarkedStream) -> None:
    """Each leadership's manifests follow each other without a hole."""
    spoken = stream.spoken()
    for before, after in pairwise(spoken):
        if before["by"] == after["by"]:
            assert before["since"] <= after["since"] <= before["resolved"] <= after["resolved"]
        else:
            assert after["since"] <= before["resolved"]


def test_whole_transactions_whatever_fails(rig: Rig) -> None:
    """Partial failures, throttling, cuts, two splits and a merge, a kill and a takeover."""
    writers = Writers(rig.conninfo, seed=21, writers=3, keys=12)
    faults = (FailRecords(share=0.1), Answer(THROTTLED), Answer(INTERNAL_FAILURE), CutAfter(), CutBefore())
    shards = [f"shardId-{number:012}" for number in range(8)]
    with rig.capture(**MARKED) as leader, rig.capture(**MARKED) as other:
        wait_until(lambda: leader.events("streaming") or other.events("streaming"), "one of them leads")
        for fault in faults:
            rig.proxy.inject(fault, probability=0.1)
            rig.proxy.inject(fault, probability=0.1, operation="PutRecord")
        with writers.running():
            move_money(rig)
            rig.split(shards[0])
            writes_more(writers, 50)
            children = set(shards[4:6])
            wait_until(
                lambda: children <= {record.shard_id for record in marked(rig).records},
                "both children have records, before they are merged",
            )
            first = leader if leader.events("streaming") else other
            first.kill9()
            second = other if first is leader else leader
            second.wait_for_log("streaming")
            rig.split(shards[2])
            rig.merge(shards[4], shards[5])
            writes_more(writers, 200)
        rig.proxy.clear()
        rig.wait_until_confirmed()
        assert second.running
    stream = marked(rig)
    transactions = list(stream.transactions())
    assert transactions == rig.transactions()
    assert_sums(transactions)
    assert_chain(stream)
    assert len({manifest["by"] for manifest in stream.spoken()}) >= 2
    assert {record.shard_id for record in stream.records} > {shards[0], *shards[4:7]}
    assert not rig.proxy.log.violations


def test_begin_and_commit_stand_around_their_transaction(rig: Rig) -> None:
    """With failures and a takeover; a reader that goes by positions alone finds them first and last."""
    over = {**MARKED, "WAL2JSON_INCLUDE_TRANSACTIONS": "true"}
    writers = Writers(rig.conninfo, seed=27, writers=3, keys=12)
    with rig.capture(**over) as leader:
        leader.wait_for_log("streaming")
        rig.proxy.inject(FailRecords(share=0.1), probability=0.2)
        writers.write(transactions=40)
        leader.kill9()
    with rig.capture(**over) as second:
        second.wait_for_log("streaming")
        writers.write(transactions=40)
        rig.proxy.clear()
        rig.wait_until_confirmed()
    stream = marked(rig)
    assert_chain(stream)
    whole = [[json.loads(payload) for payload in payloads] for payloads in stream.transactions()]
    for begin, *changes, commit in whole:
        assert (begin["action"], commit["action"]) == ("B", "C")
        assert {each["xid"] for each in (begin, *changes)} == {commit["xid"]}
        assert begin["lsn"] == commit["lsn"]
    without_xid = [[{**each, "xid": None} for each in changes] for _, *changes, _ in whole]
    committed = [[{**json.loads(each), "xid": None} for each in changes] for changes in rig.transactions()]
    assert [changes for changes in without_xid if changes] == committed
    places = {json.loads(data)["action"]: set[bytes]() for _, data in stream.payloads()}
    for record, data in stream.payloads():
        places[json.loads(data)["action"]].add(record.data[34:46])
    assert places.pop("B") == {b"0" * 12}
    assert places.pop("C") == {b"F" * 12}
    assert all(int(place, 16) % 2 for changes in places.values() for place in changes)


def test_a_reader_goes_on_from_any_manifest(rig: Rig, marks_stream: str) -> None:
    """And manifests may stand in a stream of their own."""
    writers = Writers(rig.conninfo, seed=22, writers=2)
    with rig.capture(**MARKED, KINESIS_MARKS_STREAM=marks_stream) as capture:
        capture.wait_for_log("streaming")
        writers.write(transactions=60)
        rig.wait_until_confirmed()
        assert metric(capture, "penstock_manifests_total") >= 2
    stream = marked(rig, marks_stream)
    everything = list(stream.transactions())
    assert everything == rig.transactions()
    assert all(each.data.startswith(b'{"pos":"') for each in rig.kinesis.read_all(rig.stream))
    for manifest in stream.spoken()[:: max(1, len(stream.manifests) // 10)]:
        reader = stream.reader(applied=manifest["resolved"])
        rest = list(reader.transactions(stream.manifests))
        reader.end()
        assert rest == everything[len(everything) - len(rest) :]
        twice = stream.reader()
        assert list(twice.transactions([*stream.manifests, *stream.manifests])) == everything


def test_postgres_is_told_of_nothing_that_no_manifest_speaks_of(rig: Rig) -> None:
    """Manifests are throttled: the slot waits, nothing is lost, and it is an outage in the end."""
    writers = Writers(rig.conninfo, seed=23, writers=2)
    with rig.capture(**MARKED, SINK_OUTAGE_DISCONNECT_S=2) as capture:
        capture.wait_for_log("streaming")
        writers.write(transactions=5)
        rig.wait_until_confirmed()
        rig.proxy.inject(Answer(THROTTLED), operation="PutRecord")
        before = len(rig.oracle.committed())
        writers.write(transactions=20)
        capture.wait_for_log("SinkOutage")
        assert rig.oracle.sample().confirmed_lsn < rig.oracle.committed()[before].end_lsn
        assert len(marked(rig).records) > len(writers.committed) // 2
        assert readiness(capture)["status"] == 503
        rig.proxy.clear()
        rig.wait_until_confirmed()
    assert list(marked(rig).transactions()) == rig.transactions()


def test_no_record_leaves_before_a_manifest_could_speak_of_it(rig: Rig) -> None:
    """A role without kinesis:PutRecord: each leadership would publish everything again, without end."""
    writers = Writers(rig.conninfo, seed=26, writers=1)
    rig.proxy.inject(Answer(ACCESS_DENIED), operation="PutRecord")
    with rig.capture(**MARKED, SINK_OUTAGE_DISCONNECT_S=2) as capture:
        capture.wait_for_log("streaming")
        writers.write(transactions=20)
        capture.wait_for_log("SinkOutage", count=2, timeout=60)
        assert marked(rig).records == []
        assert readiness(capture)["status"] == 503
        assert capture.events("manifest_failed")[0]["code"] == "AccessDeniedException"
        rig.proxy.clear()
        rig.wait_until_confirmed()
    assert list(marked(rig).transactions()) == rig.transactions()


def test_a_frozen_leader_that_wakes_breaks_no_chain(rig: Rig) -> None:
    """What it still sends has its own name, and its late manifest is true or behind."""
    writers = Writers(rig.conninfo, seed=24, writers=2, pause_s=0.005)
    over = {**MARKED, "LEADER_TIMEOUT_S": 3}
    with rig.capture(**over) as leader:
        leader.wait_for_log("streaming")
        with rig.capture(**over) as standby, writers.running():
            wait_for_phase(standby, "standby")
            rig.freeze_in_mid_publishing(leader)
            standby.wait_for_log("streaming")
            writes_more(writers, 50)
            leader.cont()
            wait_for_phase(leader, "standby")
        with rig.capture(**over):
            rig.wait_until_confirmed()
    assert list(marked(rig).transactions()) == rig.transactions()


def test_what_the_stream_has_lost_is_said(rig: Rig) -> None:
    writers = Writers(rig.conninfo, seed=25, writers=1)
    with rig.capture(**MARKED) as capture:
        capture.wait_for_log("streaming")
        for _ in range(3):
            writers.write(transactions=10)
            rig.wait_until_confirmed()
    stream = marked(rig)
    with_records = [data for data in stream.manifests if json.loads(data)["changes"]]
    assert len(with_records) >= 3
    first, *_, last = with_records
    reader = stream.reader()
    list(reader.transactions([first]))
    assert list(reader.transactions([last])) == []
    with pytest.raises(StreamBroken, match="GAP: applied up to "):
        reader.end()
    victim = json.loads(last)
    shard, (number, *_) = next(iter(victim["shards"].items()))
    lost = (shard, number)
    left = [
        each for each in rig.kinesis.read_all(rig.stream) if (each.shard_id, each.sequence_number) != lost
    ]
    with pytest.raises(StreamBroken, match=f"{shard} has lost what stood there"):
        list(MarkedStream(left, rig.slot).transactions())


def test_truncates_and_tables_are_in_the_manifest(rig: Rig) -> None:
    rig.psql('CREATE TABLE "Odd.name" (id int PRIMARY KEY); CREATE TABLE plain (id int PRIMARY KEY)')
    with rig.capture(**MARKED) as capture:
        capture.wait_for_log("streaming")
        rig.psql('INSERT INTO plain VALUES (1), (2); TRUNCATE plain; INSERT INTO "Odd.name" VALUES (1)')
        rig.wait_until_confirmed()
    stream = marked(rig)
    assert list(stream.transactions()) == rig.transactions()
    counts: dict[str, int] = {}
    truncates = []
    for manifest in stream.spoken():
        for name, (count, truncated) in manifest["tables"].items():
            counts[name] = counts.get(name, 0) + count
            truncates += [] if truncated is None else [(name, truncated)]
    assert counts == {"public.plain": 3, 'public."Odd.name"': 1}
    ((name, truncated),) = truncates
    assert name == "public.plain"
    (position,) = [each.data[8:46].decode() for each in stream.records if b'"action":"T"' in each.data]
    assert truncated == position
