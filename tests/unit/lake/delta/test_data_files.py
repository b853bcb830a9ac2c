"""What is known of data files without opening them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from penstock.lake.delta.data_files import DataFiles, data_file
from penstock.lake.ports import KeyRanges

KEY = ("tenant", "id")


def add(path: str, low: Any = None, high: Any = None, **more: Any) -> dict[str, Any]:
    stats = {"numRecords": 3, "minValues": low or {}, "maxValues": high or {}}
    return {"path": path, "size": 7, "stats": json.dumps(stats), **more}


@pytest.mark.parametrize(
    ("ranges", "touched"),
    [
        ({}, "abc"),
        ({"id": [(0, 0)]}, "c"),
        ({"id": [(5, 5)]}, "ac"),
        ({"id": [(0, 0), (12, 13)]}, "bc"),
        ({"id": [(0, 100)]}, "abc"),
        ({"id": [(5, 5)], "tenant": [("x", "x")]}, "c"),
        ({"id": [(Decimal("9.5"), Decimal("9.5"))]}, "c"),
    ],
)
def test_a_file_is_touched_if_a_key_may_be_in_it(ranges: KeyRanges, touched: str) -> None:
    files = DataFiles(
        4,
        [
            add("a", {"id": 1, "tenant": "a"}, {"id": 9, "tenant": "m"}),
            add("b", {"id": 10, "tenant": "a"}, {"id": 19, "tenant": "m"}),
            add("c"),
        ],
        KEY,
    )

    assert "".join(file.path for file in files.touched(ranges)) == touched


def test_commits_are_followed() -> None:
    files = DataFiles(4, [add("a"), add("b")], KEY)

    files.follow(5, [{"add": add("c")}, {"remove": {"path": "a"}}, {"txn": {}}, {"remove": {"path": "none"}}])

    assert files.version == 5
    assert [file.path for file in files.all()] == ["b", "c"]


@pytest.mark.parametrize("stats", [None, "{}", json.dumps({"minValues": {"id": 1}})])
def test_without_both_bounds_there_are_none(stats: str | None) -> None:
    file = data_file({"path": "a", "size": 1, "stats": stats}, KEY)

    assert (file.rows, file.bounds) == (None, {})


@pytest.mark.parametrize(("stats", "rows"), [('{"numRecords": 3}', 3), ("{}", 100), (None, 100)])
def test_a_file_whose_rows_nobody_counted_may_have_many(stats: str | None, rows: int) -> None:
    assert data_file({"path": "a", "size": 1600, "stats": stats}, KEY).most_rows == rows


def test_files_begin_at_few_values() -> None:
    adds = [add(str(low), {"id": low, "tenant": "a"}, {"id": low + 9}) for low in range(5000, 0, -10)]
    files = DataFiles(4, [*adds, add("none"), add("same", {"id": 10}, {"id": 70})], KEY)

    cuts = files.cuts()

    assert cuts["tenant"] == [], "it has no highest"
    assert cuts["id"][0] == 10
    assert cuts["id"] == sorted(set(cuts["id"]))
    assert len(cuts["id"]) == 63
    assert DataFiles(4, adds[:3], KEY).cuts()["id"] == [4980, 4990, 5000]
