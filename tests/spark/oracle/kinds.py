"""Kinds of columns: their types in Postgres, the values to put in, and how to ask for a value exactly.

A value is a SQL literal, so that a script can be read, printed and made smaller as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from hypothesis import strategies as st

FilterType = Literal["int", "text", "bool"]

TEXTS: Final = (
    "",
    "a",
    "b",
    "A",
    " ",
    "a ",
    "ä",
    "日本",
    "😀",
    "o'clock",
    "back\\slash",
    "new\nline",
    'say "x"',
    "NULL",
    "\\N",
    "tab\there",
    "\u2028",
    "\x01",
)
"""Texts that some layer on the way might read as something else."""

LONG_TEXT: Final = "repeat({}, {})"


def text_literal(text: str) -> str:
    """A text as Postgres reads it, with `standard_conforming_strings`."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of column."""

    name: str
    type: str
    values: st.SearchStrategy[str]
    """Literals, NULL not among them."""
    toastable: bool = True
    compared_as_text: bool = False
    """The lake holds what Postgres prints."""
    filter_type: FilterType | None = None


def _quoted(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return texts.map(text_literal)


def _long(seed: int, length: int) -> str:
    return LONG_TEXT.format(text_literal(f"{seed:04x}é"), length)


def _cents(cents: int) -> str:
    sign, (whole, part) = "-" if cents < 0 else "", divmod(abs(cents), 100)
    return f"{sign}{whole}.{part:02d}"


_SMALL: Final = st.integers(-2, 6)
_TEXT: Final = st.sampled_from(TEXTS) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6
)
_JSON: Final = st.sampled_from(
    ['{"a": 1}', '{"b":2,  "b":3}', "[]", "null", '"\\u00e4"', "1.10", '{"n": 12345678901234567890.5}']
)
_ARRAY: Final = st.sampled_from(["{}", "{1,2}", "{NULL,-1}", "{{1,2},{3,4}}", "[0:1]={7,8}"])
_TEXT_ARRAY: Final = st.sampled_from(["{}", '{"a b",NULL,"NULL"}', '{"q\\"x","b\\\\s",ä}', "{a,ä}"])
_MOMENT: Final = st.sampled_from(
    [
        "2024-02-29 12:00:00",
        "1969-12-31 23:59:59.999999",
        "0001-01-01 00:00:00",
        "9999-12-30 23:59:59.5",
        "1582-10-10 01:02:03.000004",
    ]
)

KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(
            "int",
            "integer",
            st.one_of(_SMALL, st.sampled_from([2**31 - 1, -(2**31) + 1])).map(str),
            toastable=False,
            filter_type="int",
        ),
        Kind(
            "bigint",
            "bigint",
            st.one_of(_SMALL, st.sampled_from([2**63 - 1, -(2**63) + 1, 2**53 + 1])).map(str),
            toastable=False,
            filter_type="int",
        ),
        Kind("bool", "boolean", st.sampled_from(["true", "false"]), toastable=False, filter_type="bool"),
        Kind("money", "numeric(12,2)", st.integers(-(10**12) + 1, 10**12 - 1).map(_cents), toastable=False),
        Kind(
            "numeric",
            "numeric",
            st.sampled_from(
                ["0", "0.00", "-1.50", "1e30", "12345678901234567890123456789012345678901.5", "1e-9"]
            ),
            compared_as_text=True,
        ),
        Kind(
            "double",
            "double precision",
            st.sampled_from(["0", "'-0'", "0.1", "1e300", "-2.5e-300", "1234567.125"]),
            toastable=False,
        ),
        Kind("date", "date", _quoted(_MOMENT.map(lambda moment: moment[:10])), toastable=False),
        Kind("moment", "timestamptz", _quoted(_MOMENT.map(lambda moment: moment + "+00")), toastable=False),
        Kind("local", "timestamp", _quoted(_MOMENT), toastable=False),
        Kind("text", "text", _quoted(_TEXT), filter_type="text"),
        Kind("long", "text", st.builds(_long, st.integers(0, 50), st.integers(800, 1200))),
        Kind("bytes", "bytea", st.binary(max_size=5).map(lambda value: f"'\\x{value.hex()}'")),
        Kind("json", "json", _quoted(_JSON), compared_as_text=True),
        Kind("jsonb", "jsonb", _quoted(_JSON), compared_as_text=True),
        Kind("ints", "integer[]", _quoted(_ARRAY), compared_as_text=True),
        Kind("texts", "text[]", _quoted(_TEXT_ARRAY), compared_as_text=True),
    )
}

KEY_VALUES: Final = {
    "int": tuple(str(value) for value in range(8)),
    "bigint": ("0", "1", "2", str(2**40), str(-(2**40)), "3"),
    "text": tuple(map(text_literal, ("a", "A", "ä", "", "o'k", "back\\slash", "x y"))),
}
"""Few, so that transactions meet each other's rows."""
