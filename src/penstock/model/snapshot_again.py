"""SnapshotAgain: the word that a shape's table has to be rebuilt."""

from __future__ import annotations

from typing import NamedTuple


class SnapshotAgain(NamedTuple):
    """The shape is snapshotted, for the first time or once more, before anything is confirmed."""

    shape: str
    reason: str
