"""`penstock check --config` of shapes whose storage is a stream: what is wrong with it, and the fix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.finding import Finding, Level
from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.local.kinesis import LocalKinesis
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile, definition_hash
from penstock.model.stream_position import StreamPosition
from penstock.shapes.definition.storage_check import check_stream_storage
from penstock.shapes.registry.registry import FileRegistry, Registry, ShapeEntry
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import ACCESS_DENIED, AmendSummary, Answer

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
MIB = 1 << 20
SHAPE = Shape("orders", Relation("public", "orders"))


@pytest.fixture
def file(
    fault_proxy: FaultProxy,
    kinesis: LocalKinesis,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> ShapesFile:
    for name, value in {**kinesis.env(), "AWS_ENDPOINT_URL_KINESIS": fault_proxy.url}.items():
        monkeypatch.setenv(name, value)
    return ShapesFile("shapes.toml", f"kinesis://{stream}", (SHAPE,), registry=str(tmp_path / "kept"))


def check(file: ShapesFile, max_record_bytes: int = MIB, quarantine_url: str | None = None) -> list[Finding]:
    return check_stream_storage(file, max_record_bytes, quarantine_url)


def told(findings: list[Finding]) -> list[tuple[Level, str]]:
    return [(each.level, each.subject) for each in findings]


def has_begun(file: ShapesFile) -> None:
    """The registry says that the shape's stream counts."""
    assert file.registry is not None
    store = FileRegistry(Path(file.registry))
    store.read()
    entry = ShapeEntry(definition_hash(SHAPE), awaits_snapshot=None, facts=None)
    store.write(Registry("7", 1, "penstock_shapes", 0x100, {SHAPE.name: entry}))


def test_tables_are_not_looked_at_here(file: ShapesFile) -> None:
    assert check(replace(file, storage="/srv/lake", registry=None)) == []


def test_a_stream_that_is_well(file: ShapesFile, stream: str, tmp_path: Path) -> None:
    found = check(file, quarantine_url=(tmp_path / "kept-away").as_uri())
    assert told(found) == [(OK, "stream"), (OK, "positions"), (OK, "quarantine")]
    assert found[0].found.startswith(f"'{stream}' is ACTIVE: ")
    assert found[1].found == "there are none yet: every shape begins where its snapshot is cut"


def test_positions_are_read_as_the_service_reads_them(
    file: ShapesFile, kinesis: LocalKinesis, stream: str
) -> None:
    has_begun(file)
    _, lost = check(file)
    assert (lost.level, lost.subject) == (WARN, "positions")
    assert lost.found.startswith("the stream has no manifest of shape orders any more")

    at = str(StreamPosition(1, 0x100))
    manifest = encode(Manifest(ACTION, "7", "orders", "by", at, at, 0, 0, {}, {}))
    kinesis.client.put_record(StreamName=stream, Data=manifest, PartitionKey=partition_key("orders"))
    assert told(check(file)) == [(OK, "stream"), (OK, "positions")]


def test_streams_that_are_not_there(file: ShapesFile, stream: str) -> None:
    (gone,) = check(replace(file, storage="kinesis://nowhere"))
    assert (gone.level, gone.subject) == (FAIL, "stream")
    assert "create-stream --stream-name nowhere " in gone.fix
    assert gone.fix.endswith("or correct storage in the shapes file and AWS_REGION")

    found = check(replace(file, storage=f"kinesis://{stream}?marks=no-such-marks"))
    assert told(found) == [(OK, "stream"), (FAIL, "manifests")]


def test_a_stream_that_ignores_keys(file: ShapesFile, fault_proxy: FaultProxy) -> None:
    fault_proxy.inject(AmendSummary("RecordDistributionStrategy", "AUTO"), operation="DescribeStreamSummary")
    (found,) = check(file)
    assert found.level is FAIL
    assert "ignores partition keys" in found.found
    assert "USER_PARTITION_KEY" in found.fix


def test_a_stream_of_smaller_records(file: ShapesFile, fault_proxy: FaultProxy) -> None:
    fault_proxy.inject(AmendSummary("MaxRecordSizeInKiB", 1024), operation="DescribeStreamSummary")
    stream, _ = check(file, 2 * MIB)
    assert stream.level is WARN
    assert "KINESIS_MAX_RECORD_BYTES is 2097152" in stream.found


def test_a_role_that_may_not_read(file: ShapesFile, fault_proxy: FaultProxy) -> None:
    fault_proxy.inject(Answer(ACCESS_DENIED), operation="ListShards")
    _, positions = check(file)
    assert (positions.level, positions.subject) == (FAIL, "positions")
    assert "kinesis:GetRecords" in positions.fix


def test_a_role_that_may_not_describe_is_told_what_a_flush_needs(
    file: ShapesFile, fault_proxy: FaultProxy
) -> None:
    fault_proxy.inject(Answer(ACCESS_DENIED), operation="DescribeStreamSummary")
    stream, *_ = check(file)
    assert (stream.level, stream.subject) == (WARN, "stream")
    assert "kinesis:PutRecords, and kinesis:PutRecord on the stream of the manifests" in stream.fix


def test_a_region_that_nobody_names(file: ShapesFile, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    (found,) = check(file)
    assert (found.level, found.subject) == (FAIL, "stream")
    assert "AWS_REGION is not set" in found.found
