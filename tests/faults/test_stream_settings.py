"""Issue 8, points 11, 12 and 15: streams named, set or reached in ways that PutRecords doesn't tell of."""

from __future__ import annotations

import time

from tests.faults.rig import Rig, assert_calm
from tests.servers.capture_site import readiness, wait_for_phase
from tests.servers.exchange import PUT_RECORDS
from tests.servers.faults import AmendSummary, Delay

AUTO = AmendSummary("RecordDistributionStrategy", "AUTO")
BY_KEY = AmendSummary("RecordDistributionStrategy", "USER_PARTITION_KEY")
TABLE = "CREATE TABLE items (id int PRIMARY KEY, version int)"
UNORDERED = {"PARTITION_KEY_MODE": "fallback", "PARTITION_KEY_FALLBACK": "lsn"}


def test_a_stream_that_ignores_keys_gets_nothing_until_it_is_switched(rig: Rig) -> None:
    """Point 11."""
    rig.psql(TABLE)
    rig.psql("INSERT INTO items VALUES (1, 1)")
    rig.proxy.inject(AUTO, operation="DescribeStreamSummary")
    with rig.capture() as capture:
        down = wait_for_phase(capture, "sink_down")
        assert down["status"] == 503
        assert "ignores partition keys" in down["reasons"][0]
        assert capture.wait_for_log("sink_down")["level"] == "error"
        assert not [request for request in rig.proxy.log.requests if request.operation == PUT_RECORDS]
        rig.proxy.clear()
        rig.proxy.inject(BY_KEY, operation="DescribeStreamSummary")
        capture.wait_for_log("streaming")
        rig.wait_until_confirmed()
        assert readiness(capture)["status"] == 200
        assert_calm(capture)
    assert len(rig.of_key("public.items/1")) == 1


def test_a_marked_stream_that_ignores_keys_is_not_helped_by_doing_without_order(rig: Rig) -> None:
    rig.proxy.inject(AUTO, operation="DescribeStreamSummary")
    with rig.capture(**UNORDERED, KINESIS_MARKED_STREAM="true") as capture:
        (reason, *_) = wait_for_phase(capture, "sink_down")["reasons"]
    assert "USER_PARTITION_KEY" in reason
    assert "PARTITION_KEY_FALLBACK" not in reason


def test_a_stream_that_ignores_keys_is_good_enough_without_order(rig: Rig) -> None:
    """Point 11."""
    rig.psql(TABLE)
    rig.proxy.inject(AUTO, operation="DescribeStreamSummary")
    with rig.capture(**UNORDERED) as capture:
        capture.wait_for_log("streaming")
        rig.psql("INSERT INTO items VALUES (1, 1)")
        rig.wait_until_confirmed()
        assert readiness(capture)["status"] == 200
    assert len(rig.changes()) == 1


def test_a_stream_may_be_named_by_its_arn(rig: Rig) -> None:
    """Point 12."""
    rig.psql(TABLE)
    arn = f"arn:aws:kinesis:{rig.kinesis.region}:123456789012:stream/{rig.stream}"
    with rig.capture(KINESIS_STREAM=arn) as capture:
        capture.wait_for_log("streaming")
        rig.psql("INSERT INTO items VALUES (1, 1)")
        rig.wait_until_confirmed()
        assert_calm(capture)
    assert len(rig.of_key("public.items/1")) == 1


def test_as_many_requests_as_are_allowed(rig: Rig) -> None:
    """Point 15."""
    rig.psql(TABLE)
    with rig.capture(KINESIS_MAX_REQUESTS=2, KINESIS_BATCH_MAX_RECORDS=1) as capture:
        capture.wait_for_log("streaming")
        rig.proxy.hold()
        rig.psql("INSERT INTO items SELECT id, 0 FROM generate_series(1, 10) AS id")
        rig.proxy.log.wait_for(lambda log: log.held == 2)
        time.sleep(0.5)
        assert rig.proxy.log.held == 2
        rig.proxy.release()
        rig.wait_until_confirmed()
        assert_calm(capture)


def test_an_answer_is_waited_for_as_long_as_is_asked_for(rig: Rig) -> None:
    """Point 15."""
    rig.psql(TABLE)
    rig.proxy.inject(Delay(after_s=1.0), times=1)
    with rig.capture(KINESIS_READ_TIMEOUT_S=0.5) as capture:
        capture.wait_for_log("streaming")
        rig.psql("INSERT INTO items VALUES (1, 1)")
        assert capture.wait_for_log("request_failed")["code"] == "TimeoutError"
        rig.wait_until_confirmed()
    assert len(rig.of_key("public.items/1")) >= 2, "given up, and carried out all the same"
