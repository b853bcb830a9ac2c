"""A query over a marked stream is killed in mid-batch: the same batch ids hold the same rows afterwards."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.servers.capture_site import CaptureSite, wait_until
from tests.servers.marked_query import MarkedQuery, insert_pairs

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    site = CaptureSite(
        postgres, database, kinesis, stream, KINESIS_MARKED_STREAM="true", KINESIS_MARK_INTERVAL_MS=10
    )
    site.psql("CREATE TABLE t (id int PRIMARY KEY, amount int)")
    return site


def kill_in_mid_batch(query: MarkedQuery, rng: random.Random) -> None:
    with query.running("endless") as process:
        old = set(query.under_way())
        goal = query.done() + rng.randrange(1, 4)

        def is_time() -> bool:
            assert process.poll() is None, "the query has ended"
            return query.done() >= goal and bool(set(query.under_way()) - old)

        wait_until(is_time, "a batch is half written", timeout=400)


def live(site: CaptureSite, directory: Path, *, kills: int, seed: int) -> None:
    rng, query = random.Random(seed), MarkedQuery(site, directory)
    with site.capture() as capture:
        capture.wait_for_log("streaming")
        for turn in range(kills):
            insert_pairs(site, 100 * turn, 100 * (turn + 1))
            kill_in_mid_batch(query, rng)
        insert_pairs(site, 100 * kills, 100 * kills + 10)
        site.wait_until_confirmed()
    with query.running("available") as process:
        assert process.wait(400) == 0
    assert len([1 for tries in query.attempts().values() if len(tries) > 1]) >= kills
    query.assert_exact()


def test_a_killed_query_goes_on_with_the_same_batches(site: CaptureSite, tmp_path: Path) -> None:
    live(site, tmp_path, kills=2, seed=1)


@pytest.mark.long
def test_a_query_that_is_killed_again_and_again(site: CaptureSite, tmp_path: Path) -> None:
    live(site, tmp_path, kills=8, seed=2)
