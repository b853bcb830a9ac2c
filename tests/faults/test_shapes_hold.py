"""The slot waits for every shape, and for nothing else; one leader at a time flushes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from penstock.model.lsn import format_lsn
from tests.faults.shapes_load import (
    Bank,
    Reader,
    assert_history_is_right,
    flushes_more,
    offsets,
    process_groups,
)
from tests.servers.capture_site import logged_at, readiness, wait_for_phase, wait_until
from tests.servers.shapes_site import ShapesProcess, ShapesSite
from tests.servers.stopwatch import Stopwatch

LONG_S = 240.0
STALL_S = 2.0
RETRY_S = 0.5
# Two Sparks share two cores here.
TAKEOVER_S = 3.0
LEAVING_S = 1.0
# Those that a test isn't about leave the cores to those that it is about.
UNHURRIED_MS = 3000
SENDERS = """
    SELECT pid FROM pg_stat_replication
    WHERE application_name = 'penstock shapes {}' AND state IN ('catchup', 'streaming')
"""
QUIET = 'name = "quiet"\ntable = "public.quiet"\nflush_interval_ms = 3600000'


@pytest.fixture
def site(shapes_site: ShapesSite) -> ShapesSite:
    return shapes_site


def shape_metric(process: ShapesProcess, name: str, shape: str) -> float:
    """The value of a metric of a shape."""
    return process.metrics()[f'{name}{{shape="{shape}"}}']


class SlotWatch:
    """Looks again and again where the slot stands."""

    def __init__(self, site: ShapesSite) -> None:
        self._site = site
        self.highest = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look in the background until the block is left."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.05):
                self.highest = max(self.highest, self._site.confirmed_lsn())

        thread = threading.Thread(target=watch, name="slot", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(LONG_S)
        self.highest = max(self.highest, self._site.confirmed_lsn())


@pytest.mark.timeout(900)
def test_the_slot_waits_for_a_held_shape_and_for_no_other(site: ShapesSite) -> None:
    """One life: a shape is held back and released, silence holds nothing, and SIGTERM flushes the rest."""
    bank = Bank(site, seed=41)
    bank.write_file(QUIET, rich=UNHURRIED_MS)
    site.sql("CREATE TABLE quiet (id int PRIMARY KEY); INSERT INTO quiet VALUES (1)")
    site.sql("CREATE TABLE unfollowed (id int)")
    with site.shapes(STALL_S=str(STALL_S), SHUTDOWN_DRAIN_S=str(LONG_S)) as process:
        process.wait_for_log("snapshot_done", LONG_S, count=4)
        assert_held_shape_holds_the_slot(bank, process)
        assert_silence_holds_nothing(bank, process)
        assert_last_words_are_kept(bank, process)


def assert_held_shape_holds_the_slot(bank: Bank, process: ShapesProcess) -> None:
    site, slot = bank.site, SlotWatch(bank.site)
    journal = site.table("journal")
    away = journal.with_name("journal.away")
    with slot.watching():
        os.rename(journal, away)
        with bank.writing():
            process.wait_for_log(
                "shape_stalled", LONG_S, where=lambda line: "/lake/journal" in line["detail"]
            )
            flushes_more(site, process, 2)
        answer = readiness(process)
        bank.wait_exact(process, shapes=("accounts",))
        assert not journal.exists(), "a flush must not begin a table of its own"
    os.rename(away, journal)
    lacking = bank.first_lacking("journal")
    assert lacking is not None
    assert slot.highest <= lacking
    assert offsets(site, "accounts")[-1] > lacking
    assert answer["status"] == 503
    assert any("shape journal" in reason for reason in answer["reasons"])
    assert shape_metric(process, "penstock_shape_failing", "journal") == 1
    assert shape_metric(process, "penstock_shape_failing", "accounts") == 0
    bank.wait_exact(process)
    newest = bank.commits("journal")[-1]
    wait_until(lambda: site.confirmed_lsn() > newest, "the slot moves on", LONG_S)
    wait_until(lambda: readiness(process)["status"] == 200, "it is ready again", LONG_S)


def assert_silence_holds_nothing(bank: Bank, process: ShapesProcess) -> None:
    """Nobody writes what is followed; WAL is written beside it, in this database and in another."""
    site = bank.site
    versions = [site.version(shape) for shape in ("accounts", "journal", "quiet")]
    site.sql("INSERT INTO unfollowed SELECT generate_series(1, 1000)")
    bank.write_elsewhere()
    goal = site.wal_lsn()
    wait_until(lambda: site.confirmed_lsn() >= goal, "the slot follows the server", LONG_S)
    assert [site.version(shape) for shape in ("accounts", "journal", "quiet")] == versions
    assert process.running


def assert_last_words_are_kept(bank: Bank, process: ShapesProcess) -> None:
    """What waits for its interval, an hour, is flushed and confirmed by SIGTERM."""
    site = bank.site
    with bank.writing():
        site.sql("INSERT INTO quiet VALUES (2)")
        flushes_more(site, process, 2)
        assert site.rows("quiet", ["id"]) == [(1,)]
    process.stop()
    assert process.wait(LONG_S) == 0
    assert site.rows("quiet", ["id"]) == [(1,), (2,)]
    bank.assert_slot_holds_what_is_missing()
    (drained,) = process.events("drained")
    assert format_lsn(site.confirmed_lsn()) == drained["confirmed_lsn"]
    assert site.confirmed_lsn() > max(offsets(site, shape)[-1] for shape in ("accounts", "journal", "quiet"))
    assert list((site.directory / "lake" / "_penstock" / "log").iterdir()) == []


@contextmanager
def one_consumer(site: ShapesSite) -> Iterator[None]:
    """Looks all the time who streams from the slot, and fails if two do.

    A walsender that ends lets go of the slot a moment before it leaves the view.
    """
    crowds: list[object] = []
    done = threading.Event()

    def watch() -> None:
        with psycopg.connect(site.postgres.conninfo(site.database), autocommit=True) as session:
            alone_at = time.monotonic()
            while not done.wait(0.01):
                senders = session.execute(SENDERS.format(site.slot).encode()).fetchall()
                if len(senders) <= 1:
                    alone_at = time.monotonic()
                elif time.monotonic() - alone_at > LEAVING_S:
                    crowds.append(senders)

    watcher = threading.Thread(target=watch, name="one-consumer", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(LONG_S)
    assert crowds == []


def freeze_in_mid_merge(site: ShapesSite, process: ShapesProcess) -> int:
    """Freeze a leader that has written files for a commit which is not made; gives that commit's version."""
    table = site.table("accounts")
    log = table / "_delta_log"
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        before, version = set(os.listdir(table)), site.version("accounts") + 1
        while not any(name.endswith(".parquet") for name in set(os.listdir(table)) - before):
            assert process.running
            assert time.monotonic() < deadline, "no flush writes a file"
        process.freeze_all()
        wait_until(lambda: all_stopped(process), "it is frozen", LONG_S)
        if not (log / f"{version:020}.json").exists():
            return version
        process.cont_all()
    raise AssertionError("no flush was caught in its middle")


