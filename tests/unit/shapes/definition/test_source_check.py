"""What `penstock check --from` says of a stream, and of that of its manifests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.finding import Level
from penstock.kinesis.marked.manifest import ACTION, Manifest, encode, partition_key
from penstock.kinesis.read.client import StreamClient
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.model.shape import ShapesFile
from penstock.model.stream_position import StreamPosition
from penstock.settings.kinesis import MarkedStreamSettings
from penstock.settings.loading import load_stream_source
from penstock.shapes.definition import source_check
from penstock.shapes.definition.source_check import check_source
from tests.stream_in_memory import StreamInMemory

SLOT = "etl"
KEY = partition_key(SLOT)


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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_memory(_: MarkedStreamSettings) -> StreamAddress:
        return address(data, marks)

    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setattr(source_check, "address_of", in_memory)
    file = ShapesFile("shapes.toml", str(tmp_path), ())

    *streams, manifests = check_source(load_stream_source(f"kinesis://changes?slot={SLOT}&marks=marks"), file)

    assert [each.level for each in streams] == levels
    assert [each.found.split()[0] for each in streams] == ["'changes'", "'marks'"]
    assert (manifests.level, manifests.subject) == (Level.OK, "manifests")
