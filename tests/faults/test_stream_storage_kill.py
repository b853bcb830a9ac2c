"""A shape that is published into a stream, killed in the middle of a flush: readers see each change once."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.fault_proxy import FaultProxy
from tests.servers.faults import FailRecords
from tests.servers.shapes_site import shape_lines
from tests.servers.stream_site import StreamSite

ROWS = 200


@pytest.fixture
def site(
    postgres: PrivatePostgres, database: str, tmp_path: Path, kinesis: LocalKinesis, stream: str
) -> StreamSite:
    site = StreamSite(postgres, database, tmp_path, kinesis, stream)
    site.sql("CREATE TABLE lines (id int PRIMARY KEY, v int NOT NULL)")
    site.write_file(shape_lines("lines"))
    return site


@pytest.mark.long
def test_kill_in_the_middle_of_a_flush(site: StreamSite, fault_proxy: FaultProxy) -> None:
    env = site.env(AWS_ENDPOINT_URL_KINESIS=fault_proxy.url)
    with site.shapes(**env) as first:
        first.wait_for_log("snapshot_done", 180)
        # One key is never taken: the flush has published all others, and can't end.
        fault_proxy.inject(FailRecords(keys={"public.lines/7"}))
        site.sql(f"INSERT INTO lines SELECT id, 0 FROM generate_series(1, {ROWS}) id")
        site.wait_until(lambda: len(site.kinesis.read_all(site.stream)) >= ROWS, 180, running=first)
        first.kill9()
    assert site.transactions("lines") == [], "what no manifest speaks of is nobody's"
    fault_proxy.clear()
    site.sql("UPDATE lines SET v = v + 1")
    site.wait_until_nobody_leads()
    with site.shapes(**env) as second:
        site.wait_until(lambda: sum(map(len, site.transactions("lines"))) >= 2 * ROWS, 180, running=second)
        second.stop()
        assert second.wait(60) == 0
    inserts, updates = site.transactions("lines")
    assert sorted(inserts) == [("I", number) for number in range(1, ROWS + 1)]
    assert sorted(updates) == [("U", number) for number in range(1, ROWS + 1)]
    assert len(site.kinesis.read_all(site.stream)) > 2 * ROWS, "the first leader's records are still there"
