"""`storage = "kinesis://stream"`: what readers of a shape's stream see, with half failures and kills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from penstock.demo.stream_reader import StreamBroken
from penstock.kinesis.marked.manifest import Manifest, ShardRange, decode, encode, partition_key
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.lake.comparison import Counts
from penstock.lake.errors import StorageRefused
from penstock.lake.storages.outside import read_table_version
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from penstock.model.stream_position import History, StreamPosition
from penstock.outside.shapes_look import look_at_storage
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.definition.shapes_file import load_shapes_file
from penstock.shapes.verify.command import VerifyRun, verify
from penstock.shapes.verify.report import ShapeResult
from penstock.spark import register
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import CutAfter, FailRecords
from tests.servers.shapes_fixtures import MASTER, RunOnce, Started
from tests.servers.shapes_site import shape_lines
from tests.servers.stream_site import StreamSite

LONG = "repeat(md5(id::text), 400)"
TABLES = f"""
CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL, amount numeric(12,2), note text);
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
INSERT INTO orders SELECT id, 'open', id, {LONG} FROM generate_series(1, 20) id;
CREATE TABLE lines (id int PRIMARY KEY, v int NOT NULL);
"""
OPEN = shape_lines("open_orders", "where = \"status = 'open'\"", 'columns = ["id", "note"]', table="orders")
LINES = shape_lines("lines")


@pytest.fixture
def site(
    postgres: PrivatePostgres, database: str, tmp_path: Path, kinesis: LocalKinesis, stream: str
) -> StreamSite:
    site = StreamSite(postgres, database, tmp_path, kinesis, stream)
    site.sql(TABLES)
    site.write_file(OPEN, LINES)
    return site


Verify = Callable[[], dict[str, ShapeResult]]


@pytest.fixture
def compare(site: StreamSite, started: Started) -> Verify:
    """`penstock verify`, on the Spark that is here, in the environment of the last run."""

    def run() -> dict[str, ShapeResult]:
        settings, file = load_shapes_settings(), load_shapes_file(site.file)
        run = VerifyRun(MASTER, {}, show_values=True)
        results = asyncio.run(verify(settings, file, run, lambda _: None, started.spark))
        return {result.shape: result for result in results}

    return run


def test_readers_see_rows_enter_and_leave_the_filter(
    site: StreamSite, run_once: RunOnce, compare: Verify, spark: SparkSession, fault_proxy: FaultProxy
) -> None:
    assert run_once(site, **site.env()) == 0
    # It begins at the cut, and copies nothing.
    (begin,) = site.marked("open_orders").spoken()
    assert (begin["since"], begin["changes"]) == (begin["resolved"], 0)

    for statement in (
        "UPDATE orders SET amount = 0 WHERE id = 1",
        "UPDATE orders SET status = 'closed' WHERE id IN (2, 3)",
        "UPDATE orders SET amount = 1 WHERE id = 2",
        "UPDATE orders SET status = 'open', amount = 7 WHERE id = 2",
        "UPDATE orders SET id = 102 WHERE id = 2",
        "INSERT INTO orders VALUES (30, 'open', 1, 'a'), (31, 'closed', 1, 'b')",
        "DELETE FROM orders WHERE id IN (30, 31)",
        "INSERT INTO lines SELECT id, 0 FROM generate_series(1, 300) id; UPDATE lines SET v = v + 1",
        "UPDATE lines SET v = v + 1 WHERE id <= 100",
        "TRUNCATE lines; INSERT INTO lines VALUES (1, 1)",
    ):
        site.sql(statement)
    fault_proxy.inject(FailRecords(share=0.3), times=12)
    fault_proxy.inject(CutAfter(), times=1, operation="PutRecord")
    assert run_once(site, **site.env(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url)) == 0
    assert not fault_proxy.log.violations

    assert site.transactions("open_orders") == [
        [("U", 1)],
        [("D", 2), ("D", 3)],
        [("I", 2)],
        [("U", 102)],
        [("I", 30)],
        [("D", 30)],
    ]
    lines = site.transactions("lines")
    assert [len(each) for each in lines] == [600, 100, 2]
    assert lines[2] == [("T", None), ("I", 1)]
    # A row that comes in is whole, its long value too, and has the shape's columns only.
    inserted = next(
        change
        for each in site.marked("open_orders").transactions()
        for change in each[:1]
        if b'"I"' in change
    )
    assert {cell["name"]: len(str(cell["value"])) for cell in json.loads(inserted)["columns"]} == {
        "id": 1,
        "note": 12_800,
    }

    register(spark)
    options = {
        "kinesis.streamName": site.stream,
        "kinesis.region": site.kinesis.region,
        "kinesis.endpointUrl": site.kinesis.endpoint_url,
        "slot": "lines",
    }
    frame = spark.read.format("penstock").options(**options, table="public.lines").load()
    assert frame.count() == 702

    found = compare()
    assert {name: result.problem for name, result in found.items()} == {"open_orders": None, "lines": None}
    orders = found["open_orders"]
    assert (orders.counts, orders.untold) == (Counts(19, 2, equal=2), 17)
    assert (found["lines"].counts, found["lines"].untold) == (Counts(1, 1, equal=1), 0)

    records = len(site.kinesis.read_all(site.stream))
    assert run_once(site, **site.env()) == 0
    assert len(site.kinesis.read_all(site.stream)) == records, "nothing is said twice"

    plant(site, "lines", {"action": "I", "schema": "public", "table": "lines", "columns": line(9, 9)})
    spoilt = compare()["lines"]
    assert (spoilt.counts, spoilt.exit_code) == (Counts(1, 2, equal=1, extra=1), 1)


def test_a_snapshot_again_is_a_gap_for_readers(site: StreamSite, run_once: RunOnce, compare: Verify) -> None:
    assert run_once(site, **site.env()) == 0
    site.sql("INSERT INTO lines VALUES (1, 1)")
    assert run_once(site, **site.env()) == 0
    assert site.transactions("lines") == [[("I", 1)]]
    # Another definition is another stream of changes.
    site.write_file(OPEN, shape_lines("lines", 'columns = ["id"]'))
    site.sql("INSERT INTO lines VALUES (2, 2)")
    assert run_once(site, **site.env()) == 0
    with pytest.raises(StreamBroken, match="GAP"):
        site.transactions("lines")
    # What was told before the gap lacks a row, and isn't compared; behind it nothing is told yet.
    lines = compare()["lines"]
    assert (lines.result, lines.counts, lines.untold) == ("nothing told", Counts(2, 0), 2)
    assert lines.told_behind is not None

    site.sql("UPDATE lines SET v = 3, id = 4 WHERE id = 2; INSERT INTO lines VALUES (3, 3)")
    assert run_once(site, **site.env()) == 0
    lines = compare()["lines"]
    assert (lines.result, lines.counts, lines.untold) == ("equal", Counts(3, 2, equal=2), 1)
    assert "has a GAP before" in "".join(lines.notes())


def test_a_filter_needs_the_old_rows(site: StreamSite, run_once: RunOnce) -> None:
    site.sql("ALTER TABLE lines REPLICA IDENTITY DEFAULT")
    site.write_file(shape_lines("lines", 'where = "v > 1"'))
    assert run_once(site, **site.env(STALL_S="3")) == 1
    assert not site.marked("lines").manifests


def test_a_change_from_a_time_without_old_rows_is_a_gap(site: StreamSite, run_once: RunOnce) -> None:
    """The catalog says FULL before and after it: only the change shows that its old row isn't there."""
    site.sql("ALTER TABLE lines REPLICA IDENTITY FULL; INSERT INTO lines VALUES (1, 2), (2, 2)")
    site.write_file(shape_lines("lines", 'where = "v > 1"'))
    assert run_once(site, **site.env()) == 0
    site.sql("UPDATE lines SET v = 3")
    assert run_once(site, **site.env()) == 0
    assert site.transactions("lines") == [[("U", 1), ("U", 2)]]

    site.sql("ALTER TABLE lines REPLICA IDENTITY DEFAULT")
    site.sql("UPDATE lines SET v = 0 WHERE id = 1")
    site.sql("ALTER TABLE lines REPLICA IDENTITY FULL")
    assert run_once(site, **site.env()) == 0
    with pytest.raises(StreamBroken, match="GAP"):
        site.transactions("lines")


