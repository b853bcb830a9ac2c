"""Every row of docs/types.md, through the stream and through COPY, on a real Postgres."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest

from penstock.decoding.rows import ChangeDecoder, Column, DecodeError, decode_copy
from penstock.local.postgres import PrivatePostgres
from penstock.model.log_offset import LogOffset
from penstock.postgres.connection import PINNED_SESSION
from tests.type_cases import ASK, CASES, SETUP, Case, is_lost, plain

PAGE: Final = (Path(__file__).parents[2] / "docs" / "types.md").read_text()
ROW: Final = re.compile(
    r"^\| `(?P<type>[^`]+)`.*? \| (?P<json>\w+) \| `(?P<lake>[^`]+)` \| `(?P<arrow>[^`]+)` \|", re.MULTILINE
)
ID: Final = Column("id", "integer", not_null=True)
COLUMN: Final = """
    WITH RECURSIVE down AS (
        SELECT t.oid, a.atttypmod AS typmod, t.typbasetype, t.typtypmod
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = %(table)s::regclass AND a.attname = 'v'
        UNION ALL
        SELECT t.oid, down.typtypmod, t.typbasetype, t.typtypmod
        FROM down JOIN pg_type t ON t.oid = down.typbasetype
    )
    SELECT (SELECT format_type(atttypid, atttypmod) FROM pg_attribute
            WHERE attrelid = %(table)s::regclass AND attname = 'v'),
           (SELECT format_type(oid, typmod) FROM down WHERE typbasetype = 0)
"""


@dataclass(frozen=True)
class Landed:
    """One case's table: its column, and the values by both ways and as Postgres counts them."""

    column: Column
    frames: list[bytes]
    copied: bytes
    ticks: list[int | None]


@pytest.fixture(scope="module")
def landed(postgres: PrivatePostgres) -> Iterator[dict[str, Landed]]:
    """All cases, each in a table of its own, read back from one slot."""
    name = postgres.create_database()
    postgres.psql(SETUP, name)
    with psycopg.connect(postgres.conninfo(name, options=PINNED_SESSION), autocommit=True) as session:
        _create_slot(session)
        for place, (declared, case) in enumerate(CASES.items()):
            session.execute(f"CREATE TABLE t{place} (id integer PRIMARY KEY, v {declared})".encode())
            for at, value in enumerate([*case.values, *([] if "DEFAULT" in case.values else ["NULL"])], 1):
                session.execute(f"INSERT INTO t{place} VALUES ({at}, {value})".encode())
        frames = _frames(session)
        yield {
            declared: _landed(session, f"t{place}", case, frames)
            for place, (declared, case) in enumerate(CASES.items())
        }
    postgres.psql(f'DROP DATABASE "{name}" WITH (FORCE)')


def _create_slot(session: psycopg.Connection[Any]) -> None:
    """A temporary slot, named after the session, which ends it too."""
    session.execute(
        f"SELECT pg_create_logical_replication_slot('{_slot(session)}', 'wal2json', true)".encode()
    )


def _slot(session: psycopg.Connection[Any]) -> str:
    return f"types_{session.info.backend_pid}"


def _frames(session: psycopg.Connection[Any]) -> list[bytes]:
    """What the slot has, in the format that shapes ask for."""
    changes = session.execute(
        f"SELECT data FROM pg_logical_slot_get_changes('{_slot(session)}', NULL, NULL, 'format-version', '2',"
        " 'include-types', 'true', 'include-typmod', 'true', 'include-transaction', 'false')".encode()
    )
    return [data.encode() for (data,) in changes.fetchall()]


def _landed(session: psycopg.Connection[Any], table: str, case: Case, frames: list[bytes]) -> Landed:
    found = session.execute(COLUMN, {"table": table}).fetchone()
    assert found is not None
    declared, base = found
    with session.cursor().copy(f"COPY (SELECT id, v FROM {table} ORDER BY id) TO STDOUT".encode()) as copy:
        copied = b"".join(bytes(block) for block in copy)
    ticks: list[int | None] = []
    if case.ticks:
        rows = session.execute(
            f"SELECT CASE WHEN isfinite(v) THEN {case.ticks} END FROM {table} ORDER BY id".encode()
        )
        ticks = [tick for (tick,) in rows.fetchall()]
    mark = f'"table":"{table}"'.encode()
    return Landed(Column("v", declared, base), [frame for frame in frames if mark in frame], copied, ticks)


def _streamed(landed: Landed) -> pa.Array:
    decoder = ChangeDecoder("public.t", [ID, landed.column], ["id"], plugin="wal2json")
    offsets = [LogOffset(100, 2 * at) for at in range(len(landed.frames))]
    return decoder.decode(offsets, landed.frames)["v"]


