"""GetRecords' answer as we take it apart, against what botocore makes of it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from penstock.kinesis.read import client as client_module
from penstock.kinesis.read.client import TRIM_HORIZON, Page, ReadRecord, StreamClient
from penstock.kinesis.read.errors import StreamReadError

LARGEST = "49543463076570308322303623326179887152428262250726293522"
ITERATOR = b'{"ShardIterator":"i"}'


def body(*records: dict[str, Any], **members: object) -> bytes:
    return json.dumps({"Records": records, "NextShardIterator": "i", **members}).encode()


def record(number: str = "7", data: bytes = b"x", at: object = 1_700_000_000.25) -> dict[str, Any]:
    return {
        "SequenceNumber": number,
        "ApproximateArrivalTimestamp": at,
        "Data": base64.b64encode(data).decode(),
        "PartitionKey": "Käse\u2028",
        "EncryptionType": "NONE",
    }


class _Raw(io.BytesIO):
    def stream(self) -> Iterator[bytes]:
        yield self.read()


class Answers(StreamClient):
    """A client to which Kinesis answers what it is told to, below everything that botocore does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, bytes]) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setattr(client_module, "_CALL_EVERY_S", 0.0)
        monkeypatch.setattr(client_module, "_FIRST_BACKOFF_S", 0.0)
        super().__init__(stream="s", region="eu-west-1")
        self._answers = list(answers)
        self._client.meta.events.register("before-send.kinesis", self._send)

    def _send(self, request: Any, **_: object) -> AWSResponse:
        is_page = request.headers["X-Amz-Target"].endswith(b".GetRecords")
        status, answer = self._answers.pop(0) if is_page else (200, ITERATOR)
        headers = {"content-type": "application/x-amz-json-1.1"}
        return AWSResponse(request.url, status, headers, _Raw(answer))

    def first_page(self) -> Page:
        return next(self.pages("shard", TRIM_HORIZON))


def test_a_page_has_all_that_readers_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256))
    found = body(record(LARGEST, data), record("8", b"", 1_700_000_001), MillisBehindLatest=5, ChildShards=[])
    assert Answers(monkeypatch, (200, found)).first_page() == Page(
        [
            ReadRecord(int(LARGEST), "Käse\u2028", data, datetime(2023, 11, 14, 22, 13, 20, 250_000, UTC)),
            ReadRecord(8, "Käse\u2028", b"", datetime(2023, 11, 14, 22, 13, 21, 0, UTC)),
        ],
        5,
        is_last=False,
    )


def test_the_end_of_a_closed_shard_has_no_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Answers(monkeypatch, (200, body(NextShardIterator=None, MillisBehindLatest=None)))
    assert client.first_page() == Page([], 0, is_last=True)


def test_errors_are_botocores_and_pass_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = 400, b'{"__type":"ProvisionedThroughputExceededException","message":"slow"}'
    refused = 400, b'{"__type":"AccessDeniedException","message":"not you"}'
    client = Answers(monkeypatch, throttled, (200, body(record())), refused)
    pages = client.pages("shard", TRIM_HORIZON)
    assert [each.sequence for each in next(pages).records] == [7]
    with pytest.raises(StreamReadError, match=r"get_records: .*AccessDenied.*not you"):
        next(pages)


@pytest.mark.parametrize(
    "broken",
    [b"<html>", b"{}", b'{"Records":[{"Data":"%%%"}]}', body(record())[:-9], b"\xff"],
    ids=["html", "no records", "no base64", "half", "no text"],
)
def test_an_answer_that_is_none_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, broken: bytes) -> None:
    client = Answers(monkeypatch, (200, broken), (200, body(record())))
    assert len(client.first_page().records) == 1
    monkeypatch.setattr(client_module, "_PATIENCE_S", 0.0)
    with pytest.raises(StreamReadError, match="the answer is not what GetRecords answers"):
        Answers(monkeypatch, (200, broken)).first_page()
