"""Shapes that wait, or take long, cost the others nothing. On real servers, in this process."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from penstock.lake.delta.shape_table import ShapeTable
from penstock.lake.jobs.shape_jobs import SparkJobs
from penstock.lake.ports import JobDone
from penstock.model.shape import Shape
from penstock.shapes import leadership
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.flushing import cut, work
from tests.servers.shapes_fixtures import RunOnce, Serve, Started
from tests.servers.shapes_site import ShapesSite, shape_lines
from tests.servers.tcp_proxy import TcpProxy

LONG = 120.0
MIB = 2**20
COLUMNS = ("id", "v")
TEMPORARY = "SELECT 1 FROM pg_replication_slots WHERE temporary"
Said = list[Any]


@pytest.fixture
def site(shapes_site: ShapesSite) -> ShapesSite:
    for table in ("held", "free"):
        shapes_site.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
    shapes_site.sql("CREATE TABLE unfollowed (id int)")
    shapes_site.write_file(shape_lines("held"), shape_lines("free"))
    return shapes_site


@contextmanager
def open_writer(site: ShapesSite) -> Iterator[str]:
    """A transaction that has written, and is forgotten until the block is left; gives whose it is."""
    with psycopg.connect(site.postgres.conninfo(site.database)) as session:
        session.execute("SET application_name = 'a forgotten one'")
        session.execute("INSERT INTO unfollowed VALUES (1)")
        yield f"it waits for open transactions: pid {session.info.backend_pid} (a forgotten one, for "


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


def waited_for(site: ShapesSite, said: Said, event: str, shape: str, count: int = 1) -> Any:
    """Wait until this was said of a shape so many times."""

    def found() -> list[Any]:
        return [line for line in list(said) if line["event"] == event and line["shape"] == shape]

    site.wait_until(lambda: len(found()) >= count, LONG)
    return found()[count - 1]


def equal(site: ShapesSite, *shapes: str) -> None:
    """Wait until these tables are what Postgres holds."""
    for shape in shapes:
        site.wait_equal(shape, COLUMNS, f"SELECT id, v FROM {shape}", LONG)


def confirmed(site: ShapesSite, lsn: int) -> None:
    """Wait until the slot has this behind it."""
    site.wait_until(lambda: site.confirmed_lsn() >= lsn, LONG)


def others_go_on(site: ShapesSite, first: int = 0) -> None:
    """With more than the log can hold."""
    write(site, 44, first)
    last = site.wal_lsn()
    equal(site, "free")
    confirmed(site, last)


def answer(said: Said, path: str) -> str:
    """What the service answers."""
    (started,) = [line for line in said if line["event"] == "started"]
    try:
        with urllib.request.urlopen(f"{started['ops']}{path}", timeout=5) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


class Gate:
    """While it is closed, jobs of a shape wait here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, job: str, shape: str) -> None:
        self._opened = threading.Event()
        self._opened.set()
        self.reached = threading.Event()
        work_of: Callable[..., JobDone] = getattr(SparkJobs, job)

        def wait(jobs: SparkJobs, of_shape: Shape, *arguments: Any) -> JobDone:
            if of_shape.name == shape and not self._opened.is_set():
                self.reached.set()
                self._opened.wait(LONG)
            return work_of(jobs, of_shape, *arguments)

        monkeypatch.setattr(SparkJobs, job, wait)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Until the block is left, whatever happens there."""
        self._opened.clear()
        try:
            yield
        finally:
            self._opened.set()


@pytest.mark.timeout(600)
def test_a_shape_that_waits_or_hangs_costs_the_others_nothing(
    site: ShapesSite, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot waits for its cut, a flush hangs; then, in another life, an upkeep takes long."""
    flushes, upkeeps = Gate(monkeypatch, "flush", "held"), Gate(monkeypatch, "upkeep", "held")

    with capture_logs() as said:

        def story() -> None:
            for shape in ("held", "free"):
                waited_for(site, said, "snapshot_done", shape)
            assert_a_snapshot_waits_alone(site, said)
            assert_a_flush_hangs_alone(site, said, flushes)

        serve(site, story, LOG_MAX_BYTES=str(MIB), STALL_S="0.3", FLUSH_MAX_PARALLEL="2")
        monkeypatch.setattr(ShapeTable, "needs_upkeep", True)
        # With one place for flushes an upkeep that took it would stop them all.
        serve(site, lambda: assert_upkeep_takes_no_place_of_a_flush(site, upkeeps), FLUSH_MAX_PARALLEL="1")


