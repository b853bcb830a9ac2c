"""The type map: what a Postgres column becomes in the lake (docs/types.md is its table).

A type goes by the name that Postgres' `format_type` prints, which is also what wal2json writes with
`include-types` and `include-typmod`: `numeric(12,2)`, `timestamp(3) without time zone`, `integer[]`. Values
come as Postgres' own text, from the stream or from COPY, and one parser a type reads both: so both give the
same value. All work on whole Arrow columns: a value costs tens of nanoseconds, and no number passes through a
wider or narrower one.

What Spark and Delta can hold exactly gets a type. The rest, and every type that isn't known here, is a
string: the text that Postgres prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

DATE_INFINITY: Final = 2**31 - 1
"""`infinity` as days since 1970, as in Postgres itself; `-infinity` is `-DATE_INFINITY - 1`."""
TIMESTAMP_INFINITY: Final = 2**63 - 1
"""`infinity` as microseconds since 1970; `-infinity` is `-TIMESTAMP_INFINITY - 1`."""

_MAX_PRECISION: Final = 38
_EPOCH: Final = date(1970, 1, 1).toordinal()
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_DAY_US: Final = 86_400_000_000
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_PRECISION = re.compile(r"^(timestamp)\(\d\)")
_MOMENT = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)"
    r"(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?)?( BC)?"
)
_COMMON_YEARS: Final = r"^\d{4}-[^B]*$"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_COPY_NULL: Final = "\\N"
_COPY_ESCAPE = re.compile(r"\\(.)")
_COPY_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

# numeric(p,s) refuses the infinities, at least up to PostgreSQL 18.
_NO_NUMBERS: Final = pa.array(["NaN", "Infinity", "-Infinity"])

_decode_strings = msgspec.json.Decoder(list[str | None]).decode

Parse = Callable[[pa.StringArray], pa.Array]


@dataclass(frozen=True)
class LakeType:
    """How a column is stored, and how its values are read from the text that Postgres prints."""

    arrow: pa.DataType
    spark: str
    """The name in Spark SQL and in a Delta schema."""
    parse: Parse
    """Texts to values. A text that does not fit raises an error; its message may show the text: hide it."""
    bare: bool = False
    """Whether wal2json writes a bare JSON number or boolean: such texts hold no comma, quote or escape."""
    null_may_be_nan: bool = False
    """Whether wal2json before 2.6 writes NaN and the infinities of this type as null."""
    lacks_nan: bool = False
    """Whether the column in Postgres may hold NaN, and this type can't."""


@lru_cache(maxsize=4096)
def lake_type(name: str) -> LakeType:
    """The lake's type for a Postgres type, by the name that `format_type` prints."""
    if name.endswith("[]"):
        return _STRING
    if name == "numeric":
        return _NUMERIC_TEXT
    if numeric := _NUMERIC.fullmatch(name):
        return _decimal(int(numeric[1]), int(numeric[2]))
    return _BY_NAME.get(_PRECISION.sub(r"\1", name), _STRING)


def is_nan(texts: pa.StringArray) -> pa.BooleanArray:
    """Which of Postgres' numbers are none."""
    return pc.is_in(texts, value_set=_NO_NUMBERS)


def json_texts(values: Sequence[msgspec.Raw], *, bare: bool) -> pa.StringArray:
    """The texts in wal2json's values. A value that isn't as `bare` says raises an error."""
    if not bare:
        return pa.array(_decode_strings(b"[" + b",".join(values) + b"]"), pa.string())
    # Domains, and `numeric-data-types-as-string`, put numbers in quotes.
    joined = b",".join(values).decode().replace('"', "").replace(" ", "")
    texts = pa.array(joined.split(",") if values else [], pa.string())
    if len(texts) != len(values):
        raise ValueError("a number with a comma")
    return pc.if_else(pc.equal(texts, "null"), None, texts) if "null" in joined else texts


def copy_texts(data: bytes, width: int) -> list[pa.StringArray]:
    """The columns of COPY's text format, unescaped. `data` is whole lines of `width` columns each."""
    if not data:
        return [pa.array([], pa.string())] * width
    names = [str(place) for place in range(width)]
    if data.startswith(_BYTE_ORDER_MARK):
        # The first value has one of its own, and a reader of CSV takes it for the file's.
        data = _BYTE_ORDER_MARK + data
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        pa_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
        pa_csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
        pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=[_COPY_NULL], strings_can_be_null=True
        ),
    )
    columns = [column.combine_chunks() for column in table.columns]
    return [_unescaped(column) for column in columns] if b"\\" in data else columns


def _unescaped(texts: pa.StringArray) -> pa.StringArray:
    escaped = pc.fill_null(pc.match_substring(texts, "\\"), False)
    if not pc.any(escaped).as_py():
        return texts
    plain = [_COPY_ESCAPE.sub(_unescape, text) for text in texts.filter(escaped).to_pylist()]
    return pc.replace_with_mask(texts, escaped, pa.array(plain, pa.string()))


def _unescape(escape: re.Match[str]) -> str:
    return _COPY_ESCAPES.get(escape[1], escape[1])


