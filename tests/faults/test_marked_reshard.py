"""Shards are split and merged while a leader sleeps: readers of every kind see whole transactions, once."""

from __future__ import annotations

import pytest

from penstock.demo.marked_stream import MarkedStream
from penstock.local.kinesis import LocalKinesis
from tests.faults.money import Amounts, MoneyMover
from tests.faults.rig import Rig
from tests.servers.capture_site import wait_for_phase
from tests.servers.marked_reader import MarkedReader

MARKED = {"KINESIS_MARKED_STREAM": "true", "KINESIS_MARK_INTERVAL_MS": 20, "LEADER_TIMEOUT_S": 3}
SHARDS = [f"shardId-{number:012}" for number in range(8)]


@pytest.fixture(autouse=True)
def aws(kinesis: LocalKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kinesis.env().items():
        monkeypatch.setenv(name, value)


class Follower:
    """Reads batches while things happen; after each of them every pair has its sum."""

    def __init__(self, rig: Rig) -> None:
        self._reader = MarkedReader(rig)
        self.transactions: list[list[bytes]] = []
        self.amounts = Amounts()
        self.batches = 0

    def read(self) -> None:
        found = self._reader.read()
        self.batches += bool(found)
        self.transactions += found
        for changes in found:
            self.amounts.apply(changes)
        assert not self.amounts.wrong_pairs()


def test_splits_and_a_merge_while_a_leader_sleeps(rig: Rig) -> None:
    with rig.capture(**MARKED) as leader:
        leader.wait_for_log("streaming")
        with rig.capture(**MARKED) as standby, MoneyMover(rig) as mover:
            wait_for_phase(standby, "standby")
            mover.goes_on(50)
            rig.wait_until_confirmed()
            follower = Follower(rig)
            follower.read()
            rig.split(SHARDS[0])
            mover.goes_on(50)
            rig.freeze_in_mid_publishing(leader)
            follower.read()
            rig.split(SHARDS[2])
            standby.wait_for_log("streaming")
            follower.read()
            rig.merge(SHARDS[4], SHARDS[5])
            mover.goes_on(100)
            follower.read()
            leader.cont()
            wait_for_phase(leader, "standby")
            mover.goes_on(50)
        rig.wait_until_confirmed()
    follower.read()
    assert follower.transactions == rig.transactions()
    assert follower.batches >= 4
    stream = MarkedStream(rig.kinesis.read_all(rig.stream), rig.slot)
    assert list(stream.transactions()) == follower.transactions
    assert {record.shard_id for record in stream.records} >= set(SHARDS), "all of them had records"
    assert len({manifest["by"] for manifest in stream.spoken()}) >= 2
    assert follower.amounts == dict(rig.psql("SELECT id, amount FROM accounts"))
