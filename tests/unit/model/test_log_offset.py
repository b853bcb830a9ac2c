from __future__ import annotations

import pytest

from penstock.model.log_offset import BEFORE_ALL, FIRST, LAST_BEFORE_REAL, OP_INFINITY, LogOffset


def test_positions_are_ordered_by_transaction_then_by_operation() -> None:
    in_order = [
        BEFORE_ALL,
        FIRST,
        LogOffset(0, 8),
        LAST_BEFORE_REAL,
        LogOffset(1, 0),
        LogOffset(1, 2),
        LogOffset(1, 3),
        LogOffset(1, 4),
        LogOffset(1, OP_INFINITY),
        LogOffset(2, 0),
        LogOffset(2**32, 0),
    ]

    assert all(earlier < later for i, earlier in enumerate(in_order) for later in in_order[i + 1 :])


def test_equal_positions_are_one_dictionary_key() -> None:
    assert {LogOffset(5, 2): "seen"}[LogOffset(5, 2)] == "seen"


def test_the_largest_operation_fits_a_signed_64_bit_column() -> None:
    assert OP_INFINITY.bit_length() == 63


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (BEFORE_ALL, "before-all"),
        (FIRST, "0/0:0"),
        (LAST_BEFORE_REAL, "0/0:inf"),
        (LogOffset(0x16_B374_D848, 14), "16/B374D848:14"),
        (LogOffset(0x16_B374_D848, OP_INFINITY), "16/B374D848:inf"),
    ],
)
def test_what_people_read(offset: LogOffset, text: str) -> None:
    assert str(offset) == text
    assert f"{offset}" == text
