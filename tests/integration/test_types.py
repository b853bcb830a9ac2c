"""Every row of docs/types.md, through the stream and through COPY, on a real Postgres."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest

from penstock.local.postgres import PrivatePostgres
from penstock.log_offset import LogOffset
from penstock.postgres.connection import PINNED_SESSION
from penstock.spark.decode import ChangeDecoder, Column, DecodeError, decode_copy
from penstock.spark.type_map import DATE_INFINITY, TIMESTAMP_INFINITY

PAGE: Final = (Path(__file__).parents[2] / "docs" / "types.md").read_text()
ROW: Final = re.compile(
    r"^\| `(?P<type>[^`]+)`.*? \| (?P<json>\w+) \| `(?P<lake>[^`]+)` \| `(?P<arrow>[^`]+)` \|", re.MULTILINE
)
ID: Final = Column("id", "integer", not_null=True)
ASK: Final = object()
"""An expected value that Postgres itself computes, with the case's `ticks`."""
LOST: Final = {"NaN", "Infinity", "-Infinity"}
"""What wal2json writes as null, unless it is in a domain or told to write numbers as strings (2.6)."""
DAYS: Final = "v - date '1970-01-01'"
MICROSECONDS: Final = "(extract(epoch FROM v) * 1000000)::bigint"
SETUP: Final = """
    CREATE TYPE mood AS ENUM ('sad', 'o''k "so" \\ so', 'größer');
    CREATE TYPE pair AS (a integer, b text);
    CREATE DOMAIN quantity AS integer CHECK (value > 0);
    CREATE DOMAIN small_quantity AS quantity CHECK (value < 100);
    CREATE DOMAIN price AS numeric(12,2);
    CREATE DOMAIN ratio AS double precision;
    CREATE DOMAIN flag AS boolean;
    CREATE DOMAIN digest AS bytea;
    CREATE DOMAIN moment AS timestamp with time zone;
    CREATE DOMAIN tags AS text[];
"""
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
class Case:
    """Values of a type: what is inserted (SQL), and what is expected in the lake."""

    values: dict[str, Any] = field(default_factory=dict)
    ticks: str = ""


def same(*texts: str) -> Case:
    """Text that the lake holds as it was put in."""
    return Case({_literal(text): text for text in texts})


def _literal(text: str) -> str:
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