def all_stopped(process: ShapesProcess) -> bool:
    """Whether Python and Java have stopped; a child of Java's that has ended meanwhile stays a zombie."""
    states = {state for state, group in process_groups() if group == process.pid}
    return "T" in states and states <= {"T", "Z"}


@pytest.mark.timeout(900)
def test_a_leader_frozen_in_mid_merge_wakes_up_harmless(site: ShapesSite) -> None:
    """There and back: each of two is frozen once, and is still good enough to lead after that."""
    bank, reader = Bank(site, seed=42), Reader(site)
    bank.write_file(rich=UNHURRIED_MS, journal=UNHURRIED_MS)
    with site.shapes() as first, site.shapes() as second, one_consumer(site):
        leader, standby = in_order(first, second)
        with bank.writing(), reader.reading():
            for _ in range(2):
                flushes_more(site, leader, 1)
                leaderships = len(standby.events("streaming"))
                version = freeze_in_mid_merge(site, leader)
                standby.wait_for_log("streaming", LONG_S, count=leaderships + 1)
                flushes_more(site, standby, 1)
                assert site.version("accounts") >= version, "the same version has another writer"
                leader.cont_all()
                wait_for_phase(leader, "standby", LONG_S)
                leader, standby = standby, leader
                flushes_more(site, leader, 2)
            kill_and_take_over(bank, leader, standby)
            site.wait_until(lambda: len(reader.versions) > 10 and bank.rewrites > 5, LONG_S, standby)
        bank.wait_exact(standby)
        standby.stop()
        assert standby.wait(LONG_S) == 0
        assert [len(first.events("streaming")), len(second.events("streaming"))] == [2, 2]
        assert all("Traceback" not in process.log_text() for process in (first, second))
    bank.assert_exact()
    assert_history_is_right(site)
    assert len(reader.versions) > 10
    assert bank.rewrites > 5


def in_order(first: ShapesProcess, second: ShapesProcess) -> tuple[ShapesProcess, ShapesProcess]:
    """The leader, and the standby, which says who leads."""
    wait_until(lambda: first.events("lock_acquired") or second.events("lock_acquired"), "one leads", LONG_S)
    leader, standby = (first, second) if first.events("lock_acquired") else (second, first)
    leader.wait_for_log("snapshot_done", LONG_S, count=3)
    said = standby.wait_for_log("standby", LONG_S)
    assert str(leader.events("lock_acquired")[0]["walsender_pid"]) in said["detail"]
    assert readiness(standby)["status"] == 200
    return leader, standby


def kill_and_take_over(bank: Bank, leader: ShapesProcess, standby: ShapesProcess) -> None:
    flushes_more(bank.site, leader, 1)
    before = len(standby.events("lock_acquired"))
    killed_at, watch = time.time(), Stopwatch()
    leader.kill9()
    took = standby.wait_for_log("lock_acquired", LONG_S, count=before + 1)
    assert watch.fair(logged_at(took) - killed_at) <= RETRY_S + TAKEOVER_S
    flushes_more(bank.site, standby, 1)
