"""The rig: a capture site behind the fault proxy, an oracle beside it, and all that must hold in the end."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.oracle import (
    Oracle,
    SlotSample,
    assert_byte_for_byte,
    assert_slot_never_passed_unpublished,
)
from tests.faults.stream_checks import (
    Change,
    assert_last_occurrences_in_order,
    assert_nothing_missing,
    assert_repeats_identical,
    read_changes,
)
from tests.faults.workload import Writers
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite
from tests.servers.fault_proxy import FaultProxy


class Rig(CaptureSite):
    """A capture site whose captures reach Kinesis through the fault proxy. Its slot exists from the start.

    LEADER_TIMEOUT_S is long: a request that the client gives up early may still be taken, and then it may
    come after newer changes of its keys.
    """

    def __init__(
        self,
        postgres: PrivatePostgres,
        database: str,
        kinesis: LocalKinesis,
        stream: str,
        proxy: FaultProxy,
    ) -> None:
        super().__init__(
            postgres,
            database,
            kinesis,
            stream,
            AWS_ENDPOINT_URL_KINESIS=proxy.url,
            LEADER_TIMEOUT_S=10,
            STANDBY_RETRY_INTERVAL_S=0.5,
        )
        self.proxy = proxy
        self.oracle = Oracle(self.conninfo, self.slot)

    def changes(self) -> list[Change]:
        """What the stream holds now."""
        return read_changes(self.kinesis, self.stream)

    def transactions(self) -> list[list[bytes]]:
        """What Postgres itself committed: the changes of each transaction, in order."""
        found: dict[int, list[bytes]] = {}
        for change in self.oracle.committed():
            found.setdefault(change.end_lsn, []).append(change.payload)
        return list(found.values())

    def split(self, shard: str) -> None:
        """Split one of the stream's shards in the middle."""
        shards = self.kinesis.client.list_shards(StreamName=self.stream)["Shards"]
        (keys,) = [each["HashKeyRange"] for each in shards if each["ShardId"] == shard]
        middle = str((int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2)
        self.kinesis.client.split_shard(StreamName=self.stream, ShardToSplit=shard, NewStartingHashKey=middle)

    def merge(self, shard: str, neighbour: str) -> None:
        """Make one of two neighbouring shards."""
        self.kinesis.client.merge_shards(
            StreamName=self.stream, ShardToMerge=shard, AdjacentShardToMerge=neighbour
        )

    def freeze_in_mid_publishing(self, leader: CaptureProcess) -> None:
        """Stop a leader while its requests are under way."""
        goal = self.proxy.log.arrived + 10
        self.proxy.log.wait_for(lambda log: log.arrived >= goal)
        leader.freeze()

    def of_key(self, key: str) -> list[Change]:
        """What the stream holds of one partition key, in the order of arrival."""
        return [change for change in self.changes() if change.key == key]


def assert_calm(capture: CaptureProcess, leaderships: int = 1) -> None:
    """The process lives, has led no more often than it should, and met nothing unforeseen."""
    assert capture.running
    assert len(capture.events("streaming")) == leaderships
    assert "Traceback" not in capture.log_text()
    assert capture.events("GAP") == []


def check_stream(rig: Rig, samples: Sequence[SlotSample] = (), writers: Writers | None = None) -> None:
    """What must hold when all is confirmed: of the stream, and of the slot whenever it was sampled."""
    changes, committed = rig.changes(), rig.oracle.committed()
    if writers is not None:
        assert not writers.in_doubt
        assert_nothing_missing([change for change in changes if change.table == "items"], writers.committed)
    assert_byte_for_byte((change.data for change in changes), committed)
    assert_last_occurrences_in_order(changes)
    assert_repeats_identical(changes)
    assert_slot_never_passed_unpublished(samples, committed, rig.proxy.log.puts)
    assert not rig.proxy.log.violations