def plant(site: StreamSite, shape: str, change: dict[str, Any]) -> None:
    """Put a change into the stream that never happened."""
    records, key = site.kinesis.read_all(site.stream), partition_key(shape)
    last = max((decode(each.data) for each in records if each.partition_key == key), key=lambda m: m.resolved)
    at, by = last.resolved_position, "0" * 12
    payload = json.dumps(change, separators=(",", ":")).encode()
    data = MarkPrefix(History(1, {}), by).put(payload, at.commit_lsn, 0)
    put = site.kinesis.client.put_record
    answer = put(StreamName=site.stream, PartitionKey="planted", Data=data)
    shards = {answer["ShardId"]: ShardRange(answer["SequenceNumber"], answer["SequenceNumber"], 1)}
    resolved = str(at._replace(commit_lsn=at.commit_lsn + 1))
    manifest = Manifest("R", last.system, shape, by, last.resolved, resolved, 1, 0, shards, "*")
    put(StreamName=site.stream, PartitionKey=key, Data=encode(manifest))


def line(key: int, v: int) -> list[dict[str, Any]]:
    return [{"name": name, "type": "integer", "value": value} for name, value in (("id", key), ("v", v))]


def test_a_change_that_no_record_holds(
    site: StreamSite, run_once: RunOnce, compare: Verify, tmp_path: Path
) -> None:
    """Blocked, its shape waits and sends nothing; with a quarantine it goes on from there, without a gap."""
    assert run_once(site, **site.env()) == 0
    long = "repeat('x', 1100000)"
    site.sql(f"INSERT INTO orders VALUES (40, 'open', 1, 'a'), (41, 'open', 1, {long}), (42, 'open', 1, 'b')")
    site.sql("INSERT INTO lines VALUES (1, 1)")
    with capture_logs() as said:
        assert run_once(site, **site.env(STALL_S="15")) == 1
    sentence = next(each["detail"] for each in said if each["event"] == "flush_failed")
    assert sentence.startswith("shape open_orders: a change of public.orders (key: id) at ")
    assert "and 1,048,576 are allowed. Fix: " in sentence
    assert site.transactions("lines") == [[("I", 1)]]
    assert site.transactions("open_orders") == []
    records = len(site.kinesis.read_all(site.stream))
    assert records == 2 + 1 + 1, "two beginnings, and what `lines` has told: nothing of the failed flushes"

    kept = tmp_path / "quarantine"
    policy = {"UNDELIVERABLE_POLICY": "quarantine", "QUARANTINE_URL": kept.as_uri()}
    with capture_logs() as said:
        assert run_once(site, **site.env(**policy)) == 0
    assert [each["records"] for each in said if each["event"] == "record_quarantined"] == [1]
    assert site.transactions("open_orders") == [[("I", 40), ("Q", None), ("I", 42)]]
    (payload,) = kept.iterdir()
    assert b"x" * 1_100_000 in payload.read_bytes()
    problem = compare()["open_orders"].problem
    assert problem == "1 of its changes are in quarantine, and not in the stream"

    # The same is told to who has no Spark.
    file = load_shapes_file(site.file)
    found = look_at_storage(file, None)
    assert found.problems == {}
    for shape in ("open_orders", "lines"):
        resolved = StreamPosition.parse(site.marked(shape).spoken()[-1]["resolved"])
        assert found.tables[shape].position == (resolved.timeline, resolved.commit_lsn - 1)
    assert found.registry is not None
    with pytest.raises(StorageRefused, match=f"and the server is {found.registry.system_id}0"):
        read_table_version(file, file.shapes[0], f"{found.registry.system_id}0")
