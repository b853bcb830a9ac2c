"""What a shape makes of a change: the record that goes into its stream, or none. Pure.

A record has the shape's columns only. A row that enters the filter is an insert, and one that leaves it a
delete, whatever was done to the row itself:

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

from penstock.decoding.decoder import Cells, Decoder, Unreadable, whole_row
from penstock.model.change import Action

# By themselves: Python looks a member of an Enum up by a function, and this is asked for every change.
_INSERT: Final = Action.INSERT
_UPDATE: Final = Action.UPDATE
_DELETE: Final = Action.DELETE
NO_ROW: Final = Cells(Action.TRUNCATE.value)
"""A change without a row, where one change a row is wanted."""


class Sides:
    """The old and the new row of a change, each as the insert of it; NO_ROW if there is none."""

    def __init__(self, cells: Cells) -> None:
        self.old = Cells(Action.INSERT.value, cells.identity) if cells.identity else NO_ROW
        self.new = Cells(Action.INSERT.value, whole_row(cells)) if cells.columns else NO_ROW


def render(
    decoder: Decoder, payload: bytes, *, old_inside: bool, new_inside: bool, kept: Collection[str] | None
) -> bytes | None:
    """The record; None if the shape has nothing to say. `kept`: the shape's columns, None for all.

    Unreadable if it is no change of a table.
    """
    was = decoder.action(payload)
    if was is None:
        raise Unreadable("it says nothing of what was done")
    action = _action(was, old_inside=old_inside, new_inside=new_inside)
    return None if action is None else decoder.stream_record(payload, action, kept)


def _action(was: Action, *, old_inside: bool, new_inside: bool) -> Action | None:
    if was is _INSERT:
        return was if new_inside else None
    if was is _DELETE:
        return was if old_inside else None
    if was is not _UPDATE:
        return was
    if new_inside:
        return was if old_inside else _INSERT
    return _DELETE if old_inside else None
