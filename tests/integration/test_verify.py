"""`penstock verify` as a process: what it says of tables that the service keeps, and of spoilt ones."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from penstock.local.postgres import PrivatePostgres
from penstock.model.shape import definition_hash
from penstock.shapes.definition.shapes_file import load_shapes_file
from penstock.shapes.registry.registry import FileRegistry, Registry, ShapeEntry
from tests.servers.shapes_fixtures import RunOnce
from tests.servers.shapes_site import ShapesSite

ORDERS = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, status text NOT NULL, amount numeric(38,9), at timestamptz, d float8);
INSERT INTO orders SELECT g, 'open', g + 0.123456789, '2024-01-01', g FROM generate_series(1, 2000) g;
INSERT INTO orders VALUES (-1, 'odd', NULL, 'infinity', 'NaN'), (-2, 'odd', 0, '-infinity', '-0');
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE events (id int, day date, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE "events.1" PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE "Events, 2" PARTITION OF events FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
INSERT INTO events SELECT g, '2024-01-01'::date + g % 60, 'note' FROM generate_series(1, 300) g;
"""
SHAPES = (
    'name = "orders"\ntable = "public.orders"\nflush_interval_ms = 200',
    'name = "open_orders"\ntable = "public.orders"\nwhere = "status = \'open\' AND amount > 100"\n'
    'columns = ["id", "amount"]\nflush_interval_ms = 200',
    'name = "events"\ntable = "public.events"\nflush_interval_ms = 200',
)
LONG = 400.0
PACE_S = 0.2


class Verdict(NamedTuple):
    """How a run ended."""

    code: int
    text: str

    def shapes(self) -> dict[str, dict[str, Any]]:
        lines = [line for line in self.text.splitlines() if not line.startswith('{"')]
        return {each["shape"]: each for each in json.loads("\n".join(lines))}


def verify(site: ShapesSite, *args: str) -> Verdict:
    with site.verify(*args) as process:
        return Verdict(process.wait(LONG), process.log_text())


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, tmp_path: Path) -> ShapesSite:
    site = ShapesSite(postgres, database, tmp_path)
    site.write_file(*SHAPES)
    return site


@contextmanager
def writing(site: ShapesSite) -> Iterator[None]:
    """Rows that toggle, come, go, and change their keys, some changes a second."""
    ending, under_way = threading.Event(), threading.Event()

    def write() -> None:
        with psycopg.connect(
            host="127.0.0.1", port=site.postgres.port, user="postgres", dbname=site.database, autocommit=True
        ) as connection:
            turn = 0
            while not ending.wait(PACE_S):
                turn += 1
                key = turn % 50 + 1
                connection.execute(
                    "UPDATE orders SET status = CASE status WHEN 'open' THEN 'shut' ELSE 'open' END"
                    " WHERE id = %s",
                    (key,),
                )
                connection.execute("INSERT INTO orders VALUES (100000, 'brief', 500, now(), 0)")
                connection.execute("DELETE FROM orders WHERE id = 100000")
                connection.execute("UPDATE orders SET id = -id WHERE abs(id) = %s", (1000 + key,))
                connection.execute("UPDATE events SET note = %s WHERE id = %s", (f"note {turn}", key))
                if turn == 20:
                    under_way.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert under_way.wait(30)
        yield
    finally:
        ending.set()
        thread.join()


def spoil(site: ShapesSite, shape: str, where: str, **values: str) -> None:
    """Change a lake table behind Penstock's back; delete rows if there are no values."""
    deadline = time.monotonic() + LONG
    while True:
        table = DeltaTable(str(site.table(shape)))
        try:
            if values:
                table.update(predicate=where, updates=values)
            else:
                table.delete(where)
            return
        except CommitFailedError:
            # The service was faster.
            assert time.monotonic() < deadline