NASTY: Final = "a\"b'c\\d\ne\tf\rg\bh\x0bi\x0cj\x01k, {l} é 漢 😀 \\N \\. null"
CASES: Final[dict[str, Case]] = {
    "smallint": Case({"-32768": -32768, "32767": 32767, "0": 0}),
    "integer": Case({"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    "bigint": Case({"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    "numeric(12,2)": Case(
        {"9999999999.99": Decimal("9999999999.99"), "-0.01": Decimal("-0.01"), "5": Decimal("5.00")}
    ),
    "numeric(38,10)": Case(
        {
            "1234567890123456789012345678.0123456789": Decimal("1234567890123456789012345678.0123456789"),
            "-9999999999999999999999999999.9999999999": Decimal("-9999999999999999999999999999.9999999999"),
        }
    ),
    "numeric(5,-2)": Case({"123456": Decimal(123500), "-9999900": Decimal(-9999900)}),
    "numeric(3,5)": Case({"0.00123": Decimal("0.00123"), "-0.00999": Decimal("-0.00999")}),
    "numeric(50,2)": Case({f"{'9' * 48}.25": f"{'9' * 48}.25", "1": "1.00"}),
    "numeric": Case(
        {
            "1.50": "1.50",
            "0.000": "0.000",
            "-12345678901234567890.123456789012345678901234567890":
                "-12345678901234567890.123456789012345678901234567890",
            "'1e-30'": "0." + "0" * 29 + "1",
            "'1e40'": "1" + "0" * 40,
            "'NaN'": "NaN",
            "'Infinity'": "Infinity",
            "'-Infinity'": "-Infinity",
        }
    ),
    "real": Case(
        {
            "'0.1'": 0.10000000149011612,
            "'-0'": -0.0,
            "'1e-45'": 2.0**-149,
            "'3.4028235e38'": 3.4028234663852886e38,
            "'16777217'": 16777216.0,
            "'NaN'": float("nan"),
            "'Infinity'": float("inf"),
            "'-Infinity'": float("-inf"),
        }
    ),
    "double precision": Case(
        {
            "'0.1'": 0.1,
            "'-0'": -0.0,
            "'5e-324'": 5e-324,
            "'-1.7976931348623157e308'": -1.7976931348623157e308,
            "'9007199254740993'": 9007199254740992.0,
            "'NaN'": float("nan"),
            "'Infinity'": float("inf"),
            "'-Infinity'": float("-inf"),
        }
    ),
    "boolean": Case({"true": True, "false": False}),
    "text": same("", "null", "NaN", "\\N", " \t ", NASTY, "x" * 10_000),
    "character varying(20)": same("", "trailing   ", "größe"),
    "character(5)": Case({"'ab'": "ab   ", "''": "     ", "'größe'": "größe"}),
    "bpchar": same("ab", "ab  "),
    "\"char\"": same("a", "\\"),
    "name": same("a_name", "with \"quotes\""),
    "bytea": Case({"'\\x'": b"", "'\\xdeadbeef'": b"\xde\xad\xbe\xef", "'\\x005c0a22'": b'\x00\\\n"'}),
    "date": Case(
        {
            "'2026-02-28'": 20512,
            "'0001-01-01'": ASK,
            "'9999-12-31'": ASK,
            "'10000-01-01'": ASK,
            "'5874897-12-31'": ASK,
            "'0001-12-31 BC'": ASK,
            "'0044-03-15 BC'": ASK,
            "'0401-02-28 BC'": ASK,
            "'4714-11-24 BC'": ASK,
            "'infinity'": DATE_INFINITY,
            "'-infinity'": -DATE_INFINITY - 1,
        },
        DAYS,
    ),
    "time without time zone": same("00:00:00", "23:59:59.999999", "24:00:00", "01:02:03.5"),
    "time(3) without time zone": Case({"'01:02:03.4567'": "01:02:03.457"}),
    "time with time zone": same("24:00:00+15:59", "01:02:03.5-08:00:30", "00:00:00+00"),
    "timestamp without time zone": Case(
        {
            "'2026-01-02 03:04:05.000006'": 1767323045000006,
            "'1969-12-31 23:59:59.999999'": -1,
            "'0001-01-01 00:00:00'": ASK,
            "'9999-12-31 23:59:59.999999'": ASK,
            "'294246-12-31 23:59:59.999999'": ASK,
            "'0044-03-15 01:02:03.5 BC'": ASK,
            "'4714-11-24 00:00:00 BC'": ASK,
            "'infinity'": TIMESTAMP_INFINITY,
            "'-infinity'": -TIMESTAMP_INFINITY - 1,
        },
        MICROSECONDS,
    ),
    "timestamp(3) without time zone": Case({"'2026-01-02 03:04:05.6789'": 1767323045679000}),
    "timestamp with time zone": Case(
        {
            "'2026-01-02 08:34:05+05:30'": 1767323045000000,
            "'1500-01-01 00:00:00+00'": ASK,
            "'0044-03-15 01:02:03.5+00 BC'": ASK,
            "'20000-01-01 00:00:00.25+00'": ASK,
            "'infinity'": TIMESTAMP_INFINITY,
            "'-infinity'": -TIMESTAMP_INFINITY - 1,
        },
        MICROSECONDS,
    ),
    "interval": Case(
        {
            "'1 year -2 mons 3 days -04:05:06.789'": "10 mons 3 days -04:05:06.789",
            "'0'": "00:00:00",
            "'-178000000 years'": "-178000000 years",
        }
    ),
    "interval day to second(3)": Case({"'1 day 2.5555 sec'": "1 day 00:00:02.556"}),
    "uuid": Case({"'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}),
    "json": same('{"a" :  1.50, "a":"x\\u00e9\\n"}', "null", '"é"'),
    "jsonb": Case(
        {
            """'{"b":1.50,"a":null}'""": '{"a": null, "b": 1.50}',
            "'null'": "null",
            """'"q\\"q\\\\"'""": '"q\\"q\\\\"',
            "'123456789012345678901234567890.10'": "123456789012345678901234567890.10",
        }
    ),
    "integer[]": same("{}", "{1,2,NULL}", "[0:1]={1,2}", "{{1,2},{3,4}}"),
    "text[]": Case(
        {
            """ARRAY['a"b', 'c,d', NULL, 'NULL', '', '\\', E'n\\nl', '{}']""":
                '{"a\\"b","c,d",NULL,"NULL","","\\\\","n\nl","{}"}',
            "ARRAY[ARRAY['é', NULL], ARRAY['😀', 'x']]": "{{é,NULL},{😀,x}}",
        }
    ),
    "numeric(12,2)[]": Case({"'{1.5,NaN}'": "{1.50,NaN}"}),
    "timestamp with time zone[]": Case(
        {"'{2026-01-01 01:00+01,infinity}'": '{"2026-01-01 00:00:00+00",infinity}'}
    ),
    "mood": same("sad", "o'k \"so\" \\ so", "größer"),
    "mood[]": Case({"ARRAY['sad', NULL]::mood[]": "{sad,NULL}"}),
    "pair": Case({"ROW(1, 'x,\"y\\')": '(1,"x,""y\\\\")', "ROW(NULL, NULL)": "(,)"}),
    "quantity": Case({"5": 5}),
    "small_quantity": Case({"99": 99}),
    "price": Case({"1.5": Decimal("1.50"), "-0.01": Decimal("-0.01")}),
    "ratio": Case({"0.1": 0.1, "'NaN'": float("nan"), "'-Infinity'": float("-inf")}),
    "flag": Case({"true": True, "false": False}),
    "digest": Case({"'\\xdead'": b"\xde\xad", "''": b""}),
    "moment": Case({"'2026-01-02 08:34:05+05:30'": ASK, "'infinity'": TIMESTAMP_INFINITY}, MICROSECONDS),
    "tags": same("{a,NULL}"),
    "bigint GENERATED ALWAYS AS (id * 1000000000000) STORED": Case({"DEFAULT": 1_000_000_000_000}),
    "int4range": Case({"'[1,5]'": "[1,6)", "'empty'": "empty", "'(,)'": "(,)"}),
    "int8range": same("[-9223372036854775808,9223372036854775807)"),
    "numrange": same("[1.50,2]", "(,NaN]"),
    "daterange": same("[2026-01-01,infinity)"),
    "tsrange": Case({"'[2026-01-01,)'": '["2026-01-01 00:00:00",)'}),
    "tstzrange": Case({"'[2026-01-01,infinity)'": '["2026-01-01 00:00:00+00",infinity)'}),
    "int4multirange": same("{}", "{[1,3),[5,8)}"),
    "inet": same("10.0.0.1/8", "10.0.0.1", "::1"),
    "cidr": same("10.0.0.0/8", "2001:db8::/32"),
    "macaddr": same("08:00:2b:01:02:03"),
    "macaddr8": same("08:00:2b:01:02:03:04:05"),
    "money": same("$1,234.50", "-$92,233,720,368,547,758.08"),
    "bit(3)": same("101"),
    "bit varying(5)": same("", "10101"),
    "xml": same('<a b="c">x &amp; é</a>'),
    "tsvector": same("'a':1A 'cat':3 'o''k':2"),
    "tsquery": same("'a' & !'b'"),
    "point": same("(1,-0)", "(0.1,1e+300)"),
    "line": same("{1,2,3}"),
    "lseg": same("[(0,0),(1,1)]"),
    "box": Case({"'(0,0),(1,1)'": "(1,1),(0,0)"}),
    "path": same("[(0,0),(1,1)]", "((0,0),(1,1))"),
    "polygon": same("((0,0),(1,1),(2,0))"),
    "circle": same("<(0,0),1>"),
    "oid": Case({"4294967295": 4294967295, "0": 0}),
    "regclass": same("pg_class"),
    "pg_lsn": same("16/B374D848"),
    "xid8": same("18446744073709551615"),
    "tid": same("(0,1)"),
    "jsonpath": same('$."a"[*]'),
    "pg_snapshot": same("10:20:10,14"),
}  # fmt: skip


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
    decoder = ChangeDecoder("public.t", [ID, landed.column], ["id"])
    offsets = [LogOffset(100, 2 * at) for at in range(len(landed.frames))]
    return decoder.decode(offsets, landed.frames)["v"]


def _plain(values: pa.Array) -> list[str]:
    """Values as text that tells -0.0 from 0.0 and NaN from null; dates and timestamps as their counts."""
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    return [repr(value) for value in values.to_pylist()]


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

    assert _plain(copied) == expected
    lost = ["None" if _is_lost(there.column, text) else text for text in expected]
    assert _plain(streamed) == lost
    assert streamed.type == copied.type


def _is_lost(column: Column, expected: str) -> bool:
    nan = expected.strip("'") in LOST or expected in ("nan", "inf", "-inf")
    return nan and column.lake.null_may_be_nan and column.base == column.type


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


def test_nan_in_a_decimal_column_is_an_error_that_hides_the_value(
    postgres: PrivatePostgres, database: str
) -> None:
    postgres.psql("CREATE TABLE p (id integer, v numeric(12,2)); INSERT INTO p VALUES (1, 'NaN')", database)
    with (
        psycopg.connect(postgres.conninfo(database)) as session,
        session.cursor().copy("COPY p TO STDOUT") as rows,
    ):
        data = b"".join(bytes(block) for block in rows)

    with pytest.raises(DecodeError, match=r"public\.p .* column v \(numeric\(12,2\)\)") as refused:
        decode_copy("public.p", [ID, Column("v", "numeric(12,2)")], data)
    assert "NaN" not in str(refused.value)


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
    batch = ChangeDecoder("public.k", columns, ["id"]).decode(
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
