"""A bank in Postgres, its shapes, and what must be true of their tables and of the slot at any moment."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable

from penstock.model.lsn import parse_lsn
from tests.servers.shapes_site import ShapesProcess, ShapesSite

ACCOUNTS = 12
OPENING = 100
TOTAL = ACCOUNTS * OPENING

_SCHEMA = f"""
    CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL);
    INSERT INTO accounts SELECT g, {OPENING} FROM generate_series(1, {ACCOUNTS}) g;
    CREATE TABLE journal (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount bigint NOT NULL);
    INSERT INTO journal (amount) SELECT 0 FROM generate_series(1, 50);
"""
_SHAPES = {
    "accounts": 'table = "public.accounts"',
    "rich": f'table = "public.accounts"\nwhere = "balance > {OPENING}"',
    "journal": 'table = "public.journal"',
}
_TABLE_OF = {"accounts": "accounts", "rich": "accounts", "journal": "journal"}
_CONTENT = {
    "accounts": (("id", "balance"), "SELECT id, balance FROM accounts"),
    "rich": (("id", "balance"), f"SELECT id, balance FROM accounts WHERE balance > {OPENING}"),
    "journal": (("id", "amount"), "SELECT id, amount FROM journal"),
}
_PEEK = """
    SELECT data FROM pg_logical_slot_peek_changes(%s, NULL, NULL,
        'format-version', '2', 'include-transaction', 'true', 'include-lsn', 'true')
