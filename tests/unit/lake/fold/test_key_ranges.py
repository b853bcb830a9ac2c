"""Where the keys of a batch lie."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.fold.survey import KeyRange, few, ranges_of


@pytest.mark.parametrize(
    ("values", "most", "ranges"),
    [
        ([], 3, []),
        ([7], 3, [(7, 7)]),
        ([1, 9], 3, [(1, 1), (9, 9)]),
        ([1, 2, 3, 9], 3, [(1, 3), (9, 9)]),
        ([1, 5, 100, 104, 900], 3, [(1, 5), (100, 104), (900, 900)]),
        ([1, 5, 100, 104, 900], 1, [(1, 900)]),
        (
            [Decimal("0.5"), Decimal("9.5")],
            2,
            [(Decimal("0.5"), Decimal("0.5")), (Decimal("9.5"), Decimal("9.5"))],
        ),
        (["order-a1", "order-a2", "order-z"], 2, [("order-a1", "order-a2"), ("order-z", "order-z")]),
        (["", "a"], 2, [("", ""), ("a", "a")]),
    ],
)
def test_they_are_cut_where_they_are_farthest_apart(values: list[Any], most: int, ranges: list[Any]) -> None:
    assert [(each.low, each.high) for each in ranges_of("id", values, most)] == ranges


@given(
    st.one_of(
        st.sets(st.integers()), st.sets(st.text(max_size=5)), st.sets(st.decimals(allow_nan=False, places=2))
    ),
    st.integers(1, 5),
)
def test_each_value_is_in_one_of_few_ranges(values: set[Any], most: int) -> None:
    ranges = ranges_of("id", sorted(values), most)

    assert len(ranges) <= most
    assert all(sum(each.low <= value <= each.high for each in ranges) == 1 for value in values)


@pytest.mark.parametrize(
    ("parts", "most", "ranges"),
    [
        ([], 3, []),
        ([(1, 2), (8, 9)], 3, [(1, 2), (8, 9)]),
        ([(8, 9), (1, 2), (3, 4), (90, 95)], 2, [(1, 9), (90, 95)]),
        ([(1, 50), (2, 3), (40, 60), (90, 90)], 3, [(1, 60), (90, 90)]),
        ([("m", "n"), ("a", "b"), ("y", "z")], 2, [("a", "b"), ("m", "z")]),
    ],
)
def test_ranges_are_put_together_where_they_are_nearest(
    parts: list[Any], most: int, ranges: list[Any]
) -> None:
    found = few([KeyRange("id", low, high) for low, high in parts], most)
    assert [(each.low, each.high) for each in found] == ranges
