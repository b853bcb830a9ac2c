"""The quarantine in a bucket, on a real S3 protocol: whole, once, and read back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from moto.server import ThreadedMotoServer

from penstock.finding import Level
from penstock.kinesis.stream_check import check_quarantine
from penstock.kinesis.write.quarantine import QuarantineError, QuarantineStore
from penstock.kinesis.write.quarantine_places import open_quarantine

REGION = "us-east-1"
PAYLOAD = bytes(range(256)) * 5000


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def client(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket, found as AWS's tools find it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client = botocore.session.get_session().create_client("s3", region_name=REGION)
    client.create_bucket(Bucket="parked")
    for found in client.list_objects_v2(Bucket="parked").get("Contents", []):
        client.delete_object(Bucket="parked", Key=found["Key"])
    return client


@pytest.fixture
def store(client: Any) -> QuarantineStore:
    return open_quarantine("s3://parked/penstock/shop", REGION)


def test_a_payload_is_there_when_it_returns_and_may_come_again(store: QuarantineStore, client: Any) -> None:
    assert store.store("one", PAYLOAD) == "s3://parked/penstock/shop/one"
    assert store.store("one", PAYLOAD) == "s3://parked/penstock/shop/one"
    assert client.get_object(Bucket="parked", Key="penstock/shop/one")["Body"].read() == PAYLOAD


def test_other_content_is_not_replaced(store: QuarantineStore, client: Any) -> None:
    client.put_object(Bucket="parked", Key="penstock/shop/one", Body=b"somebody else's")
    with pytest.raises(QuarantineError, match="s3://parked/penstock/shop/one: it holds other content"):
        store.store("one", PAYLOAD)
    assert client.get_object(Bucket="parked", Key="penstock/shop/one")["Body"].read() == b"somebody else's"


@pytest.mark.usefixtures("client")
def test_a_bucket_that_is_not_there_blocks() -> None:
    with pytest.raises(QuarantineError, match="can't store s3://nowhere/one"):
        open_quarantine("s3://nowhere", REGION).store("one", PAYLOAD)


def test_a_service_that_is_away_blocks(monkeypatch: pytest.MonkeyPatch, store: QuarantineStore) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    with pytest.raises(QuarantineError, match="can't store"):
        open_quarantine("s3://parked/x", REGION).store("one", PAYLOAD)


@pytest.mark.usefixtures("client")
def test_check_says_whether_the_bucket_is_there() -> None:
    assert check_quarantine("s3://parked/x", REGION).level is Level.OK
    missing = check_quarantine("s3://nowhere/x", REGION)
    assert missing.level is Level.FAIL
    assert "s3://nowhere can't be reached" in missing.found