"""
_JOIN_S = 60.0
_FLUSHES_S = 240.0
_REWRITE_EVERY = 60


class Bank:
    """Accounts between which money moves, a journal of that, and three shapes over them.

    Every transaction moves money between two accounts and writes the journal. Now and then one empties
    `accounts` and fills it again with the same money, or removes lines of the journal.
    """

    def __init__(self, site: ShapesSite, *, seed: int, pause_s: float = 0.05, rewrites: bool = True) -> None:
        """`rewrites`: whether `accounts` is ever emptied."""
        self.site = site
        self._rewrites = rewrites
        self._rng = random.Random(seed)
        self._pause_s = pause_s
        self._conninfo = site.postgres.conninfo(site.database)
        self._observer = f"observer_{site.database}"[:60]
        self.transactions = 0
        """Committed so far."""
        self.rewrites = 0
        """Times that `accounts` was emptied and filled again."""
        site.sql(_SCHEMA)
        site.sql(f"SELECT pg_create_logical_replication_slot('{self._observer}', 'wal2json')")

    def write_file(self, *more: str, **intervals_ms: int) -> None:
        """The shapes file, with the intervals of shapes that aren't in a hurry, and further shapes."""
        self.site.write_file(
            *(
                f'name = "{name}"\n{text}\nflush_interval_ms = {intervals_ms.get(name, 100)}'
                for name, text in _SHAPES.items()
            ),
            *more,
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write in the background until the block is left."""
        stop, failures = threading.Event(), list[Exception]()

        def write() -> None:
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as session:
                    while not stop.wait(self._rng.uniform(0, 2 * self._pause_s)):
                        self.write(session)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=write, name="bank", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(_JOIN_S)
        assert failures == []
        assert not thread.is_alive(), "the writer hangs"

    def write(self, session: psycopg.Connection) -> None:
        """One transaction."""
        source, target = self._rng.sample(range(1, ACCOUNTS + 1), 2)
        with session.transaction():
            if self._rewrites and self.transactions % _REWRITE_EVERY == _REWRITE_EVERY - 1:
                self._rewrite(session)
            amount = self._rng.randint(1, 50)
            move = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
            session.execute(move, (-amount, source))
            session.execute(move, (amount, target))
            session.execute("INSERT INTO journal (amount) VALUES (%s)", (amount,))
            if self._rng.random() < 0.1:
                session.execute("DELETE FROM journal WHERE id %% 7 = %s AND amount > 0", (source % 7,))
        self.transactions += 1

    def _rewrite(self, session: psycopg.Connection) -> None:
        """Empty `accounts` and fill it again, unless a snapshot is being copied: that goes first."""
        rows = session.execute("SELECT id, balance FROM accounts").fetchall()
        session.execute("SET LOCAL lock_timeout = '100ms'")
        try:
            with session.transaction():
                session.execute("TRUNCATE accounts")
        except psycopg.errors.LockNotAvailable:
            return
        self.rewrites += 1
        self._rng.shuffle(rows)
        with session.cursor() as cursor:
            cursor.executemany("INSERT INTO accounts VALUES (%s, %s)", rows)

    def assert_exact(self) -> None:
        """Every shape's table is what Postgres holds."""
        for shape, (columns, query) in _CONTENT.items():
            self.site.assert_equal(shape, columns, query)

    def wait_exact(
        self, running: Any, timeout: float = 240.0, shapes: tuple[str, ...] = tuple(_SHAPES)
    ) -> None:
        """Wait until it is."""
        for shape in shapes:
            columns, query = _CONTENT[shape]
            self.site.wait_equal(shape, columns, query, timeout, running)

    def first_lacking(self, shape: str) -> int | None:
        """The commit LSN of the first transaction that touches the shape and is not in its table.

        None if it has all, or is not made yet. Another slot on the same WAL says what was committed.
        """
        path = self.site.table(shape)
        if not DeltaTable.is_deltatable(str(path)):
            return None
        held = offsets(self.site, shape)[-1]
        return next((lsn for lsn in self.commits(_TABLE_OF[shape]) if lsn > held), None)

    def commits(self, table: str) -> list[int]:
        """The commit LSNs of all transactions that touch a table, in their order."""
        found: list[int] = []
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            for (text,) in session.execute(_PEEK, (self._observer,)):
                frame = json.loads(text)
                if frame["action"] == "B":
                    commit_lsn = parse_lsn(frame["lsn"])
                elif frame.get("table") == table and found[-1:] != [commit_lsn]:
                    found.append(commit_lsn)
        return found

    def assert_slot_holds_what_is_missing(self) -> None:
        """Postgres sends again whatever some table lacks. To be asked while nobody moves slot and tables."""
        confirmed = self.site.confirmed_lsn()
        for shape in _SHAPES:
            lacking = self.first_lacking(shape)
            assert lacking is None or confirmed <= lacking, f"{shape} would never get {lacking}"

    def write_elsewhere(self) -> None:
        """Write WAL in a database that nobody follows."""
        with psycopg.connect(self.site.postgres.conninfo(), autocommit=True) as session:
            session.execute("CREATE TABLE IF NOT EXISTS elsewhere (id int)")
            session.execute("INSERT INTO elsewhere SELECT generate_series(1, 1000)")


class Reader:
    """Reads the table of accounts again and again, as anybody might, and counts the money."""

    def __init__(self, site: ShapesSite) -> None:
        self._path = str(site.table("accounts"))
        self._stop = threading.Event()
        self.versions: set[int] = set()
        """Those that it has seen."""
        self.wrong: list[str] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read in the background until the block is left; no read may have been wrong."""
        thread = threading.Thread(target=self._read, name="reader", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(_JOIN_S)
        assert self.wrong == []
        assert not thread.is_alive(), "the reader hangs"

    def _read(self) -> None:
        while not self._stop.wait(0.1):
            if DeltaTable.is_deltatable(self._path):
                self._count(DeltaTable(self._path))

    def _count(self, table: DeltaTable) -> None:
        self.versions.add(table.version())
        self.wrong += money_trouble(table)


def money_trouble(table: DeltaTable) -> list[str]:
    """What is wrong with the accounts in a version of their table."""
    balances = table.to_pyarrow_table(columns=["balance"])["balance"].to_pylist()
    if (len(balances), sum(balances)) == (ACCOUNTS, TOTAL):
        return []
    return [f"version {table.version()} has {len(balances)} accounts with {sum(balances)}"]


def assert_history_is_right(site: ShapesSite) -> None:
    """No version of the accounts ever held half a transaction, and no flush was committed twice."""
    path = str(site.table("accounts"))
    wrong = [
        trouble
        for version in range(site.version("accounts") + 1)
        for trouble in money_trouble(DeltaTable(path, version=version))
    ]
    assert wrong == []
    for shape in _SHAPES:
        positions = offsets(site, shape)
        assert positions == sorted(set(positions)), f"{shape} went back or stood still"


def offsets(site: ShapesSite, shape: str) -> list[int]:
    """The offset of each commit of a shape's table, in their order."""
    found = []
    for commit in sorted((site.table(shape) / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        found += [action["txn"]["version"] for action in actions if "txn" in action]
    return found


def flushes_more(site: ShapesSite, process: ShapesProcess, commits: int) -> None:
    """Wait until the accounts have so many further commits."""
    goal = site.version("accounts") + commits
    site.wait_until(lambda: site.version("accounts") >= goal, _FLUSHES_S, process)


def process_groups() -> list[tuple[str, int]]:
    """The state and the group of every process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it ended just now
        found.append((state, int(group)))
    return found
