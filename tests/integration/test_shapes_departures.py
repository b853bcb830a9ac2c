"""Partitions are dropped and detached: their rows are deleted by their bounds, or the table is copied."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesProcess, ShapesSite, shape_lines

LONG = 240.0
# Each with three partitions, _0 to _2, and thirty rows in each.
SPLIT = {
    "by_int": ("RANGE", "int", "g % 30", ("FROM (0) TO (10)", "FROM (10) TO (20)", "FROM (20) TO (30)")),
    "by_day": (
        "RANGE",
        "date",
        "CASE WHEN g > 88 THEN 'infinity' ELSE date '2026-01-01' + g END",
        (
            "FROM (MINVALUE) TO ('2026-01-31')",
            "FROM ('2026-01-31') TO ('2026-03-01')",
            "FROM ('2026-03-01') TO (MAXVALUE)",
        ),
    ),
    "by_time": (
        "RANGE",
        "timestamptz",
        "timestamptz '2026-01-01 00:00+02' + g * interval '8 hours'",
        (
            "FROM ('2025-12-31 22:00+00') TO ('2026-01-11 01:30+03:30')",
            "FROM ('2026-01-10 22:00+00') TO ('2026-01-20 22:00+00')",
            "FROM ('2026-01-20 22:00+00') TO ('2026-02-20')",
        ),
    ),
    "by_word": (
        "LIST",
        "text",
        "(ARRAY['it''s', 'b, c', 'a', 'A', ''])[1 + g % 5]",
        ("IN ('it''s', 'b, c')", "IN ('a')", "IN ('A', '', NULL)"),
    ),
}
ODD = """
CREATE TABLE nested (id int, r int, v text, PRIMARY KEY (id, r, v)) PARTITION BY RANGE (r);
CREATE TABLE nested_0 PARTITION OF nested FOR VALUES FROM (0) TO (10) PARTITION BY LIST (v);
CREATE TABLE nested_0a PARTITION OF nested_0 FOR VALUES IN ('a');
CREATE TABLE nested_0b PARTITION OF nested_0 FOR VALUES IN ('b');
CREATE TABLE nested_1 PARTITION OF nested FOR VALUES FROM (10) TO (20) PARTITION BY HASH (id);
CREATE TABLE nested_1a PARTITION OF nested_1 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
INSERT INTO nested SELECT g, g % 20, CASE WHEN g % 2 = 0 THEN 'a' ELSE 'b' END FROM generate_series(1, 60) g;
CREATE TABLE hashed (id int, r int, v text, PRIMARY KEY (id, r)) PARTITION BY HASH (r);
CREATE TABLE hashed_0 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO hashed SELECT g, g % 20, 'v' FROM generate_series(1, 60) g;
CREATE TABLE late (id int, r int, v text, PRIMARY KEY (id, r)) PARTITION BY RANGE (r);
CREATE TABLE late_0 PARTITION OF late FOR VALUES FROM (0) TO (10);
CREATE TABLE late_rest PARTITION OF late DEFAULT;
INSERT INTO late SELECT g, g % 20, 'v' FROM generate_series(1, 60) g;
CREATE TABLE changed (id int, r int, v text, PRIMARY KEY (id, r)) PARTITION BY RANGE (r);
CREATE TABLE changed_0 PARTITION OF changed FOR VALUES FROM (0) TO (10);
CREATE TABLE changed_1 PARTITION OF changed FOR VALUES FROM (10) TO (20);
INSERT INTO changed SELECT g, g % 20, 'v' FROM generate_series(1, 60) g;
"""
ODD_ONES = ("nested", "hashed", "late", "changed")
# What came into DEFAULT since is no row of the one that went.
COMES_LATE = "BEGIN; DROP TABLE late_0; INSERT INTO late VALUES (1, 1, 'late'), (1000, 2, 'new'); COMMIT"
# Its table still exists, and is written: under its name, and over a key that another partition has.
GOES_ON = """
BEGIN; ALTER TABLE changed DETACH PARTITION changed_0;
UPDATE changed_0 SET id = 10, r = 10, v = 'not ours' WHERE id = 1; COMMIT
"""


def tables() -> Iterator[str]:
    for name, (how, kind, value, bounds) in SPLIT.items():
        yield f"CREATE TABLE {name} (id int, r {kind}, v text, PRIMARY KEY (id, r)) PARTITION BY {how} (r)"
        for place, bound in enumerate(bounds):
            yield f"CREATE TABLE {name}_{place} PARTITION OF {name} FOR VALUES {bound}"
            yield f"ALTER TABLE {name}_{place} REPLICA IDENTITY FULL"
        yield f"INSERT INTO {name} SELECT g, {value}, 'v' FROM generate_series(0, 89) g"


def query(name: str) -> str:
    # As the lake has them: text, so that infinities can be compared.
    return f"SELECT id, v FROM {name}"


def equal(site: ShapesSite, name: str, running: ShapesProcess | None = None) -> None:
    site.wait_equal(name, ("id", "v"), query(name), LONG, running)


@contextmanager
def writing(site: ShapesSite) -> Iterator[None]:
    """Rows come into partitions that stay, until the end."""
    done = threading.Event()

    def write() -> None:
        number = 1000
        while not done.wait(0.5):
            number += 1
            site.sql(f"INSERT INTO by_int VALUES ({number}, 25, 'w'); UPDATE by_int SET v = 'w' WHERE r = 21")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def needed(events: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(line["shape"], line["reason"]) for line in events if line["event"] == "snapshot_needed"]


def test_partitions_go_between_two_runs(shapes_site: ShapesSite, run_once: RunOnce) -> None:
    site = shapes_site
    site.sql("; ".join(tables()) + ";" + ODD)
    names = ("by_day", "by_word", "nested", "late")
    site.write_file(*map(shape_lines, names))
    assert run_once(site, STALL_S="60") == 0
    site.sql(
        "DROP TABLE by_day_1, by_word_1, nested_1; INSERT INTO by_day VALUES (1000, '2026-01-01', 'new')"
    )
    site.sql(COMES_LATE)

    with capture_logs() as said:
        code = run_once(site, STALL_S="60")

    assert code == 0, said
    for name in names:
        site.assert_equal(name, ("id", "v"), query(name))
    assert [shape for shape, _ in needed(said)] == ["late"]
    removed = {line["partition"] for line in said if line["event"] == "partition_removed"}
    assert removed == {"public.by_day_1", "public.by_word_1", "public.nested_1"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_partitions_go_under_a_running_service_in_its_crash_and_while_it_is_stopped(
    shapes_site: ShapesSite, run_once: RunOnce
) -> None:
    site = shapes_site
    site.sql("; ".join(tables()) + ";" + ODD)
    names = (*SPLIT, *ODD_ONES)
    some = shape_lines("some", "where = \"v = 'v' and id % 2 = 0\"", 'columns = ["id", "r"]', table="by_int")
    site.write_file(*map(shape_lines, names), some)
    with site.shapes(PENSTOCK_FAULT_POINT="partition.removed:7") as service:
        service.wait_for_log("snapshot_done", LONG, count=len(names) + 1)
        site.wait_until_seen(*names, "some", timeout=LONG)
        with writing(site):
            site.sql("DROP TABLE by_int_0, by_day_1, by_word_1")
            site.sql("ALTER TABLE by_time DETACH PARTITION by_time_0 CONCURRENTLY")
            site.sql(
                "CREATE TABLE by_time_3 PARTITION OF by_time FOR VALUES FROM ('2026-03-01') TO (MAXVALUE)"
            )
            site.sql("ALTER TABLE nested_0 DETACH PARTITION nested_0a; DROP TABLE nested_0a")
            service.wait_for_log("partition_removed", LONG, count=6)
        for name in (*SPLIT, "nested"):
            equal(site, name, service)
        site.wait_equal("some", ("id",), "SELECT id FROM by_int WHERE v = 'v' AND id % 2 = 0", LONG, service)
        gone = {line["shape"]: line["partition"] for line in service.events("partition_removed")}
        assert gone["some"] == gone["by_int"] == "public.by_int_0"
        assert gone["nested"] == "public.nested_0a"

        site.sql(COMES_LATE + ";" + GOES_ON + "; DROP TABLE hashed_1")
        for name in ("late", "changed", "hashed"):
            equal(site, name, service)
            service.wait_for_reason(name, "was detached or dropped", LONG)
        again = [(shape, reason) for shape, reason in needed(service.events()) if reason != "it is new"]
        assert {shape for shape, _ in again} == {"late", "changed", "hashed"}, again

        site.sql("DROP TABLE by_day_0")
        assert service.wait(LONG) == -9, "its rows are deleted, and nobody was told"
    site.wait_until_nobody_leads()

    site.sql("DROP TABLE nested_1, by_word_0; ALTER TABLE by_time DETACH PARTITION by_time_1")
    site.sql("INSERT INTO by_time VALUES (1000, '2026-04-01', 'new')")
    with capture_logs() as said:
        code = run_once(site, STALL_S="60")
    assert code == 0, said
    for name in names:
        site.assert_equal(name, ("id", "v"), query(name))
    assert needed(said) == []
    removed = {line["partition"] for line in said if line["event"] == "partition_removed"}
    assert removed == {f"public.{name}" for name in ("by_day_0", "nested_1", "by_word_0", "by_time_1")}
