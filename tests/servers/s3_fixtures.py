"""An S3 for tests. Imports are inside: whoever runs tests without it shouldn't wait for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest


class S3Request(NamedTuple):
    """What S3 was asked."""

    method: str
    path: str
    query: dict[str, str]


class S3Requests:
    """What S3 was asked since `clear`, by moto's own record."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def clear(self) -> None:
        """Forget what was before."""
        self._recorder.reset_recording()

    def all(self) -> list[S3Request]:
        """Every request, oldest first."""
        lines = [json.loads(line) for line in self._recorder.download_recording().splitlines()]
        urls = [(line["method"], urlsplit(line["url"])) for line in lines]
        return [S3Request(method, url.path, dict(parse_qsl(url.query))) for method, url in urls]

    def lists(self, bucket: str, directory: str) -> list[dict[str, str]]:
        """The parameters of each LIST of a directory."""
        lists = [each.query for each in self.all() if each.path == f"/{bucket}" and "list-type" in each.query]
        return [query for query in lists if query["prefix"].rstrip("/") == directory]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Where moto's S3 listens, in this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of an S3 without buckets, which AWS's tools find too; what a test makes there goes with it."""
    import botocore.session

    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client = botocore.session.get_session().create_client("s3", region_name="us-east-1")
    yield client
    for bucket in [each["Name"] for each in client.list_buckets()["Buckets"]]:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for found in page.get("Contents", []):
                client.delete_object(Bucket=bucket, Key=found["Key"])
        client.delete_bucket(Bucket=bucket)


@pytest.fixture
def s3_requests(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Requests]:
    """What that S3 is asked."""
    from moto.moto_api import recorder

    monkeypatch.setattr(recorder, "_location", str(tmp_path / "requests to S3"))
    recorder.reset_recording()
    recorder.start_recording()
    yield S3Requests(recorder)
    recorder.stop_recording()
