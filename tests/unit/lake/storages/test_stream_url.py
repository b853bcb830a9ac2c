"""The stream that a storage's URL names."""

from __future__ import annotations

import pytest

from penstock.lake.errors import StorageRefused
from penstock.lake.storages.stream_url import StreamUrl, stream_of
from penstock.lake.stream.place import StreamPlace
from penstock.model.shape import ShapesFile


def file_at(storage: str) -> ShapesFile:
    return ShapesFile("shapes.toml", storage, ())


@pytest.mark.parametrize(
    ("storage", "marks"), [("kinesis://orders", "orders"), ("kinesis://orders?marks=said", "said")]
)
def test_a_stream_is_where_the_environment_says(
    storage: str, marks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "http://127.0.0.1:1")
    place = StreamPlace("orders", "eu-west-1", "http://127.0.0.1:1")
    assert stream_of(file_at(storage)) == StreamUrl(place, marks)
    assert stream_of(file_at("/var/lake")) is None


def test_a_stream_without_a_region_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageRefused, match="AWS_REGION is not set"):
        stream_of(file_at("kinesis://orders"))
