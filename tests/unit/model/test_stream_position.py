from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.log_offset import OP_INFINITY
from penstock.model.stream_position import COMMIT_OPERATION, History, StreamPosition, operation

positions = st.builds(
    StreamPosition,
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, COMMIT_OPERATION),
)


@given(positions, positions)
def test_texts_sort_as_positions_do(one: StreamPosition, other: StreamPosition) -> None:
    assert (str(one) < str(other)) == (one < other)
    assert StreamPosition.parse(str(one)) == one
    assert len(str(one)) == 38


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00000001.0000000000000010",
        "1.10.1",
        "00000001.00000000000000aB.000000000001",
        "00000001.0000000000000010.000000000001\n",
        "0000000١.0000000000000010.000000000001",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a position of a marked stream"):
        StreamPosition.parse(text)


def test_operations_are_in_order_and_never_that_of_a_boundary_unless_it_begins() -> None:
    assert [operation(op_offset) for op_offset in (-1, 0, 2, 4)] == [0, 1, 3, 5]
    assert operation(OP_INFINITY) == COMMIT_OPERATION == int("F" * 12, 16)


SWITCHED = History(4, {1: 100, 2: 100, 3: 250})
"""Timeline 2 was left where it began."""


@pytest.mark.parametrize(
    ("lsn", "of_record", "of_boundary"),
    [(0, 1, 1), (99, 1, 1), (100, 3, 1), (101, 3, 3), (249, 3, 3), (250, 4, 3), (251, 4, 4)],
)
def test_the_timeline_in_which_an_lsn_lives(lsn: int, of_record: int, of_boundary: int) -> None:
    assert SWITCHED.of_record(lsn) == of_record
    assert SWITCHED.boundary(lsn) == StreamPosition(of_boundary, lsn)


@given(st.integers(0, 400), st.integers(0, 400))
def test_a_boundary_parts_records_by_their_lsn_in_any_history(boundary: int, lsn: int) -> None:
    record = StreamPosition(SWITCHED.of_record(lsn), lsn, 1)
    assert (record < SWITCHED.boundary(boundary)) == (lsn < boundary)


@pytest.mark.parametrize(
    ("timeline", "lsn", "has"),
    [
        *[(1, 100, True), (1, 101, False), (2, 100, True), (2, 101, False), (3, 250, True), (3, 251, False)],
        *[(4, 900, True), (5, 1, False), (0, 1, False)],
    ],
)
def test_what_lies_before_a_boundary_has_happened_or_not(timeline: int, lsn: int, has: bool) -> None:
    assert SWITCHED.has(StreamPosition(timeline, lsn)) is has


@given(st.integers(0, 400))
def test_a_history_has_its_own_boundaries(lsn: int) -> None:
    assert SWITCHED.has(SWITCHED.boundary(lsn))
