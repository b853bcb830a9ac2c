"""A transaction of any size in a marked stream: whole for its readers, and never whole in their memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from penstock.demo.marked_stream import MarkedStream
from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import CaptureSite

GROWN_MB = 125
"""A page has 10,000 records and some 10 MB. It is there as an answer, as records and as rows: some 97 MB."""


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream, KINESIS_MARKED_STREAM="true", LEADER_TIMEOUT_S=30)


def read_in_a_process(site: CaptureSite) -> dict[str, Any]:
    options = {
        "kinesis.streamName": site.stream,
        "kinesis.region": site.kinesis.region,
        "kinesis.endpointUrl": site.kinesis.endpoint_url,
        "slot": site.slot,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.marked_reader_child", json.dumps(options)],
        env={**os.environ, **site.kinesis.env()},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    print(found)
    return found


def insert_at_once(site: CaptureSite, rows: int, pad: int, timeout_s: float) -> None:
    site.psql("CREATE TABLE large (id int PRIMARY KEY, pad text)")
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        site.psql(f"INSERT INTO large SELECT i, repeat('x', {pad}) FROM generate_series(1, {rows}) i")
        site.wait_until_confirmed(timeout=timeout_s)
        assert len(capture.events("streaming")) == 1


def test_a_hundred_thousand_rows_at_once(site: CaptureSite) -> None:
    insert_at_once(site, 100_000, 1_000, 120)
    found = read_in_a_process(site)
    assert (found["rows"], found["transactions"]) == (100_000, 1)
    assert found["mb"] > GROWN_MB
    assert found["grown_mb"] < GROWN_MB
    assert found["largest_batch_mb"] < 10


@pytest.mark.long
def test_a_million_rows_at_once(site: CaptureSite) -> None:
    insert_at_once(site, 1_000_000, 200, 600)
    found = read_in_a_process(site)
    assert (found["rows"], found["transactions"]) == (1_000_000, 1)
    assert found["mb"] > 4 * GROWN_MB
    assert found["grown_mb"] < GROWN_MB
    spoken = MarkedStream(site.kinesis.read_all(site.stream), site.slot).spoken()
    assert max(each["changes"] for each in spoken) == 1_000_000, "one manifest tells of all of it"