def _expected(case: Case, landed: Landed) -> list[str]:
    wanted = [
        landed.ticks[place] if value is ASK else value for place, value in enumerate(case.values.values())
    ]
    return [repr(value) for value in wanted] + ([] if "DEFAULT" in case.values else ["None"])


@pytest.mark.parametrize("declared", CASES)
def test_both_ways_give_the_value_that_postgres_holds(declared: str, landed: dict[str, Landed]) -> None:
    case, there = CASES[declared], landed[declared]
    expected = _expected(case, there)
    copied = decode_copy("public.t", [ID, there.column], there.copied)["v"]
    streamed = _streamed(there)

    assert plain(copied) == expected
    lost = ["None" if is_lost(there.column, text) else text for text in expected]
    assert plain(streamed) == lost
    assert streamed.type == copied.type


@pytest.mark.parametrize("row", list(ROW.finditer(PAGE)), ids=lambda row: row["type"])
def test_the_page_says_what_happens(row: re.Match[str], landed: dict[str, Landed]) -> None:
    there = landed[row["type"]]
    first = json.loads(there.frames[0])["columns"][1]["value"]
    kind = "boolean" if isinstance(first, bool) else "string" if isinstance(first, str) else "number"

    assert kind == row["json"]
    assert there.column.lake.spark == row["lake"]
    assert str(there.column.lake.arrow) == row["arrow"]


def test_the_page_has_a_row_for_each_case_and_no_other() -> None:
    rows = [row["type"] for row in ROW.finditer(PAGE)]
    assert sorted(rows) == sorted(CASES)
    table = PAGE.partition("## The table")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| `", table, re.M)) == len(rows)


def test_nan_in_a_decimal_column_is_an_error_that_shows_no_row(
    postgres: PrivatePostgres, database: str
) -> None:
    postgres.psql(
        "CREATE TABLE p (id integer, v numeric(12,2)); INSERT INTO p VALUES (4711, 1234.5), (1, 'NaN')",
        database,
    )
    with (
        psycopg.connect(postgres.conninfo(database)) as session,
        session.cursor().copy("COPY p TO STDOUT") as rows,
    ):
        data = b"".join(bytes(block) for block in rows)

    with pytest.raises(DecodeError, match=r"public\.p .* column v \(numeric\(12,2\)\)") as refused:
        decode_copy("public.p", [ID, Column("v", "numeric(12,2)")], data)
    assert "1234" not in str(refused.value)
    assert "4711" not in str(refused.value)


def test_what_real_frames_leave_out(postgres: PrivatePostgres, database: str) -> None:
    """Unchanged TOAST, unless identity has it, and a dropped column; and a key change is two changes."""
    big = "z" * 5000
    columns = [ID, Column("big", "text"), Column("c", "text"), Column("twice", "integer")]
    with psycopg.connect(postgres.conninfo(database, options=PINNED_SESSION), autocommit=True) as session:
        _create_slot(session)
        for statement in (
            "CREATE TABLE k (id int PRIMARY KEY, big text, c text)",
            "ALTER TABLE k ADD twice int GENERATED ALWAYS AS (id * 2) STORED",
            "ALTER TABLE k ALTER big SET STORAGE EXTERNAL",
            f"INSERT INTO k VALUES (1, '{big}', 'x')",
            "UPDATE k SET c = NULL",
            "UPDATE k SET id = 2",
            "ALTER TABLE k REPLICA IDENTITY FULL",
            "UPDATE k SET id = 3",
            "ALTER TABLE k DROP COLUMN c",
            "UPDATE k SET big = NULL",
            "DELETE FROM k",
            "TRUNCATE k",
        ):
            session.execute(statement.encode())
        frames = _frames(session)
    batch = ChangeDecoder("public.k", columns, ["id"], plugin="wal2json").decode(
        [(1, 2 * at) for at in range(len(frames))], frames
    )

    got = [tuple(row.values())[1:] for row in batch.to_pylist()]
    assert got == [
        (0, "insert", None, None, 1, big, "x", 2),
        (2, "update", ["big"], None, 1, None, None, 2),
        (4, "delete", None, None, 1, None, None, None),
        (5, "insert", ["big"], {"id": 1}, 2, None, None, 4),
        (6, "delete", None, None, 2, None, None, None),
        (7, "insert", None, {"id": 2}, 3, big, None, 6),
        (8, "update", ["c"], None, 3, None, None, 6),
        (10, "delete", None, None, 3, None, None, None),
        (12, "truncate", None, None, None, None, None, None),
    ]
