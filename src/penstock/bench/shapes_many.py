"""Many shapes on few cores: each gets a row a second, and none may fall behind, beside a parked one neither.

Lags are measured from outside: a Delta commit is there when its file is, and it names the last transaction
that it holds.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier

from penstock.bench.lag import Lags, Visible, Written, beside_row, lag_rows, lags_of
from penstock.bench.shapes_run import ShapesRun, write_shapes_file
from penstock.bench.table import Row, say
from penstock.local.penstock_process import ProcessFailed
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn

_CATCH_UP_S: Final = 120.0
_LOOK_EVERY_S: Final = 1.0
_SAY_EVERY_S: Final = 30
_AS_PROMISED: Final = 0.98
_COMMIT: Final = re.compile(r"[0-9]{20}\.json")
# Upkeep's notes are transactions too, under another name, and their versions are no offsets.
_OURS: Final = "penstock:"


class Phase(NamedTuple):
    """Some minutes of rows."""

    lags: Lags
    rows_a_second: float
    flushes_a_second: float
    cpu_s_a_flush: float


def many(postgres: PrivatePostgres, directory: Path, *, shapes: int, seconds: int) -> list[Row]:
    """A row a second into each of many shapes; then the same while one of them is parked.

    Each time rows flow for a third of the time before they count, and then every row is waited for.
    """
    directory.mkdir()
    database = postgres.create_database()
    names = [f"many_{number}" for number in range(shapes)]
    file = directory / "many.toml"
    write_shapes_file(file, {name: f"public.{name}" for name in names})
    with psycopg.connect(postgres.conninfo(database), autocommit=True) as session:
        for name in names:
            session.execute(SQL("CREATE TABLE {} (id bigint PRIMARY KEY, v text)").format(Identifier(name)))
        with ShapesRun(postgres, database, file, counts_bytes=False) as run:
            say(f"snapshots of {shapes} shapes")
            run.wait_for_snapshots(shapes)
            load = _Load(run, _Writer(session, names), directory / "lake")
            say(f"a row a second into each of {shapes} shapes")
            alone = load.phase(seconds, followed=names)
            say("the same beside a parked shape")
            drop = SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            session.execute(drop.format(Identifier(names[0]), Identifier(f"{names[0]}_pkey")))
            run.wait_until(lambda: bool(run.events("shape_parked")), "a parked shape", 60.0)
            beside = load.phase(seconds, followed=names[1:])
    return [
        *_rows(f"{shapes} shapes, a row a second in each", shapes, alone),
        *_rows("the same beside a parked shape", shapes, beside),
        beside_row(alone.lags, beside.lags),
    ]


class _Writer:
    """Writes a row a second into each table, evenly spread, each a transaction of its own."""

    def __init__(self, session: psycopg.Connection, names: Sequence[str]) -> None:
        self._session = session
        self._names = names
        self._next_id = 1

    def write(self, seconds: int) -> list[Written]:
        """Write for so long."""
        written = []
        began = time.monotonic()
        for second in range(seconds):
            if second and second % _SAY_EVERY_S == 0:
                say(f"{second} of {seconds} s")
            for place, name in enumerate(self._names):
                wait_s = began + second + place / len(self._names) - time.monotonic()
                if wait_s > 0:
                    time.sleep(wait_s)
                written.append(self._insert(name))
            self._next_id += 1
        return written

    def _insert(self, name: str) -> Written:
        row = self._session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None, "a SELECT without FROM has a row"
        insert = SQL("INSERT INTO {} VALUES (%s, 'a row')").format(Identifier(name))
        self._session.execute(insert, (self._next_id,))
        return Written(name, time.time(), parse_lsn(row[0]))


class TableCommits:
    """The flushes of a table so far, in their order. Each commit is read once."""

    def __init__(self, table: Path) -> None:
        self._log = table / "_delta_log"
        self._read: set[str] = set()
        self.flushes: list[Visible] = []

    def look(self) -> None:
        """See what is new."""
        names = {name for name in os.listdir(self._log) if _COMMIT.fullmatch(name)}
        for name in sorted(names - self._read):
            path = self._log / name
            # It appears by a link, some time after it was written: by `ctime`, and not by `mtime`.
            at = path.stat().st_ctime
            for line in path.read_text().splitlines():
                txn = json.loads(line)["txn"] if line.startswith('{"txn"') else None
                if txn is not None and txn["appId"].startswith(_OURS):
                    self.flushes.append(Visible(txn["version"], at))
        self._read |= names

    def has(self, row: Written) -> bool:
        """Whether the row was there at the last look."""
        return bool(self.flushes) and self.flushes[-1].tx_offset >= row.before_lsn


class _Load:
    """Rows that flow through a running service, and what comes of them."""

    def __init__(self, run: ShapesRun, writer: _Writer, lake: Path) -> None:
        self._run = run
        self._writer = writer
        self._lake = lake

    def phase(self, seconds: int, *, followed: Sequence[str]) -> Phase:
        """Rows for so long, and for a third of it before they count; the lags of the tables `followed`."""
        warm_up = max(1, seconds // 3)
        say(f"for {warm_up} s to warm up, then for {seconds} s")
        self._writer.write(warm_up)
        cpu_s, commits = self._run.cpu_seconds(), self._flushes(followed)
        began = time.monotonic()
        written = self._writer.write(seconds)
        took_s = time.monotonic() - began
        cpu_s, commits = self._run.cpu_seconds() - cpu_s, self._flushes(followed) - commits
        say("waiting for every row")
        counted = [row for row in written if row.table in set(followed)]
        return Phase(
            self._lags(counted, followed),
            len(written) / max(took_s, float(seconds)),
            commits / took_s,
            cpu_s / max(1, commits),
        )

    def _flushes(self, followed: Sequence[str]) -> int:
        return sum(map(self._run.commits, followed))

    def _lags(self, written: Sequence[Written], followed: Sequence[str]) -> Lags:
        """Wait for the last row of each table, for a while, and tell the lags of all."""
        commits = {name: TableCommits(self._lake / name) for name in followed}
        last = {row.table: row for row in written}

        def all_are_there() -> bool:
            for name in list(last):
                commits[name].look()
                if commits[name].has(last[name]):
                    del last[name]
            return not last

        try:
            self._run.wait_until(all_are_there, "every row in its table", _CATCH_UP_S, poll_s=_LOOK_EVERY_S)
        except ProcessFailed:
            if not self._run.running:
                raise
            say(f"{len(last)} tables lack rows after {_CATCH_UP_S:.0f} s")
        return lags_of(written, {name: each.flushes for name, each in commits.items()}, time.time())


def _rows(what: str, shapes: int, phase: Phase) -> list[Row]:
    return [
        *lag_rows(what, phase.lags),
        Row(
            "… rows written a second",
            f"{phase.rows_a_second:.1f}",
            f"{shapes}",
            phase.rows_a_second >= _AS_PROMISED * shapes,
        ),
        Row("… flushes a second", f"{phase.flushes_a_second:.1f}", "", None),
        Row("… CPU of Python and Java for a flush", f"{phase.cpu_s_a_flush:.2f} s", "", None),
    ]
