"""Shapes that wait, or take long, cost the others nothing. On real servers, in this process."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.lake.delta.table import ShapeTable
from penstock.lake.jobs.shape_jobs import SparkJobs
from penstock.lake.ports import JobDone
from penstock.model.shape import Shape
from penstock.shapes.flushing import cut, work
from tests.servers.shapes_fixtures import RunOnce, Serve
from tests.servers.shapes_site import ShapesSite, shape_lines

LONG = 60.0
MIB = 2**20
COLUMNS = ("id", "v")
Said = list[Any]


@pytest.fixture
def site(shapes_site: ShapesSite, run_once: RunOnce) -> ShapesSite:
    """With tables that are made."""
    for table in ("held", "free"):
        shapes_site.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    shapes_site.sql("CREATE TABLE unfollowed (id int)")
    shapes_site.write_file(shape_lines("held"), shape_lines("free"))
    assert run_once(shapes_site) == 0
    return shapes_site


@contextmanager
def open_writer(site: ShapesSite, statement: str) -> Iterator[psycopg.Connection]:
    """A transaction that has written, and is forgotten."""
    with psycopg.connect(site.postgres.conninfo(site.database)) as session:
        session.execute("SET application_name = 'a forgotten one'")
        session.execute(statement.encode())
        yield session


def write(site: ShapesSite, transactions: int, first: int = 0) -> None:
    """So many transactions of 32 KiB in `held`, and as many small ones in `free`."""
    site.sql(f"""
        DO $$ BEGIN
            FOR n IN {first}..{first + transactions - 1} LOOP
                INSERT INTO held SELECT 4 * n + g, repeat(md5(g::text), 256) FROM generate_series(1, 4) g;
                COMMIT;
                INSERT INTO free VALUES (n, 'little');
                COMMIT;
            END LOOP;
        END $$
    """)


def waited_for(
    site: ShapesSite, said: Said, event: str, where: Callable[[Any], bool] = lambda _: True
) -> Any:
    """Wait until this is said."""

    def found() -> list[Any]:
        return [line for line in list(said) if line["event"] == event and where(line)]

    site.wait_until(lambda: bool(found()), LONG)
    return found()[0]


def of(shape: str) -> Callable[[Any], bool]:
    """Lines about a shape."""
    return lambda line: line["shape"] == shape


def equal(site: ShapesSite, *shapes: str) -> None:
    """Wait until these tables are what Postgres holds."""
    for shape in shapes:
        site.wait_equal(shape, COLUMNS, f"SELECT id, v FROM {shape}", LONG)


def others_go_on(site: ShapesSite, first: int = 0) -> None:
    """With more than the log can hold."""
    write(site, 44, first)
    last = site.wal_lsn()
    equal(site, "free")
    site.wait_until(lambda: site.confirmed_lsn() >= last, LONG)


def answer(said: Said, path: str) -> str:
    """What the service answers."""
    (started,) = [line for line in said if line["event"] == "started"]
    try:
        with urllib.request.urlopen(f"{started['ops']}{path}", timeout=5) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


@pytest.mark.parametrize(
    "looks", [pytest.param(True, id="seen"), pytest.param(False, id="met", marks=pytest.mark.long)]
)
def test_a_shape_that_waits_for_its_cut_costs_the_others_nothing(
    site: ShapesSite, serve: Serve, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """Whether the transaction is seen before slot and log are held, or the cut doesn't come then."""
    site.sql("CREATE TABLE locked (id int PRIMARY KEY, v text); INSERT INTO locked VALUES (1, 'v')")
    site.write_file(shape_lines("held"), shape_lines("free"), shape_lines("locked"))
    if not looks:
        monkeypatch.setattr(cut, "transactions_end", nothing_is_seen)
    lock = "LOCK TABLE locked IN ACCESS EXCLUSIVE MODE; INSERT INTO unfollowed VALUES (1)"

    with open_writer(site, lock) as writer, capture_logs() as said:

        def story() -> None:
            who = f"pid {writer.info.backend_pid} (a forgotten one, for " if looks else "for its cut"
            waits = waited_for(site, said, "snapshot_waits")
            assert who in waits["detail"]
            others_go_on(site)
            waited_for(site, said, "shape_stalled", lambda line: who in line["detail"])
            ready = json.loads(answer(said, "/readyz"))
            assert any(who in reason for reason in ready["reasons"]), ready
            others_go_on(site, first=100)
            assert "\npenstock_log_full 0.0" in answer(said, "/metrics")
            assert not looks or not site.sql("SELECT FROM pg_replication_slots WHERE temporary")
            assert not [line for line in said if line["event"] == "snapshot_started"]
            assert site.awaited_shapes() == ["held", "locked"]
            writer.commit()
            for shape in ("held", "locked"):
                waited_for(site, said, "snapshot_done", of(shape))
            equal(site, "held", "free", "locked")

        serve(site, story, resnapshot={"held"}, LOG_MAX_BYTES=str(MIB), STALL_S="1")


async def nothing_is_seen(_parameters: object, _say: object) -> None:
    return None


def ended_with(run_once: RunOnce, site: ShapesSite, **over: str) -> str:
    """The sentence with which --once ends with 1."""
    with capture_logs() as said:
        assert run_once(site, STALL_S="1", **over) == 1, said
    (line,) = [line for line in said if line["event"] == "stalled"]
    return str(line["detail"])


