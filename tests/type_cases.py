"""Values of every type of docs/types.md: what is put into Postgres, and what the lake is to hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from penstock.decoding.rows import Column
from penstock.decoding.type_map import DATE_INFINITY, TIMESTAMP_INFINITY

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


def plain(values: pa.Array | pa.ChunkedArray) -> list[str]:
    """Values as text that tells -0.0 from 0.0 and NaN from null; dates and timestamps as their counts."""
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
    return [repr(value) for value in values.to_pylist()]


def is_lost(column: Column, expected: str) -> bool:
    """Whether wal2json before 2.6 writes null for a value that is `expected`, as `plain` has it."""
    nan = expected.strip("'") in LOST or expected in ("nan", "inf", "-inf")
    return nan and column.lake.null_may_be_nan and column.base in ("", column.type)
