"""A standby is promoted under a marked stream: readers go on if they may, or say what never happened."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.demo.marked_stream import MarkedStream
from penstock.demo.stream_reader import StreamBroken
from penstock.kinesis.read.chain import HistoryLost, StreamGap
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import CaptureSite
from tests.servers.failover_site import SLOT, FailoverSite
from tests.servers.marked_reader import MarkedReader


@pytest.fixture
def servers(kinesis: LocalKinesis, stream: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailoverSite]:
    for name, value in kinesis.env().items():
        monkeypatch.setenv(name, value)
    with PrivatePostgres() as old, old.standby() as new:
        yield FailoverSite(old, new, kinesis, stream)


def insert(site: CaptureSite, first: int) -> None:
    """Three transactions of two rows each."""
    for low, high in pairs(first):
        site.psql(f"INSERT INTO t VALUES ({low}), ({high})")


def ids(transactions: list[list[bytes]]) -> list[list[int]]:
    return [[json.loads(each)["columns"][0]["value"] for each in changes] for changes in transactions]


def pairs(first: int) -> list[list[int]]:
    return [[row, row + 1] for row in range(first, first + 6, 2)]


def test_a_lagging_standby_with_the_slot(servers: FailoverSite) -> None:
    """Who applied no more than the standby had goes on, exactly; who applied more is told."""
    before, after = servers.before, servers.after
    before.psql("CREATE TABLE t (id int PRIMARY KEY)")
    with before.capture() as capture:
        capture.wait_for_log("streaming")
        insert(before, 1)
        before.wait_until_confirmed()
        cautious = MarkedReader(before)
        assert ids(cautious.read()) == pairs(1)
        servers.carry_the_slot_over()
        servers.cut_off()
        insert(before, 101)
        before.wait_until_confirmed()
        hasty = MarkedReader(before)
        assert ids(hasty.read()) == [*pairs(1), *pairs(101)]
        servers.old.crash()
        servers.new.promote()
        capture.wait_for_log("timeline_switched", timeout=30)
        insert(after, 201)
        after.wait_until_confirmed()
        assert capture.events("GAP") == []
    assert ids(cautious.read()) == pairs(201)
    assert cautious.offset is not None
    assert cautious.offset.resolved.startswith("00000002.")
    assert sorted(after.psql("SELECT id FROM t")) == [
        (row,) for pair in pairs(1) + pairs(201) for row in pair
    ]
    with pytest.raises(HistoryLost, match=r"timeline 1 never happened in the history of .* of timeline 2"):
        hasty.read()
    # One that begins now sees both histories, and leaves out what never happened. One that goes strictly
    # step by step has applied it by then.
    assert ids(MarkedReader(after).read()) == [*pairs(1), *pairs(201)]
    everything = MarkedStream(after.kinesis.read_all(after.stream), SLOT)
    with pytest.raises(StreamBroken, match="never happened in timeline 00000002"):
        list(everything.transactions())
    with pytest.raises(HistoryLost):
        MarkedReader(after, maxChangesPerBatch="1").read_all()
    newcomer = MarkedReader(after, startingPosition="latest")
    assert newcomer.read() == []
    assert newcomer.offset is not None
    assert newcomer.offset[:3] == cautious.offset[:3]


def test_a_standby_without_the_slot(servers: FailoverSite) -> None:
    """What nobody read is missing: a gap with both ends, and no silent hole."""
    before, after = servers.before, servers.after
    before.psql("CREATE TABLE t (id int PRIMARY KEY)")
    with before.capture() as capture:
        capture.wait_for_log("streaming")
        insert(before, 1)
        before.wait_until_confirmed()
        reader = MarkedReader(before)
        assert ids(reader.read()) == pairs(1)
        servers.replicate()
        servers.old.crash()
        servers.new.promote()
        capture.wait_for_log("GAP", timeout=30)
        insert(after, 201)
        after.wait_until_confirmed()
    with pytest.raises(StreamGap, match=r"of timeline 1, and the next manifest begins at .* of timeline"):
        reader.read()
