"""Shards are split and merged while a leader sleeps: readers of every kind see whole transactions, once."""

from __future__ import annotations

import json
import threading

import psycopg
import pytest

from penstock.demo.marked_stream import MarkedStream
from penstock.local.kinesis import LocalKinesis
from tests.faults.rig import Rig
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import wait_for_phase, wait_until
from tests.servers.marked_reader import MarkedReader

MARKED = {"KINESIS_MARKED_STREAM": "true", "KINESIS_MARK_INTERVAL_MS": 20, "LEADER_TIMEOUT_S": 3}
SHARDS = [f"shardId-{number:012}" for number in range(8)]
PAIRS = 40
SUM = 1_000


@pytest.fixture(autouse=True)
def aws(kinesis: LocalKinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in kinesis.env().items():
        monkeypatch.setenv(name, value)


class MoneyMover:
    """Moves amounts between the two rows of each of many pairs, until it is told to end."""

    def __init__(self, rig: Rig) -> None:
        rig.psql("CREATE TABLE accounts (id int PRIMARY KEY, amount int)")
        rig.psql(f"INSERT INTO accounts SELECT i, {SUM} * (i % 2) FROM generate_series(1, {2 * PAIRS}) i")
        self._rig = rig
        self.moved = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._move, daemon=True)

    def __enter__(self) -> MoneyMover:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def goes_on(self, count: int) -> None:
        goal = self.moved + count
        wait_until(lambda: self.moved >= goal, "money is moved")

    def _move(self) -> None:
        with psycopg.connect(self._rig.conninfo, autocommit=True) as session:
            while not self._stop.wait(0.002):
                pair, amount = 1 + 2 * (self.moved % PAIRS), self.moved % SUM
                with session.transaction():
                    session.execute("UPDATE accounts SET amount = %s WHERE id = %s", (SUM - amount, pair))
                    session.execute("UPDATE accounts SET amount = %s WHERE id = %s", (amount, pair + 1))
                self.moved += 1


class Follower:
    """Reads batches while things happen; after each of them every pair has its sum."""

    def __init__(self, rig: Rig) -> None:
        self._reader = MarkedReader(rig)
        self.transactions: list[list[bytes]] = []
        self.amounts: dict[int, int] = {}
        self.batches = 0

    def read(self) -> None:
        found = self._reader.read()
        self.batches += bool(found)
        self.transactions += found
        for changes in found:
            for change in changes:
                row = {column["name"]: column["value"] for column in json.loads(change)["columns"]}
                self.amounts[row["id"]] = row["amount"]
        for first in range(1, 2 * PAIRS, 2):
            if first in self.amounts:
                assert self.amounts[first] + self.amounts[first + 1] == SUM


def split(rig: Rig, shard: str) -> None:
    shards = rig.kinesis.client.list_shards(StreamName=rig.stream)["Shards"]
    (keys,) = [each["HashKeyRange"] for each in shards if each["ShardId"] == shard]
    middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
    rig.kinesis.client.split_shard(StreamName=rig.stream, ShardToSplit=shard, NewStartingHashKey=str(middle))


def freeze_in_mid_publishing(rig: Rig, leader: CaptureProcess) -> None:
    goal = rig.proxy.log.arrived + 10
    rig.proxy.log.wait_for(lambda log: log.arrived >= goal)
    leader.freeze()


def test_splits_and_a_merge_while_a_leader_sleeps(rig: Rig) -> None:
    with rig.capture(**MARKED) as leader:
        leader.wait_for_log("streaming")
        with rig.capture(**MARKED) as standby, MoneyMover(rig) as mover:
            wait_for_phase(standby, "standby")
            mover.goes_on(50)
            rig.wait_until_confirmed()
            follower = Follower(rig)
            follower.read()
            split(rig, SHARDS[0])
            mover.goes_on(50)
            freeze_in_mid_publishing(rig, leader)
            follower.read()
            split(rig, SHARDS[2])
            standby.wait_for_log("streaming")
            follower.read()
            rig.kinesis.client.merge_shards(
                StreamName=rig.stream, ShardToMerge=SHARDS[4], AdjacentShardToMerge=SHARDS[5]
            )
            mover.goes_on(100)
            follower.read()
            leader.cont()
            wait_for_phase(leader, "standby")
            mover.goes_on(50)
        rig.wait_until_confirmed(timeout=60)
    follower.read()
    transactions: dict[int, list[bytes]] = {}
    for change in rig.oracle.committed():
        transactions.setdefault(change.end_lsn, []).append(change.payload)
    assert follower.transactions == list(transactions.values())
    assert follower.batches >= 4
    stream = MarkedStream(rig.kinesis.read_all(rig.stream), rig.slot)
    assert list(stream.transactions()) == follower.transactions
    assert {record.shard_id for record in stream.records} >= set(SHARDS), "all of them had records"
    assert len({manifest["by"] for manifest in stream.spoken()}) >= 2
    assert follower.amounts == dict(rig.psql("SELECT id, amount FROM accounts"))
