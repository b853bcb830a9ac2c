"""The fault proxy refuses what Kinesis refuses."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.local.kinesis import ACCESS_KEY_ID, SECRET_ACCESS_KEY, LocalKinesis
from tests.servers.fault_proxy import FaultProxy

MIB = 1024 * 1024


def record(data: bytes, key: str) -> dict[str, Any]:
    return {"Data": base64.b64encode(data).decode(), "PartitionKey": key}


LARGEST = record(bytes(MIB - 1), "k")


def sign(url: str, body: bytes, secret: str = SECRET_ACCESS_KEY) -> dict[str, str]:
    headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "Kinesis_20131202.PutRecords"}
    request = AWSRequest("POST", url, headers, body)
    SigV4Auth(Credentials(ACCESS_KEY_ID, secret), "kinesis", "eu-west-1").add_auth(request)
    return dict(request.headers.items())


def post(url: str, body: bytes, headers: dict[str, str]) -> str:
    """Send a request as it is, and give the error code of its answer, or "ok"."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    try:
        connection.request("POST", "/", body, headers)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == (400 if "__type" in content else 200)
        return str(content.get("__type", "ok"))
    finally:
        connection.close()


def put(url: str, stream: str, records: Any) -> str:
    body = json.dumps({"StreamName": stream, "Records": records}).encode()
    return post(url, body, sign(url, body))


@pytest.mark.parametrize(
    ("records", "answer"),
    [
        pytest.param([record(b"", "k")] * 500, "ok", id="500 records"),
        pytest.param([record(b"", "k")] * 501, "ValidationException", id="501 records"),
        pytest.param([], "ValidationException", id="no record"),
        pytest.param([record(bytes(MIB - 2), "ü")], "ok", id="1 MiB with its key"),
        pytest.param([record(bytes(MIB - 1), "ü")], "ValidationException", id="1 MiB and a byte"),
        pytest.param([record(bytes(MIB - 1), "k")] * 10, "ok", id="10 MiB in all"),
        pytest.param(
            [record(bytes(MIB - 1), "k")] * 10 + [record(b"", "k")], "InvalidArgumentException", id="more"
        ),
        pytest.param([record(b"x", "")], "ValidationException", id="empty key"),
        pytest.param([record(b"x", "ü" * 256)], "ok", id="256 characters"),
        pytest.param([record(b"x", "ü" * 257)], "ValidationException", id="257 characters"),
        pytest.param(
            [{"Data": "not base64!", "PartitionKey": "k"}], "SerializationException", id="not base64"
        ),
        pytest.param([{"Data": ""}], "SerializationException", id="no key"),
    ],
)
def test_the_limits_of_put_records(
    fault_proxy: FaultProxy, kinesis: LocalKinesis, stream: str, records: Any, answer: str
) -> None:
    assert put(fault_proxy.url, stream, records) == answer
    refused = answer != "ok"
    assert [violation.code for violation in fault_proxy.log.violations] == [answer] * refused
    assert len(kinesis.read_all(stream)) == (0 if refused else len(records))


def test_another_limit_for_records(kinesis: LocalKinesis, stream: str) -> None:
    with FaultProxy(kinesis.endpoint_url, max_record_bytes=10) as proxy:
        assert put(proxy.url, stream, [record(b"123456789", "k")]) == "ok"
        assert put(proxy.url, stream, [record(b"1234567890", "k")]) == "ValidationException"


def test_a_lenient_proxy_leaves_it_to_the_emulator(kinesis: LocalKinesis, stream: str) -> None:
    with FaultProxy(kinesis.endpoint_url, strict=False, max_record_bytes=1) as proxy:
        assert put(proxy.url, stream, [record(b"12345", "k")]) == "ok"


def test_signatures(fault_proxy: FaultProxy, stream: str) -> None:
    url = fault_proxy.url
    body = json.dumps({"StreamName": stream, "Records": [record(b"x", "k")]}).encode()
    right = sign(url, body)
    assert post(url, body, right) == "ok"
    unsigned = {name: value for name, value in right.items() if name != "Authorization"}
    assert post(url, body, unsigned) == "MissingAuthenticationTokenException"
    assert post(url, body, {**right, "Authorization": "Bearer x"}) == "IncompleteSignatureException"
    assert post(url, body, sign(url, body, "another secret")) == "InvalidSignatureException"
    assert post(url, body + b" ", right) == "InvalidSignatureException"
    assert post(url, body, {**right, "X-Amz-Date": "20200101T000000Z"}) == "InvalidSignatureException"
