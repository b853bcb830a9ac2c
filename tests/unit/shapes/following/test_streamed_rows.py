from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.decoding.wal2json import Wal2Json
from penstock.shapes.following import streamed_rows
from penstock.shapes.following.streamed_rows import Digest, StreamedRows, row_hash

PK = [{"name": "id", "type": "integer"}]


def frame(action: str, row: dict[str, Any] | None = None, key: int | None = None, **more: Any) -> bytes:
    cells = [{"name": name, "type": "integer", "value": value} for name, value in (row or {}).items()]
    change = {"action": action, "schema": "public", "table": "t"}
    if cells:
        change["columns"] = cells  # type: ignore[assignment]
    if key is not None:
        change["identity"] = [{"name": "id", "type": "integer", "value": key}]  # type: ignore[assignment]
    return json.dumps({**change, "pk": PK, **more}).encode()


def insert(key: int, n: int = 0) -> bytes:
    return frame("I", {"id": key, "n": n})


def digest(*rows: tuple[int, int]) -> Digest:
    return Digest(len(rows), sum(row_hash([str(value) for value in row]) for row in rows))


def after(*frames: bytes) -> Digest | None:
    rows = StreamedRows(Wal2Json(), 1)
    for each in frames:
        rows.take(each)
    rows.committed(100)
    return rows.before(101)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([], digest()),
        ([insert(1), insert(2, 5)], digest((1, 0), (2, 5))),
        ([insert(1), frame("U", {"id": 1, "n": 3}, 1)], digest((1, 3))),
        ([insert(1, 7), frame("U", {"id": 2}, 1)], digest((2, 7))),
        ([insert(1), frame("D", key=1)], digest()),
        ([insert(1), frame("T"), insert(2)], digest((2, 0))),
        ([frame("D", key=1)], None),
        ([frame("U", {"id": 1, "n": 3}, 1)], None),
        ([insert(1), insert(1)], None),
        ([insert(1), insert(2), frame("U", {"id": 2, "n": 0}, 1)], None),
        ([b'{"action":"I","columns":[{"name":""x""}]}'], None),
        ([insert(1), frame("D", key=1, pk=[])], None),
        ([insert(1), frame("D", key=1, pk=[{"name": "n"}])], None),
        ([frame("D", key=1), frame("T"), insert(1)], digest((1, 0))),
    ],
)
def test_what_is_left_of_changes(frames: list[bytes], expected: Digest | None) -> None:
    assert after(*frames) == expected


def test_more_rows_than_are_kept_may_only_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_rows, "MOST_ROWS", 3)
    frames = [insert(number) for number in range(10)]
    assert after(*frames) == digest(*((number, 0) for number in range(10)))
    assert after(*frames, frame("D", key=1)) is None
    assert after(*frames, frame("T"), insert(1), frame("D", key=1)) == digest()


def test_what_was_shrunk_may_only_grow() -> None:
    rows = StreamedRows(Wal2Json(), 1)
    for number in range(1, 9):
        rows.take(insert(number))
        rows.committed(100 * number)
    whole = rows.kept_bytes
    rows.shrink()
    assert 0 < rows.kept_bytes < whole
    assert rows.before(101) == digest((1, 0)), "it knows all that it knew"
    rows.take(insert(9))
    rows.committed(900)
    nine = digest(*((number, 0) for number in range(1, 10)))
    assert rows.before(901) == rows.expected == nine
    while rows.kept_bytes:
        rows.shrink()
        assert rows.before(901) == nine
    assert rows.before(900) is None
    rows.take(frame("D", key=1))
    rows.committed(1000)
    assert rows.before(1001) is rows.expected is None
    rows.take(frame("T"))
    rows.take(insert(1))
    rows.take(frame("D", key=1))
    rows.committed(1100)
    assert rows.before(1101) == digest()


def test_what_it_held_before_each_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_rows, "MOST_COMMITS", 10)
    rows = StreamedRows(Wal2Json(), 1)
    for number in range(1, 16):
        rows.take(insert(number))
        rows.committed(100 * number)
    assert rows.before(1500) == digest(*((number, 0) for number in range(1, 15)))
    assert rows.before(1501) == digest(*((number, 0) for number in range(1, 16)))
    assert rows.before(601) == digest(*((number, 0) for number in range(1, 7)))
    assert rows.before(600) is None
    assert StreamedRows(Wal2Json(), 1).before(5) == Digest()


@given(st.lists(st.tuples(st.sampled_from("IUDT"), st.integers(0, 4), st.integers(0, 4), st.integers(0, 3))))
def test_it_is_a_table_or_nothing(operations: list[tuple[str, int, int, int]]) -> None:
    """Against a dictionary, by changes that a server could send."""
    table: dict[int, int] = {}
    frames = []
    for action, key, new_key, n in operations:
        if action == "T":
            table = {}
            frames.append(frame("T"))
        elif action == "I" and key not in table:
            table[key] = n
            frames.append(insert(key, n))
        elif action == "D" and key in table:
            del table[key]
            frames.append(frame("D", key=key))
        elif action == "U" and key in table and (new_key == key or new_key not in table):
            del table[key]
            table[new_key] = n
            frames.append(frame("U", {"id": new_key, "n": n}, key))
    assert after(*frames) == digest(*table.items())
