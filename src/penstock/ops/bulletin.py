"""Bulletin: what the page is told of a status, and how little of it is told again."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.status import words
from penstock.status.model import ShapeReading, Status
from penstock.status.shape_words import shape_lag, shape_note, shape_position

BYTES_A_SECOND: Final = 4500
"""What may be spent on numbers of shapes, in the long run; gzip makes a quarter of it."""
_SAVED_S: Final = 4
_URGENT: Final = frozenset({"failing", "note"})
"""These are told at once, of however many shapes."""
_TIMES: Final = frozenset({"flushed", "due"})
_SAME_S: Final = 2

View = dict[str, Any]
Rows = dict[str, dict[str, Any]]


class Bulletin:
    """Compares each view with what was told, and says what is new. Time is an argument.

    1. `all` is what a newcomer is told: exactly what the others know by now.
    2. `news` has what changed: of facts and shapes only the entries that did, with null for one that is gone;
       None if nothing did.
    3. Whatever says that something is wrong is told at once. Numbers of shapes wait until there are bytes to
       spend on them: with many shapes they come every few seconds, all of them together.
    4. A time that differs by a second or two is the same time, measured again.
    """

    def __init__(self) -> None:
        self._told: View = {}
        self._facts: dict[str, str] = {}
        self._rows: Rows = {}
        self._bytes = 0.0
        self._filled_at = 0.0

    @property
    def all(self) -> View:
        """Everything that was told."""
        return {**self._told, "facts": self._facts, "shapes": self._rows}

    def restart(self, status: Status, at: float, now: float) -> None:
        """Nobody listened: begin with this."""
        self._told, self._facts, self._rows = view_of(status), dict(words.facts(status)), rows_of(status, at)
        self._bytes, self._filled_at = float(BYTES_A_SECOND * _SAVED_S), now

    def news(self, status: Status, at: float, now: float) -> View | None:
        """What is to be told now. `at`: Unix seconds; `now`: monotonic ones."""
        saved = self._bytes + (now - self._filled_at) * BYTES_A_SECOND
        self._bytes, self._filled_at = min(float(BYTES_A_SECOND * _SAVED_S), saved), now
        view, facts = view_of(status), dict(words.facts(status))
        news: View = _changed(self._told, view)
        if changed := _changed(self._facts, facts):
            news["facts"] = changed
        self._told, self._facts = view, facts
        if rows := self._changed_rows(rows_of(status, at)):
            news["shapes"] = rows
        return news or None

    def _changed_rows(self, rows: Rows) -> dict[str, View | None]:
        changed: dict[str, View | None] = {name: None for name in self._rows if name not in rows}
        for name, row in rows.items():
            known = self._rows.get(name)
            cells = row if known is None else _new_cells(known, row)
            if known is not None and self._bytes <= 0:
                cells = {column: cell for column, cell in cells.items() if column in _URGENT}
            if cells:
                changed[name] = cells
        for name, told in changed.items():
            if told is None:
                del self._rows[name]
            else:
                self._rows[name] = {**self._rows.get(name, {}), **told}
        self._bytes -= len(msgspec.json.encode(changed)) if changed else 0
        return changed


def view_of(status: Status) -> View:
    """A status in words, but for its facts and shapes."""
    return {
        "service": status.service,
        "phase": status.phase,
        "ready": status.ready,
        "headline": words.headline(status),
        "troubles": words.troubles(status),
        "warnings": words.warnings(status),
        "order": [fact.label for fact in words.facts(status)],
    }


def rows_of(status: Status, at: float) -> Rows:
    """A row of the page's table for each shape. Times are Unix seconds."""
    if status.shapes is None:
        return {}
    return {shape.name: _row(shape, at) for shape in status.shapes.shapes}


def _row(shape: ShapeReading, at: float) -> dict[str, Any]:
    return {
        "state": shape.state,
        "rows": f"{shape.rows:,}",
        "position": shape_position(shape),
        "lag": shape_lag(shape),
        "flushed": None if shape.flushed_s is None else round(at - shape.flushed_s),
        "due": None if shape.due_s is None else round(at + shape.due_s),
        "failing": shape.error is not None,
        "note": shape_note(shape),
    }


def _changed(before: View, after: View) -> View:
    gone = {key: None for key in before if key not in after}
    return gone | {key: value for key, value in after.items() if before.get(key) != value}


def _new_cells(known: View, row: View) -> View:
    return {
        column: cell
        for column, cell in row.items()
        if cell != known[column] and not (column in _TIMES and _is_same_time(known[column], cell))
    }


def _is_same_time(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and abs(before - after) <= _SAME_S
