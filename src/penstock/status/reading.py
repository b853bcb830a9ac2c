"""Readings: what a leadership is doing, in numbers, at one moment."""

from __future__ import annotations

from typing import NamedTuple


class ShapeReading(NamedTuple):
    """One shape."""

    name: str
    state: str
    offset_lsn: int
    """What its table holds."""
    lag_bytes: int
    """WAL between what its table holds and what was received; 0 if it has everything."""
    lag_s: float
    """Age of the oldest transaction that is not in its table."""
    rows: int
    """Changes applied and rows copied in this leadership."""
    error: str | None
    """The sentence of its last attempt, if that failed."""


class ShapesReading(NamedTuple):
    """A leadership of `penstock shapes`."""

    line_age_s: float
    """Since the last sign of leadership."""
    received_lsn: int
    frontier_lsn: int
    transactions: int
    """Read in this leadership."""
    changes: int
    """Put into the log by this leadership."""
    log_bytes: int
    log_is_full: bool
    """Whether reading waits for room."""
    shapes: list[ShapeReading]
