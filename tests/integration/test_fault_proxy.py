"""Each fault of the proxy does to a real client and a real emulator what it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ReadTimeoutError

from penstock.local.kinesis import ACCESS_KEY_ID, SECRET_ACCESS_KEY, LocalKinesis
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import (
    ACCESS_DENIED,
    INTERNAL_FAILURE,
    LIMIT_EXCEEDED,
    NO_SUCH_STREAM,
    THROTTLED,
    UNAVAILABLE,
    Answer,
    CutAfter,
    CutBefore,
    Delay,
    FailRecords,
    RefuseKey,
)
from tests.servers.kinesis_rules import Refusal

Put = Callable[..., Any]
Stored = Callable[[], list[str]]
BROKEN_LINE = (ConnectionClosedError, EndpointConnectionError)


def kinesis_client(url: str, read_timeout: float = 20) -> Any:
    return botocore.session.Session().create_client(
        "kinesis",
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=read_timeout, proxies={}),
    )


@pytest.fixture
def client(fault_proxy: FaultProxy) -> Iterator[Any]:
    client = kinesis_client(fault_proxy.url)
    yield client
    client.close()


@pytest.fixture
def put(client: Any, stream: str) -> Put:
    """Puts one record a key, with the key as data, and gives the answer."""

    def put(*keys: str) -> Any:
        records = [{"Data": key.encode(), "PartitionKey": key} for key in keys]
        return client.put_records(StreamName=stream, Records=records)

    return put


@pytest.fixture
def stored(kinesis: LocalKinesis, stream: str) -> Stored:
    """The keys in the stream, sorted."""
    return lambda: sorted(record.partition_key for record in kinesis.read_all(stream))


def test_passes_everything_by_default(
    fault_proxy: FaultProxy, client: Any, stream: str, put: Put, stored: Stored
) -> None:
    assert (
        client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["OpenShardCount"] == 4
    )
    answer = put("a", "b")
    assert answer["FailedRecordCount"] == 0
    assert stored() == ["a", "b"]
    assert [request.operation for request in fault_proxy.log.requests] == [
        "DescribeStreamSummary",
        "PutRecords",
    ]
    (logged,) = fault_proxy.log.puts
    assert (logged.outcome, logged.forwarded) == ("ok", True)
    assert [(record.key, record.data, record.outcome) for record in logged.records] == [
        ("a", b"a", "accepted"),
        ("b", b"b", "accepted"),
    ]
    assert fault_proxy.log.violations == ()


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "InternalFailure"])
def test_fails_chosen_records_and_forwards_the_others(
    fault_proxy: FaultProxy, put: Put, stored: Stored, code: str
) -> None:
    fault_proxy.inject(FailRecords(at=[1], keys=["d"], code=code), times=1)
    answer = put("a", "b", "c", "d", "e")
    assert answer["FailedRecordCount"] == 2
    assert [record.get("ErrorCode") for record in answer["Records"]] == [None, code, None, code, None]
    assert all("ShardId" in answer["Records"][taken] for taken in (0, 2, 4))
    assert stored() == ["a", "c", "e"]
    (logged,) = fault_proxy.log.puts
    assert logged.outcome == "partial"
    assert [record.forwarded for record in logged.records] == [True, False, True, False, True]
    assert put("f")["FailedRecordCount"] == 0


def test_fails_all_records_without_forwarding(fault_proxy: FaultProxy, put: Put, stored: Stored) -> None:
    fault_proxy.inject(FailRecords(share=1.0))
    assert put("a", "b")["FailedRecordCount"] == 2
    assert stored() == []
    assert not fault_proxy.log.puts[0].forwarded


def test_random_failures_follow_the_seed(kinesis: LocalKinesis, stream: str) -> None:
    def failed(seed: int) -> list[bool]:
        with FaultProxy(kinesis.endpoint_url, seed=seed) as proxy:
            client = kinesis_client(proxy.url)
            proxy.inject(FailRecords(share=0.3))
            records = [{"Data": b"x", "PartitionKey": f"{i}"} for i in range(200)]
            answer = client.put_records(StreamName=stream, Records=records)
            client.close()
            return ["ErrorCode" in record for record in answer["Records"]]

    assert failed(1) == failed(1) != failed(2)
    assert 20 < sum(failed(1)) < 100


@pytest.mark.parametrize(
    "refusal", [THROTTLED, LIMIT_EXCEEDED, INTERNAL_FAILURE, UNAVAILABLE, ACCESS_DENIED, NO_SUCH_STREAM]
)
def test_answers_whole_requests_with_errors(
    fault_proxy: FaultProxy, put: Put, stored: Stored, refusal: Refusal
) -> None:
    fault_proxy.inject(Answer(refusal), times=2)
    for _ in range(2):
        with pytest.raises(ClientError) as raised:
            put("a")
        assert raised.value.response["Error"]["Code"] == refusal.code
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == refusal.status
    assert stored() == []
    put("b")
    assert stored() == ["b"]
    assert fault_proxy.log.counts == {refusal.code: 2, "ok": 1}
    assert fault_proxy.log.record_counts == {refusal.code: 2, "accepted": 1}


def test_an_operation_of_its_own_can_be_struck(
    fault_proxy: FaultProxy, client: Any, stream: str, put: Put
) -> None:
    fault_proxy.inject(Answer(ACCESS_DENIED), operation="DescribeStreamSummary")
    put("a")
    with pytest.raises(ClientError, match="AccessDenied"):
        client.describe_stream_summary(StreamName=stream)


def test_cut_before_forwards_nothing(fault_proxy: FaultProxy, put: Put, stored: Stored) -> None:
    fault_proxy.inject(CutBefore(), times=1)
    with pytest.raises(BROKEN_LINE):
        put("a")
    assert stored() == []
    assert [(r.outcome, r.forwarded) for r in fault_proxy.log.puts[0].records] == [("cut", False)]
    put("a")


def test_cut_after_has_forwarded_everything(fault_proxy: FaultProxy, put: Put, stored: Stored) -> None:
    fault_proxy.inject(CutAfter(), times=1)
    with pytest.raises(BROKEN_LINE):
        put("a")
    assert stored() == ["a"]
    assert [(r.outcome, r.forwarded) for r in fault_proxy.log.puts[0].records] == [("cut", True)]


def test_faults_add_up(fault_proxy: FaultProxy, put: Put, stored: Stored) -> None:
    fault_proxy.inject(FailRecords(keys=["a"]), times=1)
    fault_proxy.inject(Delay(before_s=0.1, after_s=0.1), times=1)
    fault_proxy.inject(CutAfter(), times=1)
    began = time.monotonic()
    with pytest.raises(BROKEN_LINE):
        put("a", "b")
    assert time.monotonic() - began >= 0.2
    assert stored() == ["b"]


def test_refuses_requests_with_a_poisonous_key(fault_proxy: FaultProxy, put: Put, stored: Stored) -> None:
    fault_proxy.inject(RefuseKey("bad"))
    put("a", "b")
    with pytest.raises(ClientError, match="ValidationException"):
        put("c", "bad")
    fault_proxy.clear(RefuseKey("bad"))
    put("bad")
    assert stored() == ["a", "b", "bad"]


def test_a_fault_may_strike_by_probability(fault_proxy: FaultProxy, put: Put) -> None:
    fault_proxy.inject(FailRecords(share=1.0), probability=0.5)
    failed = [put("a")["FailedRecordCount"] for _ in range(40)]
    assert 5 < sum(failed) < 35


def test_outage_refuses_connections_until_restored(fault_proxy: FaultProxy, put: Put, stored: Stored) -> None:
    put("a")
    fault_proxy.outage()
    for _ in range(2):
        with pytest.raises(BROKEN_LINE):
            put("b")
    fault_proxy.restore()
    put("c")
    assert stored() == ["a", "c"]


def test_a_held_request_is_forwarded_at_release(fault_proxy: FaultProxy, put: Put, stored: Stored) -> None:
    fault_proxy.hold()
    sender = threading.Thread(target=put, args=("a",))
    sender.start()
    fault_proxy.log.wait_for(lambda log: log.held == 1)
    assert stored() == []
    fault_proxy.release()
    sender.join()
    assert stored() == ["a"]
    assert (fault_proxy.log.held, fault_proxy.log.counts) == (0, {"ok": 1})


def test_a_held_request_is_forwarded_even_if_its_client_has_left(
    fault_proxy: FaultProxy, stream: str, stored: Stored
) -> None:
    fault_proxy.hold()
    impatient = kinesis_client(fault_proxy.url, read_timeout=0.2)
    with pytest.raises(ReadTimeoutError):
        impatient.put_records(StreamName=stream, Records=[{"Data": b"a", "PartitionKey": "a"}])
    impatient.close()
    assert stored() == []
    fault_proxy.release()
    fault_proxy.log.wait_for(lambda log: len(log.puts) == 1)
    assert stored() == ["a"]
    assert fault_proxy.log.counts == {"cut": 1}


def test_waiting_has_an_end(fault_proxy: FaultProxy) -> None:
    with pytest.raises(TimeoutError, match="0 arrived"):
        fault_proxy.log.wait_for(lambda log: log.arrived == 1, timeout=0.05)
