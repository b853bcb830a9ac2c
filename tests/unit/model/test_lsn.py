from __future__ import annotations

import pytest

from penstock.model.lsn import format_lsn, parse_lsn

PAIRS = [
    ("0/0", 0),
    ("0/1", 1),
    ("0/FFFFFFFF", 2**32 - 1),
    ("1/0", 2**32),
    ("16/B374D848", 0x16_B374_D848),
    ("7FFFFFFF/FFFFFFFF", 2**63 - 1),
    ("FFFFFFFF/FFFFFFFF", 2**64 - 1),
]


@pytest.mark.parametrize(("text", "lsn"), PAIRS)
def test_text_and_number_are_the_same_position(text: str, lsn: int) -> None:
    assert parse_lsn(text) == lsn
    assert format_lsn(lsn) == text


@pytest.mark.parametrize(
    ("text", "lsn"), [("16/b374d848", 0x16_B374_D848), ("00000016/00000001", 0x16_0000_0001)]
)
def test_other_spellings_that_postgres_accepts(text: str, lsn: int) -> None:
    assert parse_lsn(text) == lsn


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "0",
        "0/",
        "/0",
        "0/0/0",
        "G/0",
        "0x1/0",
        "-1/0",
        "+1/0",
        "1_0/0",
        " 0/0",
        "0/0 ",
        "0/0\n",
        "123456789/0",
        "0/123456789",
        "٣/0",
    ],
)
def test_anything_else_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN") as refusal:
        parse_lsn(text)
    assert repr(text) in str(refusal.value)
