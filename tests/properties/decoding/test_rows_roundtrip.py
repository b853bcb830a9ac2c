"""Random rows, written as wal2json and as COPY write them: both decode to the rows."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from penstock.decoding.rows import ChangeDecoder, Column, decode_copy

COPY_ESCAPES: Final = {
    "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
}  # fmt: skip
KEY: Final = Column("id", "bigint", not_null=True)


@dataclass(frozen=True)
class Kind:
    """A type, the values that Postgres may hold in it, and how Postgres prints them."""

    column: str
    values: st.SearchStrategy[Any]
    bare: bool = False

    def text(self, value: Any) -> str:
        match value:
            case bool():
                return "t" if value else "f"
            case float():
                return _float_text(value, single=self.column == "real")
            case Decimal():
                return f"{value:f}"
            case bytes():
                return "\\x" + value.hex()
            case datetime():
                return _timestamp_text(value)
            case date():
                return f"{value:%Y}".rjust(4, "0") + f"{value:-%m-%d}"
        return str(value)

    def json(self, value: Any) -> str:
        if value is None or _is_lost(value):
            return "null"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, bytes):
            return f'"{value.hex()}"'
        return self.text(value) if self.bare else json.dumps(self.text(value), ensure_ascii=False)


def _is_lost(value: Any) -> bool:
    """Whether wal2json before 2.6 writes null for it."""
    return isinstance(value, float) and not math.isfinite(value)


def _float_text(value: float, *, single: bool) -> str:
    """The shortest text that is this number, as Postgres prints it since version 12."""
    if not single or not math.isfinite(value):
        return repr(value).replace("inf", "Infinity").replace("nan", "NaN")
    return next(text for digits in range(1, 10) if _single(float(text := f"{value:.{digits}g}")) == value)


def _single(value: float) -> float | None:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return None


def _timestamp_text(value: datetime) -> str:
    fraction = f".{value.microsecond:06}".rstrip("0").rstrip(".")
    text = f"{value.year:04}-{value:%m-%d %H:%M:%S}{fraction}"
    return text + "+00" if value.tzinfo else text


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda digits: Decimal(f"{digits}e-{scale}"))


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


TEXT: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
MOMENTS: Final = st.datetimes().map(lambda moment: moment.replace(fold=0))
KINDS: Final = [
    Kind("smallint", integers(16), bare=True),
    Kind("integer", integers(32), bare=True),
    Kind("bigint", integers(64), bare=True),
    Kind("oid", st.integers(0, 2**32 - 1), bare=True),
    Kind("numeric(38,10)", decimals(38, 10), bare=True),
    Kind("numeric(5,0)", decimals(5, 0), bare=True),
    Kind("numeric", decimals(60, 25).map(lambda number: f"{number:f}"), bare=True),
    Kind("real", st.floats(width=32), bare=True),
    Kind("double precision", st.floats(), bare=True),
    Kind("boolean", st.booleans(), bare=True),
    Kind("text", TEXT),
    Kind("jsonb", TEXT.map(lambda text: json.dumps({text: [text]}))),
    Kind("text[]", TEXT),
    Kind("bytea", st.binary()),
    Kind("date", st.dates()),
    Kind("timestamp(6) without time zone", MOMENTS),
    Kind("timestamp with time zone", MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Kind], list[list[Any]]]:
    """Columns of any kinds, and rows of them."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    row = st.tuples(*(st.none() | kind.values for kind in kinds)).map(list)
    return kinds, draw(st.lists(row, max_size=8))


def columns_of(kinds: list[Kind]) -> list[Column]:
    return [KEY, *(Column(f"c{at}", kind.column) for at, kind in enumerate(kinds))]


def cell(column: Column, value: str) -> str:
    return f'{{"name":"{column.name}","type":"{column.type}","value":{value}}}'


def shown(values: Sequence[Any]) -> list[str]:
    """Values so that -0.0 differs from 0.0, and NaN equals NaN; time zones are all UTC, by whatever name."""
    return [
        repr(value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo else value)
        for value in values
    ]


