"""A shape in words: the same at a terminal and on the page."""

from __future__ import annotations

from typing import Final

from penstock.model.lsn import format_lsn
from penstock.model.size import format_size
from penstock.status.model import ShapeReading

ROWS_MEAN: Final = "rows written since it leads"
"""Changes applied and rows copied in this leadership. The page has it as the head of a column."""
_MINUTES_FROM_S: Final = 120
_HOURS_FROM_S: Final = 7200


def shape_sentence(shape: ShapeReading) -> str:
    """Everything but its note, in a line."""
    parts = [
        shape.state,
        f"at {shape_position(shape)}" if _has_table(shape) else shape_position(shape),
        shape_lag(shape),
        f"{shape.rows:,} {ROWS_MEAN}",
    ]
    if shape.flushed_s is not None:
        parts.append(f"last flush {_span(shape.flushed_s)} ago")
    if shape.due_s is not None:
        parts.append(f"next flush in {_span(shape.due_s)}" if round(shape.due_s) > 0 else "next flush due")
    return ", ".join(parts)


def shape_note(shape: ShapeReading) -> str:
    """Why it fails, or what it waits for; empty if there is nothing to say."""
    return shape.error or shape.waits_for or ""


def shape_lag(shape: ShapeReading) -> str:
    """How far its table is behind."""
    if shape.lag_bytes:
        return f"{format_size(shape.lag_bytes)}, {shape.lag_s:.1f} s behind"
    return "up to date" if _has_table(shape) else "nothing to add yet"


def shape_position(shape: ShapeReading) -> str:
    """What its table holds."""
    return format_lsn(shape.offset_lsn) if _has_table(shape) else "no table yet"


def _has_table(shape: ShapeReading) -> bool:
    return shape.offset_lsn >= 0


def _span(seconds: float) -> str:
    whole = round(max(0.0, seconds))
    if whole < _MINUTES_FROM_S:
        return f"{whole} s"
    return f"{whole / 60:.0f} min" if whole < _HOURS_FROM_S else f"{whole / 3600:.3g} h"
