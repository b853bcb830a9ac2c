"""What a shape makes of a change: a table of rows that enter, stay and leave."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.decoding.decoder import Cells, Unreadable
from penstock.decoding.plugins import decoder_for
from penstock.lake.stream.rendering import NO_ROW, Sides, render

DECODER = decoder_for("wal2json")


def cells(**values: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": "text", "value": value} for name, value in values.items()]


def frame(action: str, **members: Any) -> bytes:
    head = {"action": action, "lsn": "0/1", "schema": "public", "table": "t"}
    return json.dumps({**head, **members}, separators=(",", ":")).encode()


INSERT = frame("I", columns=cells(id=1, v="new", w=1))
UPDATE = frame("U", columns=cells(id=1, v="new"), identity=cells(id=1, v="old", w="long"))
DELETE = frame("D", identity=cells(id=1, v="old", w=1))
TRUNCATE = frame("T")


@pytest.mark.parametrize(
    ("payload", "old_inside", "new_inside", "action", "new", "old"),
    [
        (INSERT, False, True, "I", {"id": 1, "v": "new", "w": 1}, None),
        (INSERT, True, False, None, None, None),
        (UPDATE, True, True, "U", {"id": 1, "v": "new"}, {"id": 1, "v": "old", "w": "long"}),
        (UPDATE, False, True, "I", {"id": 1, "v": "new", "w": "long"}, None),
        (UPDATE, True, False, "D", None, {"id": 1, "v": "old", "w": "long"}),
        (UPDATE, False, False, None, None, None),
        (DELETE, True, False, "D", None, {"id": 1, "v": "old", "w": 1}),
        (DELETE, False, True, None, None, None),
        (TRUNCATE, False, False, "T", None, None),
    ],
)
@pytest.mark.parametrize("kept", [None, frozenset({"id", "v"})])
def test_rows_enter_stay_and_leave(
    payload: bytes,
    old_inside: bool,
    new_inside: bool,
    action: str | None,
    new: dict[str, Any] | None,
    old: dict[str, Any] | None,
    kept: frozenset[str] | None,
) -> None:
    record = render(DECODER, payload, old_inside=old_inside, new_inside=new_inside, kept=kept)
    if action is None:
        assert record is None
        return
    assert record is not None
    said = json.loads(record)
    assert list(said)[:4] == ["action", "lsn", "schema", "table"]
    assert said["action"] == action
    for member, expected in (("columns", new), ("identity", old)):
        if expected is None:
            assert member not in said
        else:
            values = {cell["name"]: cell["value"] for cell in said[member]}
            assert values == {name: value for name, value in expected.items() if kept is None or name in kept}


def test_a_change_that_stays_what_it_is_keeps_its_bytes() -> None:
    assert render(DECODER, UPDATE, old_inside=True, new_inside=True, kept=None) is UPDATE


def test_numbers_keep_their_digits() -> None:
    payload = b'{"action":"I","columns":[{"name":"a","type":"numeric","value":1.10000000000000000000001}]}'
    record = render(DECODER, payload, old_inside=False, new_inside=True, kept=frozenset({"a"}))
    assert record == payload


def test_both_rows_of_an_update_are_whole() -> None:
    sides = sides_of(UPDATE)
    assert said_by(sides.new) == ("I", {"id": 1, "v": "new", "w": "long"})
    assert said_by(sides.old) == ("I", {"id": 1, "v": "old", "w": "long"})
    assert (sides_of(INSERT).old, sides_of(DELETE).new, sides_of(TRUNCATE).new) == (NO_ROW, NO_ROW, NO_ROW)


@pytest.mark.parametrize("payload", [b"", b"{}", UPDATE[:-3], b'{"action":"I","columns":[{}]}'])
def test_what_is_no_change_is_unreadable(payload: bytes) -> None:
    with pytest.raises(Unreadable):
        render(DECODER, payload, old_inside=True, new_inside=True, kept=frozenset({"id"}))


def sides_of(payload: bytes) -> Sides:
    return Sides(DECODER.cells(payload))


def said_by(row: Cells) -> tuple[str, dict[str, Any]]:
    return row.action, {cell.name: json.loads(bytes(cell.value)) for cell in row.columns}
