"""Every committed change reaches the stream, in order per key, whatever else goes on at the same time."""

from __future__ import annotations

import os
import random
import re
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest

from penstock.local.kinesis import LocalKinesis
from penstock.local.postgres import PrivatePostgres
from tests.faults.stream_checks import Change, read_changes
from tests.servers.capture_process import CaptureProcess
from tests.servers.capture_site import CaptureSite, metric, wait_until

BUDGET_BYTES = 50 * 1024 * 1024
REQUEST_BYTES = 500 * 300
ALLOWED_GROWTH_BYTES = 200 * 1024 * 1024
BIG_ROWS = 200_000

RowStep = tuple[str, int | None]
"""What a row's history is made of: the action, and the version that it left; a delete leaves none."""


@pytest.fixture
def site(postgres: PrivatePostgres, database: str, kinesis: LocalKinesis, stream: str) -> CaptureSite:
    return CaptureSite(postgres, database, kinesis, stream, LEADER_TIMEOUT_S=10)


@dataclass
class Writer:
    """A session, and what its open transaction has done so far."""

    session: psycopg.Connection
    steps: list[tuple[int, RowStep]] = field(default_factory=list)
    savepoints: list[int] = field(default_factory=list)
    """How many steps had been taken at each."""
    owned: set[int] = field(default_factory=set)
    """Rows that it has locked."""


class Interleaved:
    """Overlapping transactions on few rows: a seed decides who does what next, and who commits when.

    One thread drives all writers, statement by statement. It lets no two open transactions touch one row, so
    none waits for another, and the history of each row is known.
    """

    def __init__(self, writers: list[psycopg.Connection], *, rows: int, seed: int) -> None:
        self._writers = [Writer(session) for session in writers]
        self._rows = range(1, rows + 1)
        self._rng = random.Random(seed)
        self._version = 0
        self._existing: set[int] = set()
        self.histories: defaultdict[int, list[RowStep]] = defaultdict(list)
        """What was committed of each row, in order."""
        self.tally: defaultdict[str, int] = defaultdict(int)
        """How often each thing was done."""

    def run(self, statements: int) -> None:
        """Take this many steps, then end all transactions in random order."""
        doings = [
            self._insert,
            self._copy,
            self._update,
            self._delete,
            self._savepoint,
            self._back,
            self._end,
        ]
        for _ in range(statements):
            doing = self._rng.choices(doings, weights=[5, 2, 6, 2, 2, 1, 3])[0]
            doing(self._rng.choice(self._writers))
        for writer in self._rng.sample(self._writers, len(self._writers)):
            self._end(writer)

    def _insert(self, writer: Writer) -> None:
        fresh = [(row, self._next_version()) for row in self._choose(writer, there=False)]
        if fresh:
            values = ", ".join(f"({row}, {version})" for row, version in fresh)
            self._do(writer, f"INSERT INTO items VALUES {values}")
            self._note(writer, "I", fresh)

    def _copy(self, writer: Writer) -> None:
        fresh = [(row, self._next_version()) for row in self._choose(writer, there=False)]
        with writer.session.cursor().copy("COPY items FROM STDIN") as copy:
            for pair in fresh:
                copy.write_row(pair)
        self._note(writer, "I", fresh)

    def _update(self, writer: Writer) -> None:
        for row in self._choose(writer, there=True):
            version = self._next_version()
            self._do(writer, f"UPDATE items SET version = {version} WHERE id = {row}")
            self._note(writer, "U", [(row, version)])

    def _delete(self, writer: Writer) -> None:
        for row in self._choose(writer, there=True)[:1]:
            self._do(writer, f"DELETE FROM items WHERE id = {row}")
            self._note(writer, "D", [(row, None)])

    def _savepoint(self, writer: Writer) -> None:
        self._do(writer, f"SAVEPOINT s{len(writer.savepoints)}")
        writer.savepoints.append(len(writer.steps))

    def _back(self, writer: Writer) -> None:
        if writer.savepoints:
            kept = writer.savepoints.pop()
            self._do(writer, f"ROLLBACK TO s{len(writer.savepoints)}")
            self.tally["undone"] += len(writer.steps) - kept
            del writer.steps[kept:]

    def _end(self, writer: Writer) -> None:
        if self._rng.random() < 0.2:
            writer.session.rollback()
            self.tally["rolled back"] += len(writer.steps)
        else:
            writer.session.commit()
            for row, step in writer.steps:
                self.histories[row].append(step)
                (self._existing.discard if step[0] == "D" else self._existing.add)(row)
            self.tally["committed"] += len(writer.steps)
        writer.steps, writer.savepoints, writer.owned = [], [], set()

    def _choose(self, writer: Writer, *, there: bool) -> list[int]:
        """A few rows that this writer may touch: those that exist for it, or those that don't."""
        others = set().union(*(each.owned for each in self._writers if each is not writer))
        alive = set(self._existing)
        for row, (action, _) in writer.steps:
            (alive.discard if action == "D" else alive.add)(row)
        able = [row for row in self._rows if row not in others and (row in alive) is there]
        chosen = self._rng.sample(able, min(len(able), self._rng.randint(1, 4)))
        writer.owned.update(chosen)
        return chosen

    def _note(self, writer: Writer, action: str, written: Iterable[tuple[int, int | None]]) -> None:
        writer.steps += [(row, (action, version)) for row, version in written]

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    @staticmethod
    def _do(writer: Writer, statement: str) -> None:
        writer.session.execute(statement.encode())


