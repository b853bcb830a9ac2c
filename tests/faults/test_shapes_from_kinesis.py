"""Shapes from a marked stream: the same tables, exact whatever happens to stream, capture and shapes."""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.local.kinesis import LocalKinesis
from tests.faults.shapes_load import Bank, Reader, assert_history_is_right, flushes_more
from tests.servers.shapes_fixtures import RunOnce, Serve
from tests.servers.shapes_site import ShapesSite, shape_lines
from tests.servers.streamed_site import COLUMNS, MARKED, QUERIES, StreamedSite, needed

LONG_S = 240.0


@pytest.fixture
def streamed(shapes_site: ShapesSite, kinesis: LocalKinesis, stream: str, run_once: RunOnce) -> StreamedSite:
    streamed = StreamedSite(shapes_site, kinesis, stream, run_once)
    streamed.make_tables()
    return streamed


@pytest.mark.timeout(900)
def test_tables_equal_postgres_and_change_their_source(streamed: StreamedSite) -> None:
    """From Postgres to Kinesis and back, without a new snapshot; then a gap, and a capture that is gone."""
    sql = streamed.shapes.sql
    with streamed.capturing():
        assert needed(streamed.once()).keys() == QUERIES.keys()
        sql(
            "INSERT INTO a SELECT g, 'new' FROM generate_series(101, 3000) g;"
            " UPDATE a SET v = 'changed' WHERE id % 3 = 0; DELETE FROM a WHERE id % 7 = 0;"
            " UPDATE a SET id = -id WHERE id < 10; INSERT INTO b VALUES (1, 'x');"
            # More than the driver reads by itself: executors do, once for both shapes.
            " INSERT INTO a SELECT g, repeat('x', 100) FROM generate_series(10001, 18000) g"
        )
        assert not needed(streamed.once(streamed.url))
        streamed.assert_equal()
        sql("TRUNCATE b; INSERT INTO b VALUES (2, 'y'); UPDATE a SET v = 'again' WHERE id = 11")
        assert not needed(streamed.once(streamed.url))
        streamed.assert_equal()
        sql("INSERT INTO a VALUES (5000, 'by the slot'); DELETE FROM b")
        assert not needed(streamed.once())
        streamed.assert_equal()
    sql("INSERT INTO a VALUES (5001, 'in no stream')")
    streamed.site.wait_until_free()
    slot = streamed.site.slot
    sql(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())")
    with streamed.capturing():
        sql("INSERT INTO b VALUES (3, 'behind the gap')")
        events = streamed.once(streamed.url)
        assert all("GAP" in reason for reason in needed(events).values())
        assert needed(events)
        streamed.assert_equal()
    sql("INSERT INTO b VALUES (4, 'nobody captures this')")
    events = streamed.once(streamed.url, expect=1, STALL_S="2")
    assert any("no manifest" in event.get("detail", "") for event in events)


