"""Where the values stand that key changes lack: by change, not by value."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from penstock.decoding.rows import TX_OFFSET
from penstock.lake.fold.key_changes import COLUMN, FROM_OP, FROM_TX, IN_TABLE, find_sources, lacked_columns
from tests.spark.batches import KEY, Change, frame
from tests.spark.conftest import Started

FAR = 1000
"""So far apart are the keys of two cases, and their positions: one batch holds them all."""


class Source(NamedTuple):
    """A change of the case, by its place there; in the table: the row of that change's old key."""

    change: int
    in_table: bool = False


class Case(NamedTuple):
    changes: list[Change]
    sources: dict[tuple[int, str], Source]
    """By the change that lacks a column, and the column."""


def update(key: int, *absent: str) -> Change:
    return Change("update", key, absent=absent)


def insert(key: int, *absent: str) -> Change:
    return Change("insert", key, absent=absent)


def delete(key: int) -> Change:
    return Change("delete", key)


def move(old: int, new: int, *absent: str) -> Change:
    return Change("update", new, absent=absent, old_id=old)


CASES = {
    "a row that the batch doesn't know is in the table": Case(
        [move(1, 7, "b")], {(0, "b"): Source(0, in_table=True)}
    ),
    "changes of the key that come later don't matter": Case(
        [move(1, 7, "b"), insert(1), update(1), delete(1), update(7)], {(0, "b"): Source(0, in_table=True)}
    ),
    "each column stands in the last change that carries it": Case(
        [update(1, "b"), update(1, "a"), update(1, "a"), move(1, 7, "a", "b")],
        {(3, "a"): Source(0), (3, "b"): Source(2)},
    ),
    "an update that lacks it too leads to the table": Case(
        [update(1, "b"), move(1, 7, "a", "b")], {(1, "a"): Source(0), (1, "b"): Source(1, in_table=True)}
    ),
    "a chain leads to the table's row of its first key": Case(
        [move(key, key + 1, "a", "b") for key in range(1, 12)],
        {(place, name): Source(0, in_table=True) for place in range(11) for name in ("a", "b")},
    ),
    "a chain of which a link carries one of the columns": Case(
        [move(1, 7, "a", "b"), move(7, 8, "b"), move(8, 9, "a", "b")],
        {
            (0, "a"): Source(0, in_table=True),
            (0, "b"): Source(0, in_table=True),
            (1, "b"): Source(0, in_table=True),
            (2, "a"): Source(1),
            (2, "b"): Source(0, in_table=True),
        },
    ),
    "a chain with an update between": Case(
        [move(1, 7, "b"), update(7, "a"), move(7, 8, "b"), move(8, 9, "b")],
        {(0, "b"): Source(0, in_table=True), (2, "b"): Source(1), (3, "b"): Source(1)},
    ),
    "a key change that carries everything needs nothing and is a source": Case(
        [move(1, 7), move(7, 8, "a")], {(1, "a"): Source(0)}
    ),
    "behind an insert there is nothing in the table": Case(
        [delete(1), insert(1, "b"), move(1, 7, "a", "b")], {(2, "a"): Source(1)}
    ),
    "a chain behind an insert that lacks the column": Case(
        [insert(8, "b"), move(8, 9, "b"), move(9, 7, "b")], {}
    ),
    "away and back": Case(
        [move(1, 7, "b"), move(7, 1, "b"), move(1, 7, "b")],
        {(place, "b"): Source(0, in_table=True) for place in range(3)},
    ),
    "away and back, changed there": Case(
        [move(1, 7, "b"), update(7), move(7, 1, "b")],
        {(0, "b"): Source(0, in_table=True), (2, "b"): Source(1)},
    ),
    "two rows change places by a third key": Case(
        [move(1, 7, "b"), move(2, 1, "b"), move(7, 2, "b")],
        {
            (0, "b"): Source(0, in_table=True),
            (1, "b"): Source(1, in_table=True),
            (2, "b"): Source(0, in_table=True),
        },
    ),
    "the old key is another row's new key, which moves on": Case(
        [move(1, 7, "b"), move(2, 1, "b"), move(1, 8, "b")],
        {
            (0, "b"): Source(0, in_table=True),
            (1, "b"): Source(1, in_table=True),
            (2, "b"): Source(1, in_table=True),
        },
    ),
    "the new key was another row's, which the batch deletes": Case(
        [update(2), delete(2), move(1, 2, "b"), move(2, 7, "b")],
        {(2, "b"): Source(2, in_table=True), (3, "b"): Source(2, in_table=True)},
    ),
}


@pytest.fixture(scope="module")
def found(started: Started) -> dict[tuple[int, str], Source]:
    """The sources of all cases: by position, case after case."""
    changes = []
    for place, case in enumerate(CASES.values()):
        far = place * FAR
        changes += [
            change._replace(
                id=None if change.id is None else change.id + far,
                old_id=None if change.old_id is None else change.old_id + far,
            )
            for change in case.changes
        ]
    rows = frame(started.spark, changes)
    assert lacked_columns(rows) == ["a", "b"]
    sources = find_sources(rows, KEY, ["a", "b"]).collect()
    # A source is a key change's insert half, never the other.
    assert all(row[FROM_OP] == (changes[row[FROM_TX] - 1].old_id is not None) for row in sources)
    asked = [(row[TX_OFFSET] - 1, row[COLUMN]) for row in sources]
    assert len(asked) == len(set(asked))
    return {place: Source(row[FROM_TX] - 1, row[IN_TABLE]) for place, row in zip(asked, sources, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_a_missing_value_stands(name: str, found: dict[tuple[int, str], Source]) -> None:
    case = CASES[name]
    first = sum(len(each.changes) for each in list(CASES.values())[: list(CASES).index(name)])
    ours = range(first, first + len(case.changes))

    here = {
        (at - first, column): Source(source.change - first, source.in_table)
        for (at, column), source in found.items()
        if at in ours
    }

    assert here == case.sources
