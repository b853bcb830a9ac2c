"""Writers: concurrent transactions on few rows, and an exact account of what they committed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.faults.stream_checks import RowChange

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS items (id bigint PRIMARY KEY, version bigint NOT NULL, pad text NOT NULL);
    ALTER TABLE items REPLICA IDENTITY FULL;
    CREATE SEQUENCE IF NOT EXISTS versions
"""
_WRITE = """
    INSERT INTO items VALUES (%s, nextval('versions'), %s)
    ON CONFLICT (id) DO UPDATE SET version = excluded.version, pad = excluded.pad
    RETURNING CASE WHEN xmax = 0 THEN 'I' ELSE 'U' END, version
"""
_DELETE = "DELETE FROM items WHERE id = %s RETURNING 'D', version"
# Without it a writer could draw a version, wait for the row, and commit after a higher version.
_LOCK = "SELECT pg_advisory_xact_lock(%s)"
_JOIN_S = 60.0
_RECONNECT_S = 0.05


class Writers:
    """Several sessions that write the rows 1 to `keys` of the table `items`, which it makes.

    A transaction changes one to `longest` rows, some of them twice, deletes some, rolls back to a savepoint
    now and then, and sometimes rolls back altogether. Row changes are told apart by `version` and so the
    replica identity is FULL: a delete then shows the version that it deleted.

    `write()` runs a number of transactions to their end; `running()` writes in the background. A session that
    is lost is opened again; what it was about to commit is `in_doubt` then.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        seed: int,
        writers: int = 3,
        keys: int = 8,
        longest: int = 5,
        pad: int = 100,
        pause_s: float = 0.0,
    ) -> None:
        self._conninfo = conninfo
        self._seed = seed
        self._keys = range(1, keys + 1)
        self._longest = longest
        self._pad = pad
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._committed: set[RowChange] = set()
        self._in_doubt: set[RowChange] = set()
        self._rounds = 0
        self._writers = writers
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(_SCHEMA)

    @property
    def committed(self) -> frozenset[RowChange]:
        """Every change whose commit was confirmed."""
        with self._lock:
            return frozenset(self._committed)

    @property
    def in_doubt(self) -> frozenset[RowChange]:
        """Changes whose session was lost at COMMIT."""
        with self._lock:
            return frozenset(self._in_doubt)

    def write(self, transactions: int) -> None:
        """Each writer runs this many transactions; returns when all have."""
        for thread in self._launch(transactions):
            _join(thread)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write in the background until the block is left."""
        threads = self._launch(None)
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                _join(thread)

    def _launch(self, transactions: int | None) -> list[threading.Thread]:
        self._stop.clear()
        self._rounds += 1
        threads = [
            threading.Thread(
                target=self._work,
                args=(random.Random(f"{self._seed}/{self._rounds}/{number}"), transactions),
                name=f"writer-{number}",
                daemon=True,
            )
            for number in range(self._writers)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _work(self, rng: random.Random, transactions: int | None) -> None:
        left = transactions
        while left != 0 and not self._stop.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as session:
                    while left != 0 and not self._stop.is_set():
                        self._transaction(session, rng)
                        left = None if left is None else left - 1
                        if self._pause_s:
                            self._stop.wait(rng.uniform(0, 2 * self._pause_s))
            except psycopg.OperationalError:
                time.sleep(_RECONNECT_S)

    def _transaction(self, session: psycopg.Connection, rng: random.Random) -> None:
        done: list[RowChange] = []
        session.execute("BEGIN")
        # In one order, or two writers could wait for each other.
        for id_ in sorted(rng.sample(self._keys, rng.randint(1, min(self._longest, len(self._keys))))):
            session.execute(_LOCK, (id_,))
            if rng.random() < 0.1:
                session.execute("SAVEPOINT before")
                self._change(session, rng, id_)
                session.execute("ROLLBACK TO before")
            done += [self._change(session, rng, id_) for _ in range(rng.choice((1, 1, 1, 2)))]
        if rng.random() < 0.1:
            session.execute("ROLLBACK")
            return
        self._commit(session, done)

    def _change(self, session: psycopg.Connection, rng: random.Random, id_: int) -> RowChange:
        with session.cursor() as cursor:
            if rng.random() < 0.1:
                deleted = cursor.execute(_DELETE, (id_,)).fetchone()
                if deleted is not None:
                    return RowChange(deleted[0], id_, deleted[1])
            written = cursor.execute(_WRITE, (id_, "x" * rng.randint(0, 2 * self._pad))).fetchone()
            assert written is not None
            return RowChange(written[0], id_, written[1])

    def _commit(self, session: psycopg.Connection, done: list[RowChange]) -> None:
        with self._lock:
            self._in_doubt.update(done)
        session.execute("COMMIT")
        with self._lock:
            self._in_doubt.difference_update(done)
            self._committed.update(done)


def _join(thread: threading.Thread) -> None:
    thread.join(_JOIN_S)
    assert not thread.is_alive(), "a writer hangs"