def assert_a_snapshot_waits_alone(site: ShapesSite, said: Said) -> None:
    """Without a slot of its own; and it says for what it waits."""
    with open_writer(site) as who:
        site.sql("ALTER TABLE held RENAME TO away; ALTER TABLE away RENAME TO held")
        assert who in waited_for(site, said, "snapshot_waits", "held")["detail"]
        others_go_on(site)
        assert who in waited_for(site, said, "shape_stalled", "held")["detail"]
        assert any(who in reason for reason in json.loads(answer(said, "/readyz"))["reasons"])
        others_go_on(site, first=100)
        assert "\npenstock_log_full 0.0" in answer(said, "/metrics")
        assert site.sql(TEMPORARY) == []
        assert site.awaited_shapes() == ["held"]
    waited_for(site, said, "snapshot_done", "held", count=2)
    equal(site, "held", "free")


def assert_a_flush_hangs_alone(site: ShapesSite, said: Said, gate: Gate) -> None:
    """It is parked at half of what the log may hold, so that nobody has to stop reading."""
    with gate.closed():
        write(site, 20, first=200)
        parked = waited_for(site, said, "shape_parked", "held")
        assert parked["detail"] == "the log is half full, and it held it: its job does not end"
        assert "\npenstock_log_full 0.0" in answer(said, "/metrics")
        others_go_on(site, first=300)
        site.wait_until(lambda: "does not end" in answer(said, "/readyz"), LONG)
    waited_for(site, said, "snapshot_done", "held", count=3)
    equal(site, "held", "free")


def assert_upkeep_takes_no_place_of_a_flush(site: ShapesSite, gate: Gate) -> None:
    with gate.closed():
        site.sql("INSERT INTO held VALUES (-1, 'v')")
        assert gate.reached.wait(LONG)
        for id_ in (-1, -2):
            site.sql(f"INSERT INTO free VALUES ({id_}, 'v')")
            equal(site, "free")
    equal(site, "held")