def test_once_ends_whatever_waits_for_a_transaction(site: ShapesSite, run_once: RunOnce) -> None:
    """A snapshot, rows that are to be compared, and the slot."""
    site.sql("CREATE TABLE plain (id int PRIMARY KEY); INSERT INTO plain VALUES (1)")
    site.write_file(shape_lines("plain"))
    with open_writer(site, "INSERT INTO unfollowed VALUES (1)") as writer:
        who = f"it waits for open transactions: pid {writer.info.backend_pid} (a forgotten one, for "
        assert who in (sentence := ended_with(run_once, site))
        assert sentence.startswith("shape plain made no progress for ")
    assert run_once(site) == 0

    with open_writer(site, "INSERT INTO unfollowed VALUES (1)") as writer:
        who = f"it waits for open transactions: pid {writer.info.backend_pid} (a forgotten one, for "
        site.sql("TRUNCATE plain; INSERT INTO plain VALUES (2)")
        assert who in (sentence := ended_with(run_once, site))
        assert sentence.startswith("the rows of public.plain could not be compared for ")
        site.slot = f"{site.slot}_2"
        assert who in (sentence := ended_with(run_once, site))
        assert sentence.startswith(f"slot {site.slot} could not be made: ")
    site.slot = site.slot.removesuffix("_2")
    assert run_once(site) == 0
    site.assert_equal("plain", ["id"], "SELECT id FROM plain")


class Gate:
    """Jobs of one shape wait here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, job: str, shape: str) -> None:
        self._opened = threading.Event()
        self.reached = threading.Event()
        work_of: Callable[..., JobDone] = getattr(SparkJobs, job)

        def wait(jobs: SparkJobs, of_shape: Shape, *arguments: Any) -> JobDone:
            if of_shape.name == shape:
                self.reached.set()
                self._opened.wait(LONG)
            return work_of(jobs, of_shape, *arguments)

        monkeypatch.setattr(SparkJobs, job, wait)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Until the block is left, whatever happens there."""
        try:
            yield
        finally:
            self._opened.set()


def test_a_job_that_doesnt_end_is_not_waited_for(
    site: ShapesSite, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At half of what the log may hold, so that nobody has to stop reading."""
    gate = Gate(monkeypatch, "flush", "held")

    with capture_logs() as said:

        def story() -> None:
            with gate.closed():
                write(site, 20)
                parked = waited_for(site, said, "shape_parked")
                assert parked["shape"] == "held"
                assert parked["detail"] == "the log is half full, and it held it: its job does not end"
                others_go_on(site, first=100)
                waited_for(site, said, "shape_stalled", of("held"))
            equal(site, "held", "free")

        serve(site, story, LOG_MAX_BYTES=str(MIB), STALL_S="0.3")
    assert [line["shape"] for line in said if line["event"] == "snapshot_done"] == ["held"]


def test_upkeep_takes_no_place_of_a_flush(
    site: ShapesSite, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShapeTable, "needs_upkeep", True)
    gate = Gate(monkeypatch, "upkeep", "held")

    def story() -> None:
        with gate.closed():
            site.sql("INSERT INTO held VALUES (-1, 'v')")
            assert gate.reached.wait(LONG)
            site.sql("INSERT INTO free VALUES (-1, 'v')")
            equal(site, "held", "free")

    serve(site, story, FLUSH_MAX_PARALLEL="1")


@pytest.mark.long
def test_a_crash_after_a_flush_without_effect_means_no_snapshot(site: ShapesSite) -> None:
    """The registry must not say that the table was further than it is."""
    site.sql("ALTER TABLE held REPLICA IDENTITY FULL")
    site.write_file(shape_lines("held", 'where = "id > 0"'), shape_lines("free"))
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG)
        for id_ in (-1, -2):
            site.sql(f"INSERT INTO held VALUES ({id_}, 'outside'); INSERT INTO free VALUES ({id_}, 'v')")
            last = site.wal_lsn()
            equal(site, "free")
            site.wait_until(lambda last=last: site.confirmed_lsn() >= last, LONG, service)
        service.kill9()
    site.wait_until_nobody_leads()

    events = site.once()

    assert not [line for line in events if line["event"] == "snapshot_needed"]
    assert site.rows("held", COLUMNS) == []


OFTEN = """
    DO $$ BEGIN
        FOR n IN 1001..1020 LOOP
            INSERT INTO free VALUES (n, repeat(md5(n::text), 512));
            COMMIT;
        END LOOP;
    END $$
"""


@pytest.mark.long
def test_a_shape_beside_a_busy_one_catches_up(
    site: ShapesSite, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that took as much as one may take goes on at once, and reads its own tables only."""
    monkeypatch.setattr(work, "FLUSH_MAX_BYTES", 64 * 2**10)
    site.write_file(shape_lines("held"), shape_lines("free", interval_ms=4000))

    def story() -> None:
        site.sql("INSERT INTO free VALUES (-1, 'first')")
        equal(site, "free")
        write(site, 40)
        site.sql(OFTEN)
        write(site, 40, first=100)
        site.wait_equal("free", COLUMNS, "SELECT id, v FROM free", 15.0)
        equal(site, "held")

    serve(site, story)
