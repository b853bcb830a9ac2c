"""What `penstock check --from` says of a stream, and of that of its manifests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from penstock.errors import ConnectionFailed
from penstock.finding import Level
from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile
from penstock.model.stream_position import StreamPosition
from penstock.outside.source_findings import check_writer
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.kinesis import MarkedStreamSettings
from penstock.settings.loading import load_shapes_settings, load_stream_source
from penstock.shapes.app import Run, check_without_spark
from penstock.shapes.definition import source_check
from penstock.shapes.definition.shapes_file import ShapeFileError
from penstock.shapes.definition.source_check import check_names, check_source, shared_names
from tests.stream_in_memory import StreamInMemory

SLOT = "etl"
KEY = partition_key(SLOT)
URL = f"kinesis://changes?slot={SLOT}&marks=marks"


class Described(StreamInMemory):
    """A stream with a summary."""

    def __init__(self, summary: Mapping[str, Any]) -> None:
        super().__init__()
        self._summary = summary
        manifest = Manifest(
            ACTION, "7", SLOT, "by", str(StreamPosition(1, 16)), str(StreamPosition(1, 32)), 0, 0, {}, {}
        )
        self.put(self.open_shard_of(KEY), encode(manifest), KEY)

    def summary(self) -> Mapping[str, Any]:
        return self._summary

    def retention(self) -> timedelta:
        return timedelta(hours=self._summary["RetentionPeriodHours"])

    def close(self) -> None:
        """There is nothing."""


DAY, WEEK = {"RetentionPeriodHours": 24}, {"RetentionPeriodHours": 168}
AUTO = {**DAY, "RecordDistributionStrategy": "AUTO"}


class Address(StreamAddress):
    """Of streams in memory."""

    streams: Mapping[str, Described]

    def open(self, stream: str | None = None) -> StreamClient:
        return cast(StreamClient, self.streams[stream or self.stream])


def address(data: Mapping[str, Any], marks: Mapping[str, Any]) -> Address:
    found = Address("changes", "marks", SLOT, "eu-west-1")
    found.streams = {"changes": Described(data), "marks": Described(marks)}
    return found


@pytest.mark.parametrize(("data", "marks"), [(DAY, WEEK), (WEEK, DAY)])
def test_what_one_stream_has_forgotten_is_gone(data: Mapping[str, Any], marks: Mapping[str, Any]) -> None:
    assert MarkedStream(address(data, marks)).retention() == timedelta(hours=24)


@pytest.mark.parametrize(
    ("data", "marks", "levels"),
    [
        (DAY, WEEK, [Level.OK, Level.OK]),
        (AUTO, WEEK, [Level.FAIL, Level.OK]),
        (WEEK, AUTO, [Level.OK, Level.FAIL]),
    ],
)
def test_both_streams_have_to_go_by_keys(
    data: Mapping[str, Any],
    marks: Mapping[str, Any],
    levels: list[Level],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_memory(_: MarkedStreamSettings) -> StreamAddress:
        return address(data, marks)

    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setattr(source_check, "address_of", in_memory)

    *streams, manifests = check_source(load_stream_source(URL), lambda: None)

    assert [each.level for each in streams] == levels
    assert [each.found.split()[0] for each in streams] == ["'changes'", "'marks'"]
    assert (manifests.level, manifests.subject) == (Level.OK, "manifests")


@pytest.mark.parametrize(
    ("needed", "passed_h", "level", "found"),
    [
        (16, 0, Level.OK, "of slot etl; they reach back to 0/10 of timeline 1"),
        (15, 0, Level.FAIL, "they begin at 0/10 of timeline 1, and the slowest shape needs them from 0/F"),
        (16, 13, Level.WARN, "the slowest shape needs what came 13.0 h ago"),
        (32, 13, Level.OK, "of slot etl; they reach back to 0/20 of timeline 1"),
    ],
)
def test_manifests_have_to_reach_back_to_what_is_needed(
    needed: int, passed_h: int, level: Level, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = address(DAY, WEEK)
    read.streams["marks"].pass_time(timedelta(hours=passed_h))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setattr(source_check, "address_of", lambda _: read)

    *_, manifests = check_source(load_stream_source(URL), lambda: StreamPosition(1, needed))

    assert manifests.level == level
    assert manifests.found.startswith(found)


@pytest.mark.parametrize(
    ("source", "storage", "is_refused"),
    [
        ("kinesis://changes?slot=orders", "kinesis://changes", True),
        ("kinesis://changes?slot=orders", "kinesis://other", False),
        ("kinesis://changes?slot=orders", "/lake", False),
        ("kinesis://changes?slot=etl", "kinesis://changes", False),
        ("kinesis://changes?slot=orders&marks=marks", "kinesis://changes", False),
        ("kinesis://changes?slot=orders&marks=marks", "kinesis://other?marks=marks", True),
        (
            "kinesis://arn:aws:kinesis:eu-west-1:123456789012:stream/changes?slot=orders",
            "kinesis://changes",
            True,
        ),
    ],
)
def test_a_shape_is_not_called_as_the_slot_in_the_same_stream(
    source: str, storage: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    file = ShapesFile("shapes.toml", storage, (Shape("orders", Relation("public", "orders")),))
    settings = load_stream_source(source)

    lines = shared_names(file, source_check.address_of(settings))

    assert [line.split(":")[0] for line in lines] == ["shapes.toml"] * is_refused
    assert all("shape orders has the name of the slot" in line for line in lines)
    assert [(each.level, each.subject) for each in check_names(file, settings)] == [
        (Level.FAIL, "shapes")
    ] * is_refused
    assert shared_names(file, None) == []


def test_it_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    file = ShapesFile("shapes.toml", "kinesis://changes", (Shape("etl", Relation("public", "orders")),))
    run = Run("local", {}, stream=StreamAddress("changes", "changes", SLOT, "eu-west-1"))
    with pytest.raises(ShapeFileError, match="shape etl has the name of the slot"):
        check_without_spark(load_shapes_settings({}, dotenv=None), file, run)


@pytest.mark.parametrize(
    ("system", "passed", "expected"),
    [
        ("7", timedelta(), []),
        ("8", timedelta(), [(Level.FAIL, "the stream has manifests of system 7, and the server is 8")]),
        ("7", timedelta(hours=1), [(Level.WARN, "no manifest has come into marks for at least 120 s")]),
        (None, timedelta(), []),
    ],
)
def test_who_writes_it_is_this_server_s_capture(
    system: str | None, passed: timedelta, expected: list[tuple[Level, str]]
) -> None:
    read = address(DAY, WEEK)
    for stream in read.streams.values():
        stream.pass_time(passed)
    server = None if system is None else ServerIdentity(system, 1, {})
    found = check_writer(read, server, 60.0)
    assert [(each.level, each.found) for each in found] == expected
    assert all(each.subject == "manifests" and each.fix for each in found)


def test_what_can_not_be_told_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> StreamPosition:
        raise ConnectionFailed("no server there. Fix: start it")

    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setattr(source_check, "address_of", lambda _: address(DAY, DAY))
    *streams, manifests = check_source(load_stream_source(URL), unreachable)
    assert [each.level for each in streams] == [Level.OK, Level.OK]
    assert (manifests.level, manifests.found, manifests.fix) == (Level.FAIL, "no server there", "start it")