@pytest.mark.timeout(900)
def test_names_without_a_schema_cost_no_copy(streamed: StreamedSite) -> None:
    """Capture's names follow the role's search_path. What would print another value is refused."""
    site, sql = streamed.shapes, streamed.shapes.sql
    sql(
        "CREATE DOMAIN price AS numeric(10,2); CREATE TYPE mood AS ENUM ('good', 'bad');"
        " CREATE TABLE priced (id int PRIMARY KEY, v price, m mood);"
        " INSERT INTO priced VALUES (1, 1.5, 'good')"
    )
    site.write_file(shape_lines("priced"))
    with streamed.capturing():
        assert needed(streamed.once(streamed.url)).keys() == {"priced"}
        sql("INSERT INTO priced VALUES (2, 2.5, 'bad'); UPDATE priced SET v = 3 WHERE id = 1")
        assert not needed(streamed.once(streamed.url))
        site.assert_equal("priced", ("id", "v", "m"), "SELECT id, v, m FROM priced")
        sql("ALTER TABLE priced ADD of regclass DEFAULT 'a'; INSERT INTO priced VALUES (3, 1, 'bad', 'b')")
        events = streamed.once(streamed.url, expect=1)
    assert any("prints by search_path" in event.get("detail", "") for event in events)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("fault_points", "power_cuts"),
    [
        pytest.param(("flush.committed:2",), 1, id="worst"),
        pytest.param(
            ("snapshot.copying", "snapshot.committed:2", "flush.committed:3", "registry.written:4"),
            4,
            id="all",
            marks=pytest.mark.long,
        ),
    ],
)
def test_tables_are_exact_after_kills_of_shapes_and_capture(
    shapes_site: ShapesSite,
    kinesis: LocalKinesis,
    stream: str,
    run_once: RunOnce,
    fault_points: tuple[str, ...],
    power_cuts: int,
) -> None:
    """Money moves between rows in different shards, one of which splits: no version ever lacks some."""
    rng = random.Random(47)
    streamed = StreamedSite(shapes_site, kinesis, stream, run_once)
    bank, reader = Bank(shapes_site, seed=47), Reader(shapes_site)
    bank.write_file()
    capture = streamed.site.capture(**MARKED)
    try:
        capture.wait_for_log("streaming")
        with bank.writing(), reader.reading():
            for fault_point in fault_points:
                with streamed.run(PENSTOCK_FAULT_POINT=fault_point) as process:
                    assert process.wait(LONG_S) == -signal.SIGKILL, fault_point
            streamed.split("shardId-000000000000")
            for turn in range(power_cuts):
                with streamed.run() as process:
                    process.wait_for_log("streaming", LONG_S)
                    flushes_more(shapes_site, process, rng.randint(1, 3))
                    if turn == 0:
                        # The accounts are emptied now and then, and copied again after that.
                        shapes_site.assert_verified(LONG_S, "--shape", "journal", "--timeout", "200")
                    capture.kill9()
                    capture.close()
                    capture = streamed.site.capture(**MARKED)
                    flushes_more(shapes_site, process, rng.randint(1, 3))
                    time.sleep(rng.uniform(0, 0.5))
                    process.kill9()
        streamed.wait_until_nobody_leads()
        streamed.once(streamed.url, STALL_S=str(LONG_S))
    finally:
        capture.close()
    bank.assert_exact()
    assert_history_is_right(shapes_site)
    assert len(reader.versions) > 2


def has_commit(site: ShapesSite, shape: str) -> bool:
    return any((site.table(shape) / "_delta_log").glob("*.json"))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_shape_that_fails_holds_nobody_and_is_caught_up(streamed: StreamedSite, serve: Serve) -> None:
    site = streamed.shapes
    away = site.directory / "away"

    def story() -> None:
        for shape in QUERIES:
            site.wait_until(partial(has_commit, site, shape), LONG_S)
            site.wait_equal(shape, COLUMNS, QUERIES[shape], LONG_S)
        site.table("b").rename(away)
        site.sql("INSERT INTO a VALUES (200, 'goes on'); INSERT INTO b VALUES (1, 'waits')")
        site.wait_equal("a", COLUMNS, QUERIES["a"], LONG_S)
        site.sql("INSERT INTO a VALUES (201, 'goes on'); INSERT INTO b VALUES (2, 'waits')")
        site.wait_equal("a", COLUMNS, QUERIES["a"], LONG_S)
        away.rename(site.table("b"))
        site.wait_equal("b", COLUMNS, QUERIES["b"], LONG_S)

    variables: dict[str, Any] = {**streamed.variables}
    with streamed.capturing(), capture_logs() as events:
        serve(site, story, stream=streamed.url, **variables)
    assert needed(events).keys() == QUERIES.keys(), "only at the start"
    assert all(reason == "it is new" for reason in needed(events).values())
    assert any(event["event"] == "flush_failed" and event["shape"] == "b" for event in events)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_altered_tables_are_copied_again_when_the_stream_is_there(streamed: StreamedSite) -> None:
    sql = streamed.shapes.sql
    with streamed.capturing():
        streamed.once(streamed.url)
        sql("INSERT INTO a VALUES (300, 'before'); ALTER TABLE a ADD COLUMN w int DEFAULT 7")
        sql("INSERT INTO a VALUES (301, 'behind', 8); INSERT INTO b VALUES (1, 'x')")
        events = streamed.once(streamed.url)
        assert needed(events).keys() == {"a", "even"}
        streamed.shapes.assert_equal("a", ("id", "v", "w"), "SELECT id, v, w FROM a")
        streamed.assert_equal()
        sql("DROP TABLE b; CREATE TABLE b (id int PRIMARY KEY, v text); INSERT INTO b VALUES (9, 'other')")
        events = streamed.once(streamed.url)
        assert needed(events).keys() == {"b"}
        streamed.assert_equal()