def without_repeats(changes: Iterable[Change]) -> list[Change]:
    """The first occurrence of each record."""
    first: dict[tuple[str, bytes], Change] = {}
    for change in changes:
        first.setdefault((change.key, change.data), change)
    return list(first.values())


def assert_lsn_increases_per_key(changes: Iterable[Change]) -> None:
    last: dict[str, Change] = {}
    for change in changes:
        before = last.get(change.key)
        if before is not None:
            assert before.shard == change.shard
            assert before.lsn < change.lsn, f"{change.key} goes back at {change.lsn:x}"
        last[change.key] = change


def test_interleaved_transactions_arrive_whole_and_in_order(site: CaptureSite) -> None:
    site.psql("CREATE TABLE items (id int PRIMARY KEY, version int NOT NULL)")
    with site.capture() as capture, ExitStack() as stack:
        capture.wait_for_log("streaming")
        sessions = [stack.enter_context(psycopg.connect(site.conninfo)) for _ in range(6)]
        work = Interleaved(sessions, rows=60, seed=20)
        work.run(3000)
        site.wait_until_confirmed()

    changes = without_repeats(read_changes(site.kinesis, site.stream))

    histories: defaultdict[int, list[RowStep]] = defaultdict(list)
    for change in changes:
        assert change.key == f"public.items/{change.row['id']}"
        histories[change.row["id"]].append((str(change.action), change.row.get("version")))
    assert min(work.tally[what] for what in ("committed", "rolled back", "undone")) > 50
    assert histories == work.histories
    assert_lsn_increases_per_key(changes)


def test_a_large_transaction_streams_through_bounded_memory(site: CaptureSite) -> None:
    """It overlaps with small ones, and meets a sink that does not answer: reading waits for requests."""
    site.psql("CREATE TABLE items (id int PRIMARY KEY, version int, pad text)")
    budget = {"INFLIGHT_MAX_BYTES": BUDGET_BYTES, "INFLIGHT_MAX_MESSAGES": 10 * BIG_ROWS}
    with site.capture(**budget, KINESIS_BATCH_MAX_RECORDS=500) as capture:
        capture.wait_for_log("streaming")
        before = capture.peak_rss_bytes()
        with frozen(site.kinesis):
            write_large_transaction_among_small_ones(site)
            held = wait_until(lambda: inflight_bytes(capture, at_least=REQUEST_BYTES), "a full request waits")
        site.wait_until_confirmed()
        growth = capture.peak_rss_bytes() - before

    assert held <= BUDGET_BYTES
    assert growth < ALLOWED_GROWTH_BYTES
    # A JSON parser for each of so many records would take longer than all the rest.
    pattern = re.compile(rb'"name":"id","type":"integer","value":(-?\d+)')
    found: defaultdict[int, set[bytes]] = defaultdict(set)
    for record in site.kinesis.read_all(site.stream):
        match = pattern.search(record.data)
        assert match is not None
        found[int(match[1])].add(record.data)
    assert found.keys() == {*range(1, BIG_ROWS + 1), *range(-40, 0)}
    assert all(len(contents) == 1 for contents in found.values())


def write_large_transaction_among_small_ones(site: CaptureSite) -> None:
    with psycopg.connect(site.conninfo) as large, psycopg.connect(site.conninfo, autocommit=True) as small:
        for number in range(1, 41):
            if number % 4 == 0:
                first = BIG_ROWS // 10 * (number // 4 - 1) + 1
                rows = f"generate_series({first}, {first + BIG_ROWS // 10 - 1}) g"
                large.execute(f"INSERT INTO items SELECT g, 0, repeat('x', 300) FROM {rows}".encode())
            small.execute("INSERT INTO items VALUES (%s, 0, '')", (-number,))


def inflight_bytes(capture: CaptureProcess, *, at_least: float) -> float | None:
    now = metric(capture, "penstock_inflight_bytes")
    return now if now >= at_least else None


@contextmanager
def frozen(kinesis: LocalKinesis) -> Iterator[None]:
    """A Kinesis that takes connections and answers nobody."""
    os.kill(kinesis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(kinesis.pid, signal.SIGCONT)
