"""The quarantine in a bucket, on a real S3 protocol: whole, once, and read back."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.finding import Level
from penstock.kinesis.stream_check import check_quarantine
from penstock.kinesis.write.quarantine import QuarantineError, QuarantineStore
from penstock.kinesis.write.quarantine_places import open_quarantine

REGION = "us-east-1"
PAYLOAD = bytes(range(256)) * 5000


@pytest.fixture
def client(s3: Any) -> Any:
    s3.create_bucket(Bucket="parked")
    return s3


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
