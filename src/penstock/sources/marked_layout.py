"""The columns of tables in a marked stream, by their newest changes."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.decoding.decoder import Cell, Cells, Unreadable
from penstock.decoding.plugins import STREAM_PLUGIN, decoder_for
from penstock.model.log_offset import LogOffset
from penstock.model.relation import Relation
from penstock.model.stream_position import StreamPosition
from penstock.sources.log_source import Layout

ENOUGH: Final = 5
"""So many of a table's newest manifests tell its columns, if there is an insert or an update among them."""
MOST_LOOKED_AT: Final = 100
"""So many are looked at in search of one."""


class _Newest(Layout):
    """A layout whose columns have the types of the newest frame that has them.

    What a query still has to read may be of the former type: it says so when it comes to that.
    """

    def _retype(self, relation: Relation, tx_offset: int, cell: Cell) -> None:
        self._types[cell.name] = cell.type


class _Seen(NamedTuple):
    position: str
    relation: Relation
    frame: Cells


_Signature = tuple[tuple[tuple[str, str], ...], ...]


class SeenFrames:
    """Frames of one or more tables, taken in any order: the newest one of each kind is kept. Pure.

    A frame that can't be read tells nothing. Whether a query has to read it isn't known here.
    """

    def __init__(self) -> None:
        self._cells = decoder_for(STREAM_PLUGIN).cells
        self._seen: dict[_Signature, _Seen] = {}
        self.has_rows = False
        """Whether one was an insert or an update. A delete has no more than the replica identity."""

    def take(self, relation: Relation, position: str, payload: bytes) -> None:
        """Look at a frame."""
        try:
            frame = self._cells(payload)
        except Unreadable:
            return
        self.has_rows = self.has_rows or bool(frame.columns)
        signature = (
            tuple((cell.name, cell.type) for cell in frame.columns),
            tuple((cell.name, cell.type) for cell in frame.identity),
            tuple((column.name, "") for column in frame.pk),
        )
        known = self._seen.get(signature)
        if known is None or known.position < position:
            self._seen[signature] = _Seen(position, relation, frame)

    def layout(self) -> Layout:
        """What they tell together."""
        layout = _Newest(self._cells)
        for position, relation, frame in sorted(self._seen.values(), key=lambda seen: seen.position):
            at = StreamPosition.parse(position)
            layout.learn(relation, LogOffset(at.commit_lsn, at.operation - 1), frame)
        return layout
