"""Shapes from a marked stream: the same tables, exact whatever happens to stream, capture and shapes."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.local.kinesis import LocalKinesis
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesSite, shape_lines

COLUMNS = ("id", "v")
MARKED = {"KINESIS_MARKED_STREAM": "true", "SLOT_NOTE": "false", "KINESIS_MARK_INTERVAL_MS": "50"}
Events = list[MutableMapping[str, Any]]


class StreamedSite:
    """A database, a capture of it, and shapes that read what it writes."""

    def __init__(self, shapes: ShapesSite, kinesis: LocalKinesis, stream: str, run_once: RunOnce) -> None:
        self.shapes = shapes
        self.site = CaptureSite(shapes.postgres, shapes.database, kinesis, stream)
        self.url = f"kinesis://{stream}?slot={self.site.slot}"
        self.variables = kinesis.env()
        self._run_once = run_once

    @contextmanager
    def capturing(self) -> Iterator[CaptureProcess]:
        """With a capture that has made its slot."""
        with self.site.capture(**MARKED) as capture:
            capture.wait_for_log("streaming")
            yield capture

    def once(self, stream: str | None = None, *, expect: int = 0, **over: str) -> Events:
        """`penstock shapes --once`; what it logged."""
        with capture_logs() as events:
            code = self._run_once(self.shapes, stream=stream, **{"STALL_S": "60", **self.variables, **over})
        assert code == expect, [event for event in events if event["log_level"] in ("error", "warning")]
        return events

    def assert_equal(self, *tables: str) -> None:
        for table in tables:
            self.shapes.assert_equal(table, COLUMNS, f"SELECT id, v FROM {table}")


@pytest.fixture
def streamed(shapes_site: ShapesSite, kinesis: LocalKinesis, stream: str, run_once: RunOnce) -> StreamedSite:
    shapes_site.sql(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
        " INSERT INTO a SELECT g, 'old' FROM generate_series(1, 100) g"
    )
    shapes_site.write_file(shape_lines("a"), shape_lines("b"))
    return StreamedSite(shapes_site, kinesis, stream, run_once)


def needed(events: Events) -> dict[str, str]:
    return {event["shape"]: event["reason"] for event in events if event["event"] == "snapshot_needed"}


@pytest.mark.timeout(900)
def test_tables_equal_postgres_and_change_their_source(streamed: StreamedSite) -> None:
    """From Postgres to Kinesis and back, without a new snapshot; then a gap, and a capture that is gone."""
    sql = streamed.shapes.sql
    with streamed.capturing():
        assert needed(streamed.once()).keys() == {"a", "b"}
        sql(
            "INSERT INTO a SELECT g, 'new' FROM generate_series(101, 3000) g;"
            " UPDATE a SET v = 'changed' WHERE id % 3 = 0; DELETE FROM a WHERE id % 7 = 0;"
            " UPDATE a SET id = -id WHERE id < 10; INSERT INTO b VALUES (1, 'x')"
        )
        events = streamed.once(streamed.url)
        assert not needed(events)
        streamed.assert_equal("a", "b")
        sql("TRUNCATE b; INSERT INTO b VALUES (2, 'y'); UPDATE a SET v = 'again' WHERE id = 11")
        assert not needed(streamed.once(streamed.url))
        streamed.assert_equal("a", "b")
        sql("INSERT INTO a VALUES (5000, 'by the slot'); DELETE FROM b")
        assert not needed(streamed.once())
        streamed.assert_equal("a", "b")
    sql("INSERT INTO a VALUES (5001, 'in no stream')")
    slot = streamed.site.slot
    sql(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())")
    with streamed.capturing():
        sql("INSERT INTO b VALUES (3, 'behind the gap')")
        events = streamed.once(streamed.url)
        assert all("GAP" in reason for reason in needed(events).values())
        assert needed(events)
        streamed.assert_equal("a", "b")
    sql("INSERT INTO b VALUES (4, 'nobody captures this')")
    events = streamed.once(streamed.url, expect=1, STALL_S="2")
    assert any("no manifest" in event.get("detail", "") for event in events)
