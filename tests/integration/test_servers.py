"""The private servers do what the other tests rely on."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.local.errors import LocalServerError
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.slots import SlotWatch

MAKE_SLOT = "SELECT pg_create_logical_replication_slot('{}', 'wal2json')"
PEEK = "SELECT data FROM pg_logical_slot_peek_changes('{}', NULL, NULL, 'format-version', '2')"
PROCESS_THAT_HANGS = """
import sys, time
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_process import CaptureProcess
capture = CaptureProcess({}, ("-c", "import time; time.sleep(600)"), program=(sys.executable,))
with PrivatePostgres() as postgres, LocalKinesis() as kinesis:
    print(postgres.directory, postgres.pid, kinesis.pid, capture.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def own() -> Iterator[PrivatePostgres]:
    """A server that these tests may stop and crash."""
    with PrivatePostgres(settings={"application_name": "it's ours"}) as server:
        server.psql("CREATE TABLE t (id int PRIMARY KEY)")
        yield server


def wait_for_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([handle], [], [], 20)
        assert ended, f"process {pid} still runs"
    finally:
        os.close(handle)


class TestPrivatePostgres:
    def test_decodes_with_wal2json(self, postgres: PrivatePostgres, database: str) -> None:
        postgres.psql("CREATE TABLE t (id int PRIMARY KEY)", database)
        postgres.psql(MAKE_SLOT.format("decodes"), database)
        postgres.psql("INSERT INTO t VALUES (7)", database)
        assert any('"value":7' in data for (data,) in postgres.psql(PEEK.format("decodes"), database))

    def test_is_reached_over_tcp_by_conninfo_and_by_variables(
        self, postgres: PrivatePostgres, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with psycopg.connect(postgres.conninfo(database, application_name="me")) as connection:
            assert connection.info.host == "127.0.0.1"
            assert connection.info.dbname == database
        for name, value in postgres.env(database).items():
            monkeypatch.setenv(name, value)
        with psycopg.connect() as connection:
            assert (connection.info.port, connection.info.dbname) == (postgres.port, database)

    def test_takes_settings_at_construction_and_later(self, own: PrivatePostgres) -> None:
        assert own.psql("SHOW application_name") == [("it's ours",)]
        assert own.psql("SHOW wal_level; SHOW fsync") == [("off",)]
        own.set("work_mem", "5MB")
        assert own.psql("SHOW work_mem") == [("5MB",)]

    def test_keeps_data_and_port_over_restart_and_crash(self, own: PrivatePostgres) -> None:
        port = own.port
        own.psql("INSERT INTO t VALUES (1)")
        own.restart()
        own.psql("INSERT INTO t VALUES (2)")
        own.crash()
        assert not own.running
        own.start()
        assert own.psql("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
        assert "was not properly shut down; automatic recovery in progress" in own.log_text()
        assert own.port == port

    def test_a_smart_stop_waits_for_sessions_and_says_so(self, own: PrivatePostgres) -> None:
        with psycopg.connect(own.conninfo()):
            with pytest.raises(LocalServerError, match="still runs"):
                own.stop("smart", timeout=0.3)
            took = own.stop("fast")
        assert 0 < took < 5
        own.start()

    def test_a_standby_follows_and_is_promoted(self, own: PrivatePostgres) -> None:
        own.psql(MAKE_SLOT.format("left_behind"))
        with own.standby() as standby:
            assert standby.psql("SELECT pg_is_in_recovery()") == [(True,)]
            assert standby.port != own.port
            own.psql("CREATE TABLE followed AS SELECT 1 AS id")
            standby.promote()
            assert standby.psql("SELECT pg_is_in_recovery()") == [(False,)]
            assert standby.psql("SELECT slot_name FROM pg_replication_slots") == []
            standby.psql("CREATE TABLE written (id int)")
        assert own.psql("SELECT slot_name FROM pg_replication_slots") == [("left_behind",)]

    def test_wal2json_is_allowed_where_a_server_can_forbid_it(self, postgres: PrivatePostgres) -> None:
        known = postgres.psql("SELECT setting FROM pg_settings WHERE name = 'output_plugin_libraries'")
        assert bool(known) == postgres.knows_plugin_setting
        assert all("wal2json" in setting for (setting,) in known)

    def test_says_why_it_does_not_start(self) -> None:
        with (
            pytest.raises(LocalServerError, match='unrecognized configuration parameter "no_such_thing"'),
            PrivatePostgres(settings={"no_such_thing": "1"}),
        ):
            pass

    def test_leaves_nothing_behind(self) -> None:
        with PrivatePostgres() as server:
            directory, pid = server.directory, server.pid
        assert not directory.exists()
        wait_for_end(pid)
        with pytest.raises(LocalServerError, match="closed"):
            _ = server.port


def test_servers_end_with_the_process_that_started_them() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROCESS_THAT_HANGS]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        directory, *processes = owner.stdout.readline().split()
        owner.kill()
    assert len(processes) == 3
    for process in processes:
        wait_for_end(int(process))
    deadline = time.monotonic() + 10
    while Path(directory).exists():
        assert time.monotonic() < deadline, f"{directory} is still there"
        time.sleep(0.02)


class TestLocalKinesis:
    def test_reads_back_what_was_put(self, kinesis: LocalKinesis, stream: str) -> None:
        put = [{"Data": f"{i}".encode(), "PartitionKey": f"key {i % 50} ü"} for i in range(400)]
        kinesis.client.put_records(StreamName=stream, Records=put)
        stored = kinesis.read_all(stream)
        assert len({record.shard_id for record in stored}) == 4
        by_key = defaultdict(list)
        for record in stored:
            by_key[record.partition_key].append(record)
        for key, records in by_key.items():
            assert len({record.shard_id for record in records}) == 1
            assert [int(record.data) for record in records] == list(range(int(key.split()[1]), 400, 50))

    def test_writers_at_once_lose_nothing(self, kinesis: LocalKinesis, stream: str) -> None:
        def write(writer: int) -> None:
            for batch in range(20):
                data = f"{writer}/{batch}".encode()
                kinesis.client.put_records(
                    StreamName=stream, Records=[{"Data": data, "PartitionKey": f"{i}"} for i in range(20)]
                )

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        stored = kinesis.read_all(stream)
        assert len({(record.partition_key, record.data) for record in stored}) == 4 * 20 * 20
        assert len({(record.shard_id, record.sequence_number) for record in stored}) == 4 * 20 * 20

    def test_reads_more_than_a_page(self, kinesis: LocalKinesis, stream: str) -> None:
        batch = [{"Data": b"x", "PartitionKey": "one"} for _ in range(500)]
        for _ in range(21):
            kinesis.client.put_records(StreamName=stream, Records=batch)
        numbers = [int(record.sequence_number) for record in kinesis.read_all(stream)]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 10_500

    def test_keeps_the_limits(self, kinesis: LocalKinesis, stream: str) -> None:
        for records in (
            [{"Data": b"x", "PartitionKey": "k"}] * 501,
            [{"Data": bytes(1024 * 1024), "PartitionKey": "k"}],
        ):
            with pytest.raises(kinesis.client.exceptions.ClientError, match="ValidationException"):
                kinesis.client.put_records(StreamName=stream, Records=records)
        eight_mib = [{"Data": bytes(1024 * 1024 - 1), "PartitionKey": "k"}] * 8
        assert kinesis.client.put_records(StreamName=stream, Records=eight_mib)["FailedRecordCount"] == 0

    def test_what_has_expired_is_gone_and_numbers_go_on(self, kinesis: LocalKinesis, stream: str) -> None:
        def put(data: str) -> Any:
            return kinesis.client.put_record(StreamName=stream, Data=data, PartitionKey="k")

        first = put("old")
        kinesis.client.split_shard(
            StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey="1000"
        )
        kinesis.expire(stream, time.time())
        second = put("new")
        assert [record.data for record in kinesis.read_all(stream)] == [b"new"]
        assert int(second["SequenceNumber"]) == int(first["SequenceNumber"]) + 1
        shards = [shard["ShardId"] for shard in kinesis.client.list_shards(StreamName=stream)["Shards"]]
        assert "shardId-000000000000" not in shards
        iterator = kinesis.client.get_shard_iterator(
            StreamName=stream,
            ShardId=first["ShardId"],
            ShardIteratorType="AT_SEQUENCE_NUMBER",
            StartingSequenceNumber=first["SequenceNumber"],
        )["ShardIterator"]
        (record,) = kinesis.client.get_records(ShardIterator=iterator)["Records"]
        assert record["SequenceNumber"] == second["SequenceNumber"]

    def test_a_closed_shard_ends_with_its_last_records_or_behind_them(
        self, kinesis: LocalKinesis, stream: str
    ) -> None:
        ends = []
        for count in (1, 2):
            for _ in range(count):
                put = kinesis.client.put_record(StreamName=stream, Data="x", PartitionKey="k")
            shards = kinesis.client.list_shards(StreamName=stream)["Shards"]
            keys = next(each for each in shards if each["ShardId"] == put["ShardId"])["HashKeyRange"]
            middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2
            kinesis.client.split_shard(
                StreamName=stream, ShardToSplit=put["ShardId"], NewStartingHashKey=str(middle)
            )
            iterator = kinesis.client.get_shard_iterator(
                StreamName=stream, ShardId=put["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            pages = []
            while iterator is not None:
                page = kinesis.client.get_records(ShardIterator=iterator)
                iterator = page.get("NextShardIterator")
                pages.append((len(page["Records"]), page["MillisBehindLatest"]))
            ends.append(pages)
        assert ends == [[(1, 0), (0, 0)], [(2, 0)]]

    def test_a_stream_knows_its_own_numbers(self, kinesis: LocalKinesis, stream: str) -> None:
        put = kinesis.client.put_record(StreamName=stream, Data="x", PartitionKey="k")
        kinesis.delete_stream(stream)
        kinesis.create_stream(stream, 4)
        for _ in range(20):
            kinesis.client.put_record(StreamName=stream, Data="x", PartitionKey="k")
        with pytest.raises(kinesis.client.exceptions.ClientError, match="did not come from this stream"):
            kinesis.client.get_shard_iterator(
                StreamName=stream,
                ShardId=put["ShardId"],
                ShardIteratorType="AFTER_SEQUENCE_NUMBER",
                StartingSequenceNumber=put["SequenceNumber"],
            )


class TestSlotWatch:
    def test_sees_a_dropped_slot_but_not_one_that_stays(
        self, postgres: PrivatePostgres, database: str
    ) -> None:
        watch = SlotWatch(postgres)
        for slot in ("stays", "goes"):
            postgres.psql(MAKE_SLOT.format(slot), database)
        assert watch.vanished() == []
        postgres.psql("SELECT pg_drop_replication_slot('goes')")
        assert watch.vanished() == ["goes"]
        assert watch.vanished() == []
        watch.drop_all_of(database)
        assert postgres.psql(f"SELECT 1 FROM pg_replication_slots WHERE database = '{database}'") == []

    def test_sees_the_command_even_if_the_slot_was_never_seen(
        self, postgres: PrivatePostgres, database: str, slot_watch: SlotWatch
    ) -> None:
        with psycopg.Connection.connect(
            postgres.conninfo(database, replication="database"), autocommit=True
        ) as connection:
            connection.execute("CREATE_REPLICATION_SLOT brief LOGICAL wal2json")
            connection.execute("DROP_REPLICATION_SLOT brief")
        (line,) = slot_watch.vanished()
        assert "DROP_REPLICATION_SLOT brief" in line
