"""The catalog is of now and the stream lags: a look at it decides nothing before the stream is there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs

from penstock.model.lsn import format_lsn
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Tree
from penstock.shapes.feed.stream_routes import StreamRoutes
from tests.faults.rig import Rig
from tests.servers.capture_site import wait_until
from tests.servers.faults import THROTTLED, Answer
from tests.servers.shapes_fixtures import Serve
from tests.servers.shapes_site import ShapesSite, shape_lines
from tests.servers.streamed_site import Events, needed

COLUMNS = {"widened": ("id", "v"), "emptied": ("id", "v"), "parted": ("id", "v")}
LONG_S = 90.0


class Looks:
    """Where the server's WAL was at each look at the catalog that the shapes have heard of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at = [0]
        look = StreamRoutes.look

        def noted(routes: StreamRoutes, trees: Iterable[Tree], wal_lsn: int) -> list[SnapshotAgain]:
            again = look(routes, trees, wal_lsn)
            self._at.append(wal_lsn)
            return again

        monkeypatch.setattr(StreamRoutes, "look", noted)

    def wait_for(self, lsn: int) -> None:
        """Wait until the second look at or behind this: the first one has then had all its consequences."""
        wait_until(
            lambda: sum(at >= lsn for at in list(self._at)) >= 2, f"two looks at {format_lsn(lsn)}", LONG_S
        )


def make_tables(site: ShapesSite) -> None:
    site.sql(
        "CREATE TABLE widened (id int PRIMARY KEY, v text);"
        " CREATE TABLE emptied (id int PRIMARY KEY, v text);"
        " CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        " CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (100)"
    )
    for table in COLUMNS:
        site.sql(f"INSERT INTO {table} SELECT g, 'old' FROM generate_series(1, 20) g")
    site.write_file(*(shape_lines(table) for table in COLUMNS))


def alter_tables(site: ShapesSite) -> None:
    """Changes of the tables as they were, then others, then changes of what they have become."""
    for table in COLUMNS:
        site.sql(f"INSERT INTO {table} VALUES (30, 'before'); UPDATE {table} SET v = 'new' WHERE id < 5")
    site.sql("ALTER TABLE widened ADD COLUMN w int DEFAULT 7; TRUNCATE emptied")
    site.sql("CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (100) TO (200)")
    site.sql("INSERT INTO widened VALUES (31, 'behind', 8); INSERT INTO emptied VALUES (31, 'behind')")
    site.sql("INSERT INTO parted VALUES (31, 'behind'), (131, 'behind'); DELETE FROM parted WHERE id = 6")


def columns_of(site: ShapesSite, table: str) -> list[str]:
    return [field.name for field in DeltaTable(str(site.table(table))).schema().fields]


def test_what_was_altered_meanwhile_is_judged_when_the_stream_is_there(
    rig: Rig, shapes_site: ShapesSite, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, looks = shapes_site, Looks(monkeypatch)
    make_tables(site)
    events: Events = []

    def story() -> None:
        for table, columns in COLUMNS.items():
            site.wait_until(partial(DeltaTable.is_deltatable, str(site.table(table))), LONG_S)
            site.wait_equal(table, columns, f"SELECT id, v FROM {table}", LONG_S)
        for operation in ("PutRecords", "PutRecord"):
            rig.proxy.inject(Answer(THROTTLED), operation=operation)
        held = {table: (site.version(table), site.rows(table, COLUMNS[table])) for table in COLUMNS}
        alter_tables(site)
        looks.wait_for(site.wal_lsn())
        assert needed(events) == dict.fromkeys(COLUMNS, "it is new"), "a look has decided something"
        assert held == {table: (site.version(table), site.rows(table, COLUMNS[table])) for table in COLUMNS}
        rig.proxy.clear()
        for table, columns in COLUMNS.items():
            site.wait_equal(table, columns, f"SELECT id, v FROM {table}", LONG_S)
        site.wait_until(lambda: "w" in columns_of(site, "widened"), LONG_S)
        site.wait_equal("widened", ("id", "w"), "SELECT id, w FROM widened", LONG_S)

    variables: dict[str, Any] = {**rig.kinesis.env(), "STALL_S": "60"}
    url = f"kinesis://{rig.stream}?slot={rig.slot}"
    with rig.capture(KINESIS_MARKED_STREAM="true", SINK_OUTAGE_DISCONNECT_S=300) as capture:
        capture.wait_for_log("streaming")
        with capture_logs() as said:
            events = said
            serve(site, story, stream=url, **variables)
    again = {shape: reason for shape, reason in needed(said).items() if reason != "it is new"}
    assert again.keys() == {"widened", "parted"}, "a TRUNCATE is in the stream"
    # Either may come first: the look that judges the alteration, or a change that has the new column.
    assert re.search(r"was altered|column w \(integer\) is new", again["widened"])