def keys(shape: dict[str, Any], verdict: str) -> list[dict[str, str]]:
    return [each["key"] for each in shape["first"] if each["verdict"] == verdict]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_under_load_equal_is_equal_and_planted_differences_are_found(site: ShapesSite) -> None:
    site.sql(ORDERS)
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG, count=3)
        with writing(site):
            found = verify(site, "--json", "--timeout", "300")
            assert found.code == 0, found.text
            shapes = found.shapes()
            assert [shapes[name]["result"] for name in ("orders", "open_orders", "events")] == ["equal"] * 3
            assert not any(each["changing"] or each["first"] for each in shapes.values())

            spoil(site, "orders", "id = 1500", amount="amount - 0.000000001")
            spoil(site, "orders", "id = 1600", id="999999")
            spoil(site, "events", "id = 200")
            found = verify(site, "--json", "--show-values", "--timeout", "300")
            assert found.code == 1, found.text
        orders, events = found.shapes()["orders"], found.shapes()["events"]
        assert keys(orders, "different") == [{"id": "1500"}]
        assert keys(orders, "missing") == [{"id": "1600"}]
        assert keys(orders, "extra") == [{"id": "999999"}]
        (numeric,) = [each for each in orders["first"] if each["verdict"] == "different"]
        assert numeric["values"] == {"amount": {"postgres": "1500.123456789", "lake": "1500.123456788"}}
        assert keys(events, "missing") == [{"id": "200", "day": "2024-01-21"}]
        assert found.shapes()["open_orders"]["result"] == "equal"


@pytest.mark.timeout(900)
def test_with_the_service_stopped_it_is_said_how_far_behind_the_tables_are(
    site: ShapesSite, run_once: RunOnce
) -> None:
    site.sql(ORDERS)
    assert run_once(site, STALL_S="60") == 0
    site.sql("INSERT INTO events VALUES (5000, '2024-01-01', 'nobody is there')")
    found = verify(site)
    assert found.code == 1, found.text
    assert re.search(r"^│ orders +│ equal +│ +2,002 │ +2,002 │ +2,002 │", found.text, re.MULTILINE)
    assert re.search(r"^│ open_orders +│ equal +│ +1,901 │", found.text, re.MULTILINE)
    assert re.search(
        r"^│ events +│ different +│ +301 │ +300 │ +300 │ +0 │ +1 │ +0 │", found.text, re.MULTILINE
    )
    assert re.search(
        r"^events: the service is stopped; the table is up to [\d,]+ bytes of WAL behind$",
        found.text,
        re.MULTILINE,
    )
    assert 'events: missing id="5000", day="2024-01-01"\n' in found.text
    assert "nobody is there" not in found.text


def test_what_cannot_be_compared_is_said_in_a_line(site: ShapesSite) -> None:
    def line(*args: str) -> str:
        found = verify(site, *args)
        assert found.code == 2
        (line,) = found.text.splitlines()
        return line

    assert line("--shape", "nothing").endswith(
        "no shape 'nothing'. Fix: give --shape one of orders, open_orders, events"
    )
    assert f"there is no registry in {site.directory}/lake" in line()
    registry(site, system_id="1")
    assert "this storage belongs to the database system 1, and the server is" in line()
    registry(site, slot="another")
    assert f"the tables are fed from slot another, and REPLICATION_SLOT is {site.slot}" in line()
    site.postgres.stop()
    assert "can't connect to Postgres" in line()


def test_shapes_that_do_not_stand_for_their_tables_are_named(site: ShapesSite) -> None:
    site.sql(ORDERS)
    hashes = {shape.name: definition_hash(shape) for shape in load_shapes_file(site.file).shapes}
    entries = {
        "orders": ShapeEntry(hashes["orders"], "it is new", None),
        "open_orders": ShapeEntry(hashes["orders"], None, None),
    }
    registry(site, shapes=entries)
    found = verify(site, "--json")
    assert found.code == 2
    problems = {name: each["problem"] for name, each in found.shapes().items()}
    assert problems["orders"].startswith("it awaits a snapshot (it is new)")
    assert problems["open_orders"].startswith("its definition was changed")
    assert problems["events"].startswith("it is new")


def registry(site: ShapesSite, **over: Any) -> None:
    """Write a registry as the service would, with some of it replaced."""
    ((system_id,),) = site.sql("SELECT system_identifier::text FROM pg_control_system()")
    store = FileRegistry(site.directory / "lake")
    store.read()
    written = {"system_id": system_id, "timeline": 1, "slot": site.slot, "ceiling_lsn": 0, "shapes": {}}
    store.write(Registry(**written | over))