def _decimal(precision: int, scale: int) -> LakeType:
    # Postgres allows numeric(5,-2) and numeric(3,5); Spark wants 0 <= scale <= precision.
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    if precision > _MAX_PRECISION:
        return _NUMERIC_TEXT
    arrow = pa.decimal128(precision, scale)
    return LakeType(
        arrow,
        f"decimal({precision},{scale})",
        _cast_to(arrow),
        bare=True,
        null_may_be_nan=True,
        lacks_nan=True,
    )


def _cast_to(arrow: pa.DataType) -> Parse:
    def parse(texts: pa.StringArray) -> pa.Array:
        return texts.cast(arrow)

    return parse


def _as_it_is(texts: pa.StringArray) -> pa.Array:
    return texts


def _booleans(texts: pa.StringArray) -> pa.Array:
    """wal2json writes true and false, COPY and domains t and f."""
    known = pc.index_in(texts, value_set=pa.array(["f", "false", "t", "true"]))
    if known.null_count != texts.null_count:
        raise ValueError("not a boolean")
    return pc.greater_equal(known, 2)


def _bytes(texts: pa.StringArray) -> pa.Array:
    """Hex digits: after `\\x` in COPY and domains, alone in wal2json."""
    values = [None if text is None else bytes.fromhex(text.removeprefix("\\x")) for text in texts.to_pylist()]
    return pa.array(values, pa.binary())


def _moments(arrow: pa.DataType, ticks: pa.DataType, read: Callable[[str], int]) -> Parse:
    """A parser for dates or timestamps: Arrow's for the years 0001 to 9999, `read` for all else."""

    def parse(texts: pa.StringArray) -> pa.Array:
        odd = pc.invert(pc.match_substring_regex(texts, _COMMON_YEARS))
        if not pc.any(odd).as_py():
            return texts.cast(arrow)
        common = pc.if_else(odd, None, texts).cast(arrow).cast(ticks)
        rest = pa.array([read(text) for text in texts.filter(odd).to_pylist()], ticks)
        return pc.replace_with_mask(common, odd, rest).cast(arrow)

    return parse


def _days(text: str) -> int:
    """Days since 1970 of a date in the proleptic Gregorian calendar, with the infinities as sentinels."""
    if text.endswith("infinity"):
        return _infinity(text, DATE_INFINITY)
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError("not a date")
    # Python's dates know 400 years, which is all there is: the calendar repeats after them.
    year = 1 - int(found[1]) if found[12] else int(found[1])
    cycles, place = divmod(year - 1, _CYCLE_YEARS)
    in_cycle = date(place + 1, int(found[2]), int(found[3])).toordinal()
    return in_cycle - _EPOCH + cycles * _CYCLE_DAYS


def _microseconds(text: str) -> int:
    """Microseconds since 1970, UTC where the text has an offset, with the infinities as sentinels."""
    if text.endswith("infinity"):
        return _infinity(text, TIMESTAMP_INFINITY)
    found = _MOMENT.fullmatch(text)
    if found is None or found[4] is None:
        raise ValueError("not a timestamp")
    hours, minutes, seconds = int(found[4]), int(found[5]), int(found[6])
    offset = int(found[9] or 0) * 3600 + int(found[10] or 0) * 60 + int(found[11] or 0)
    of_day = hours * 3600 + minutes * 60 + seconds - (-offset if found[8] == "-" else offset)
    value = _days(text) * _DAY_US + of_day * 1_000_000 + int((found[7] or "").ljust(6, "0"))
    if not -TIMESTAMP_INFINITY - 1 < value < TIMESTAMP_INFINITY:
        raise ValueError("a timestamp beyond 64 bits of microseconds")
    return value


def _infinity(text: str, infinity: int) -> int:
    return {"infinity": infinity, "-infinity": -infinity - 1}[text]


def _timestamps(spark: str, zone: str | None) -> LakeType:
    arrow = pa.timestamp("us", zone)
    return LakeType(arrow, spark, _moments(arrow, pa.int64(), _microseconds))


_STRING: Final = LakeType(pa.string(), "string", _as_it_is)
_NUMERIC_TEXT: Final = LakeType(pa.string(), "string", _as_it_is, bare=True, null_may_be_nan=True)
_BY_NAME: Final = {
    "smallint": LakeType(pa.int16(), "smallint", _cast_to(pa.int16()), bare=True),
    "integer": LakeType(pa.int32(), "int", _cast_to(pa.int32()), bare=True),
    "bigint": LakeType(pa.int64(), "bigint", _cast_to(pa.int64()), bare=True),
    "oid": LakeType(pa.int64(), "bigint", _cast_to(pa.int64()), bare=True),
    "real": LakeType(pa.float32(), "float", _cast_to(pa.float32()), bare=True, null_may_be_nan=True),
    "double precision": LakeType(
        pa.float64(), "double", _cast_to(pa.float64()), bare=True, null_may_be_nan=True
    ),
    "boolean": LakeType(pa.bool_(), "boolean", _booleans, bare=True),
    "bytea": LakeType(pa.binary(), "binary", _bytes),
    "date": LakeType(pa.date32(), "date", _moments(pa.date32(), pa.int32(), _days)),
    "timestamp without time zone": _timestamps("timestamp_ntz", None),
    "timestamp with time zone": _timestamps("timestamp", "UTC"),
}