@given(tables())
def test_frames_give_back_the_rows(table: tuple[list[Kind], list[list[Any]]]) -> None:
    kinds, rows = table
    columns = columns_of(kinds)
    frames = [
        '{"action":"I","schema":"public","table":"t","columns":['
        + ",".join(
            [cell(KEY, str(at)), *map(cell, columns[1:], map(Kind.json, kinds, row))]
        )
        + "]}"
        for at, row in enumerate(rows)
    ]  # fmt: skip
    batch = ChangeDecoder("public.t", columns, ["id"], plugin="wal2json").decode(
        [(1, 2 * at) for at in range(len(rows))], [frame.encode() for frame in frames]
    )

    for at, column in enumerate(columns[1:]):
        arrived = [None if _is_lost(row[at]) else row[at] for row in rows]
        assert shown(batch[column.name].to_pylist()) == shown(arrived)
    assert batch["_penstock_absent"].null_count == len(rows)


@given(tables())
def test_copy_gives_back_the_rows(table: tuple[list[Kind], list[list[Any]]]) -> None:
    kinds, rows = table
    lines = [
        "\t".join([str(at), *(_copy_text(kind, value) for kind, value in zip(kinds, row, strict=True))])
        + "\n"
        for at, row in enumerate(rows)
    ]
    batch = decode_copy("public.t", columns_of(kinds), "".join(lines).encode())

    for at in range(len(kinds)):
        assert shown(batch[f"c{at}"].to_pylist()) == shown([row[at] for row in rows])


def _copy_text(kind: Kind, value: Any) -> str:
    if value is None:
        return "\\N"
    return "".join(COPY_ESCAPES.get(character, character) for character in kind.text(value))


@given(
    st.lists(
        st.tuples(
            st.sampled_from("IUDT"), st.integers(0, 3), st.integers(0, 3), st.sets(st.sampled_from("ab"))
        ),
        max_size=12,
    )
)
def test_presence_and_key_changes(changes: list[tuple[str, int, int, set[str]]]) -> None:
    """Each frame against what the rules of decoding/rows.py say about it, one by one."""
    columns = [KEY, Column("a", "integer"), Column("b", "text")]
    frames: list[str] = []
    expected: list[tuple[Any, ...]] = []
    for at, (action, old, new, carried) in enumerate(changes):
        values = {"a": cell(columns[1], "5"), "b": cell(columns[2], "null")}
        present = ",".join([cell(KEY, str(new)), *(values[name] for name in sorted(carried))])
        identity = cell(KEY, str(old))
        frames.append(
            f'{{"action":"{action}"'
            + (f',"columns":[{present}]' if action in "IU" else "")
            + (f',"identity":[{identity}]' if action in "UD" else "")
            + "}"
        )
        absent = sorted({"a", "b"} - carried) or None
        row = (new, 5 if "a" in carried else None, None, absent)
        gone = (old, None, None, None)
        match action:
            case "I":
                expected.append((2 * at, "insert", *row, None))
            case "U" if old == new:
                expected.append((2 * at, "update", *row, None))
            case "U":
                expected += [(2 * at, "delete", *gone, None), (2 * at + 1, "insert", *row, {"id": old})]
            case "D":
                expected.append((2 * at, "delete", *gone, None))
            case "T":
                expected.append((2 * at, "truncate", None, None, None, None, None))

    batch = ChangeDecoder("public.t", columns, ["id"], plugin="wal2json").decode(
        [(1, 2 * at) for at in range(len(frames))], [frame.encode() for frame in frames]
    )

    names = ["op_offset", "action", "id", "a", "b", "absent", "old_key"]
    ours = {"op_offset", "action", "absent", "old_key"}
    got = [
        [row[f"_penstock_{name}" if name in ours else name] for name in names] for row in batch.to_pylist()
    ]
    assert got == [list(row) for row in expected]
