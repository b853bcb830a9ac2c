"""Many shapes on few cores: each gets a row a second, and none may fall behind, beside a parked one neither.

The lag of a row is measured from outside: from its commit in Postgres to the Delta commit that has it. That
is there when its file is, and names the last transaction that it holds.
"""

from __future__ import annotations

import json
import statistics
import time
from bisect import bisect_left
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
from psycopg.sql import SQL, Identifier

from penstock.bench.shapes_run import ShapesRun
from penstock.bench.table import Row, say
from penstock.local.postgres import PrivatePostgres
from penstock.model.lsn import parse_lsn

_LIMIT_S: Final = 25.0
_GROWTH: Final = 1.2
_WARM_UP_S: Final = 30
_CATCH_UP_S: Final = 120.0


class Written(NamedTuple):
    """A row that was committed."""

    table: str
    at: float
    before_lsn: int
    """Where the WAL was just before: the row's commit is behind it, and every earlier one is not."""


class Visible(NamedTuple):
    """A commit of a shape's table."""

    tx_offset: int
    at: float


def many(postgres: PrivatePostgres, directory: Path, *, shapes: int = 100, seconds: int = 180) -> list[Row]:
    """A row a second into each of many shapes; then the same while one of them is parked."""
    directory.mkdir()
    database = postgres.create_database()
    names = [f"many_{number}" for number in range(shapes)]
    with psycopg.connect(postgres.conninfo(database), autocommit=True) as session:
        for name in names:
            session.execute(SQL("CREATE TABLE {} (id bigint PRIMARY KEY, v text)").format(Identifier(name)))
        file = directory / "many.toml"
        tables = "\n".join(f'[[shape]]\nname = "{name}"\ntable = "public.{name}"' for name in names)
        file.write_text(f'storage = "./lake"\n{tables}\n')
        with ShapesRun(postgres, database, file) as run:
            say(f"snapshots of {shapes} shapes")
            run.wait_for_snapshots(shapes)
            say(f"a row a second into each of {shapes} shapes, to warm up")
            _write(session, names, _WARM_UP_S, first_id=0)
            say(f"the same for {seconds} s")
            cpu_s, commits = run.cpu_seconds(), sum(map(run.commits, names))
            free = _write(session, names, seconds, first_id=1_000)
            cpu_s, commits = run.cpu_seconds() - cpu_s, sum(map(run.commits, names)) - commits
            drop = SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            session.execute(drop.format(Identifier(names[0]), Identifier(f"{names[0]}_pkey")))
            run.wait_until(lambda: bool(run.events("shape_parked")), "a parked shape", 60.0)
            say(f"and for {seconds} s beside a parked shape")
            parked = _write(session, names, seconds, first_id=10_000)
            lake = directory / "lake"
            run.wait_until(
                lambda: _commits(lake / names[-1])[-1].tx_offset >= parked[-1].before_lsn,
                "the last row",
                _CATCH_UP_S,
            )
            lags = [_lags(written, lake, without=names[0]) for written in (free, parked)]
    return [
        *_rows(f"{shapes} shapes, a row a second in each", lags[0], seconds),
        Row("… flushes a second", f"{commits / seconds:.1f}", "", None),
        Row("… CPU of Python and Java for a flush", f"{cpu_s / commits:.2f} s", "", None),
        *_rows("the same beside a parked shape", lags[1], seconds),
    ]


def _write(session: psycopg.Connection, names: list[str], seconds: int, *, first_id: int) -> list[Written]:
    """A row a second into each table, evenly spread, each a transaction of its own."""
    written = []
    began = time.monotonic()
    for number in range(seconds * len(names)):
        wait_s = began + number / len(names) - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        second, place = divmod(number, len(names))
        row = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None, "a SELECT without FROM has a row"
        insert = SQL("INSERT INTO {} VALUES (%s, 'a row')").format(Identifier(names[place]))
        session.execute(insert, (first_id + second,))
        written.append(Written(names[place], time.time(), parse_lsn(row[0])))
    return written


def _lags(written: list[Written], lake: Path, *, without: str) -> list[tuple[float, float]]:
    """When each row was written, from the first on, and its lag. Rows that are nowhere yet are left out."""
    commits = {name: _commits(lake / name) for name in {row.table for row in written} - {without}}
    offsets = {name: [commit.tx_offset for commit in each] for name, each in commits.items()}
    found = []
    for row in written:
        if row.table != without:
            place = bisect_left(offsets[row.table], row.before_lsn)
            if place < len(offsets[row.table]):
                lag_s = commits[row.table][place].at - row.at
                found.append((row.at - written[0].at, max(0.0, lag_s)))
    return found


def _commits(table: Path) -> list[Visible]:
    """The flushes of a table, in their order."""
    found = []
    for path in sorted((table / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            if line.startswith('{"txn"'):
                found.append(Visible(json.loads(line)["txn"]["version"], path.stat().st_mtime))
    return found


def _rows(what: str, lags: list[tuple[float, float]], seconds: int) -> list[Row]:
    p50 = statistics.median(lag for _, lag in lags)
    thirds = [
        statistics.median(lag for at, lag in lags if third <= 3 * at / seconds < third + 1)
        for third in range(3)
    ]
    growth = thirds[2] / thirds[1]
    p95 = statistics.quantiles((lag for _, lag in lags), n=20)[-1]
    return [
        Row(f"{what}, lag of {len(lags)} rows, p50", f"{p50:.1f} s", f"≤ {_LIMIT_S:.0f} s", p50 <= _LIMIT_S),
        Row("… p95", f"{p95:.1f} s", "", None),
        Row(
            "… p50 of the thirds of the time; the last against the one before",
            f"{', '.join(f'{third:.1f}' for third in thirds)} s; {growth:.2f}",
            f"≤ {_GROWTH}",
            growth <= _GROWTH,
        ),
    ]