@pytest.mark.timeout(600)
def test_a_copy_of_which_nobody_takes_the_rows_begins_again(
    site: ShapesSite, serve: Serve, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line to Spark's workers stands still, and neither end of it notices."""
    monkeypatch.setattr(leadership, "LEAST_PATIENCE_S", 5.0)
    site.sql("INSERT INTO held SELECT g, repeat(md5(g::text), 40) FROM generate_series(1, 40000) g")
    with capture_logs() as said, TcpProxy("127.0.0.1", site.postgres.port) as line:

        def story() -> None:
            for shape in ("held", "free"):
                waited_for(site, said, "snapshot_done", shape)
            for name, value in (("PGHOST", "127.0.0.1"), ("PGPORT", str(line.port))):
                monkeypatch.setitem(started.spark.sparkContext.environment, name, value)
            line.freeze_after = MIB
            site.sql("ALTER TABLE held RENAME TO away; ALTER TABLE away RENAME TO held")
            hangs = waited_for(site, said, "snapshot_hangs", "held")["detail"]
            assert hangs.startswith("nobody has taken a row of its copy for 5 s")
            assert waited_for(site, said, "snapshot_failed", "held")["detail"] == f"shape held: {hangs}"
            line.thaw()
            waited_for(site, said, "snapshot_done", "held", count=2)
            equal(site, "held", "free")

        serve(site, story, STALL_S="0.5")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_attempt_at_a_cut_that_doesnt_come_is_given_up(
    site: ShapesSite, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that began after the look, and lasts."""

    async def nothing_is_seen(_parameters: object, _say: object) -> None:
        return None

    monkeypatch.setattr(cut, "transactions_end", nothing_is_seen)
    with capture_logs() as said:

        def story() -> None:
            for shape in ("held", "free"):
                waited_for(site, said, "snapshot_done", shape)
            with open_writer(site):
                site.sql("ALTER TABLE held RENAME TO away; ALTER TABLE away RENAME TO held")
                site.wait_until(lambda: bool(site.sql(TEMPORARY)), LONG)
                others_go_on(site)
                assert "for its cut" in waited_for(site, said, "snapshot_waits", "held")["detail"]
                others_go_on(site, first=100)
            waited_for(site, said, "snapshot_done", "held", count=2)
            equal(site, "held", "free")
            site.wait_until(lambda: not site.sql(TEMPORARY), LONG)

        serve(site, story, LOG_MAX_BYTES=str(MIB))


def ended_with(run_once: RunOnce, site: ShapesSite) -> str:
    """The sentence with which --once ends with 1."""
    with capture_logs() as said:
        assert run_once(site, STALL_S="1") == 1, said
    (line,) = [line for line in said if line["event"] == "stalled"]
    return str(line["detail"])


@pytest.mark.timeout(600)
def test_once_ends_whatever_waits_for_a_transaction(site: ShapesSite, run_once: RunOnce) -> None:
    """The slot, a snapshot, and rows that are to be compared."""
    site.sql("CREATE TABLE plain (id int PRIMARY KEY); INSERT INTO plain VALUES (1)")
    site.write_file(shape_lines("plain"))
    with open_writer(site) as who:
        assert ended_with(run_once, site).startswith(f"slot {site.slot} could not be made: {who}")
    assert run_once(site) == 0

    with open_writer(site) as who:
        site.write_file(shape_lines("plain"), shape_lines("held"))
        assert re.match(
            rf"shape held made no progress for \d+ s: {re.escape(who)}", ended_with(run_once, site)
        )
        site.write_file(shape_lines("plain"))
        site.sql("TRUNCATE plain; INSERT INTO plain VALUES (2)")
        sentence = ended_with(run_once, site)
        assert sentence.startswith("the rows of public.plain could not be compared for ")
        assert who in sentence
    with capture_logs() as said:
        assert run_once(site) == 0
    # If the run before has confirmed the TRUNCATE, the stream can't tell the rows any more.
    assert {line["event"] for line in said} & {"rows_compared", "snapshot_done"}
    site.assert_equal("plain", ["id"], "SELECT id FROM plain")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_crash_after_a_flush_without_effect_means_no_snapshot(site: ShapesSite) -> None:
    """The registry must not say that the table was further than it is."""
    site.sql("ALTER TABLE held REPLICA IDENTITY FULL")
    site.write_file(shape_lines("held", 'where = "id > 0"'), shape_lines("free"))
    with site.shapes() as service:
        service.wait_for_log("snapshot_done", LONG, count=2)
        for id_ in (-1, -2):
            site.sql(f"INSERT INTO held VALUES ({id_}, 'outside'); INSERT INTO free VALUES ({id_}, 'v')")
            last = site.wal_lsn()
            equal(site, "free")
            confirmed(site, last)
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


def flushes_begin_at(lsn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No flush begins before all that was committed below this position is in the log."""
    flush = work.Work.flush

    async def later(self: work.Work, shape: str) -> None:
        ledger = self._ledger
        assert isinstance(ledger, Ledger)
        while True:
            if ledger.collector.has_passed(lsn):
                break
            await asyncio.sleep(0.05)
        await asyncio.to_thread(ledger.log.flush, time.monotonic())
        await flush(self, shape)

    monkeypatch.setattr(work.Work, "flush", later)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_shape_beside_a_busy_one_catches_up(
    site: ShapesSite, serve: Serve, run_once: RunOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that took as much as one may take goes on at once, and reads its own tables only."""
    monkeypatch.setattr(work, "FLUSH_MAX_BYTES", 64 * 2**10)
    site.write_file(shape_lines("held"), shape_lines("free", interval_ms=600_000))
    assert run_once(site) == 0
    before = site.version("free")
    write(site, 40)
    site.sql(OFTEN)
    write(site, 40, first=100)
    flushes_begin_at(site.wal_lsn(), monkeypatch)

    serve(site, lambda: equal(site, "free", "held"))

    # Its own 340 KiB, and not the 3 MiB of both: these would take 47 flushes.
    assert before + 4 < site.version("free") < before + 15
