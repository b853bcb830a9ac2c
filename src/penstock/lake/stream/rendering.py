"""What a shape makes of a change: the record that goes into its stream, or none. Pure.

A record is what wal2json writes, with the shape's columns only. A row that enters the filter is an insert,
and one that leaves it a delete, whatever was done to the row itself:

| change | old row inside | new row inside | record |
|---|---|---|---|
| insert | | yes | insert |
| update | yes | yes | update |
| update | no | yes | insert, of the whole row |
| update | yes | no | delete |
| delete | yes | | delete |
| truncate | | | truncate |

All others are none. An insert of the whole row takes long values that the update didn't carry from the old
row, which is whole too: a filter needs REPLICA IDENTITY FULL.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

_Cell = dict[str, msgspec.Raw]

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_cells: Final = msgspec.json.Decoder(list[_Cell]).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode

_ACTION: Final = "action"
_NEW: Final = "columns"
_OLD: Final = "identity"
_KEY: Final = "pk"
_INSERT: Final = "I"
_UPDATE: Final = "U"
_DELETE: Final = "D"
NO_ROW: Final = b'{"action":"T"}'
"""A change without a row, for a decoder that wants one change a row."""


class Sides:
    """The old and the new row of a change, each as the insert of it; NO_ROW if there is none."""

    def __init__(self, payload: bytes) -> None:
        members = _decode(payload)
        old, new = _cells(members, _OLD), _cells(members, _NEW)
        self.old = _insert_of(old) if old else NO_ROW
        self.new = _insert_of(_completed(new, old)) if new else NO_ROW


def render(
    payload: bytes, *, old_inside: bool, new_inside: bool, kept: Collection[str] | None
) -> bytes | None:
    """The record; None if the shape has nothing to say. `kept`: the shape's columns, None for all."""
    members = _decode(payload)
    was = _decode_text(members[_ACTION])
    action = _action(was, old_inside=old_inside, new_inside=new_inside)
    if action is None:
        return None
    if action == was and kept is None:
        return payload
    members[_ACTION] = _raw(action)
    if was == _UPDATE and action == _INSERT:
        members[_NEW] = _raw(_completed(_cells(members, _NEW), _cells(members, _OLD)))
        del members[_OLD]
    elif was == _UPDATE and action == _DELETE:
        del members[_NEW]
    if kept is not None:
        for member in {_NEW, _OLD, _KEY} & members.keys():
            members[member] = _raw([cell for cell in _cells(members, member) if _name(cell) in kept])
    return _encode(members)


def _action(was: str, *, old_inside: bool, new_inside: bool) -> str | None:
    match was:
        case "I":
            return _INSERT if new_inside else None
        case "D":
            return _DELETE if old_inside else None
        case "U" if new_inside:
            return _UPDATE if old_inside else _INSERT
        case "U":
            return _DELETE if old_inside else None
        case _:
            return was


def _cells(members: dict[str, msgspec.Raw], member: str) -> list[_Cell]:
    return _decode_cells(members[member]) if member in members else []


def _completed(new: list[_Cell], old: list[_Cell]) -> list[_Cell]:
    there = {_name(cell) for cell in new}
    return new + [cell for cell in old if _name(cell) not in there]


def _insert_of(cells: list[_Cell]) -> bytes:
    return _encode({_ACTION: _raw(_INSERT), _NEW: _raw(cells)})


def _name(cell: _Cell) -> str:
    return _decode_text(cell["name"])


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))
