"""How old is the first manifest that a reader still needs, and how old is the newest? Blocks.

Nothing is read in full: a stream that has manifests among its changes may be large. All times are of the
clock of Kinesis.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from penstock.kinesis.read.manifest_log import Arrived, ManifestLog
from penstock.model.stream_position import StreamPosition

LOOK_BACK: Final = (timedelta(minutes=2), timedelta(minutes=30), timedelta(hours=6))
"""So far back a manifest is looked for before everything is read."""
RECENT: Final = timedelta(minutes=2)
"""So far back the newest is looked for, unless somebody wants more."""
_GLANCE: Final = timedelta(seconds=15)
"""At rest one comes every ten seconds."""
_HALVES: Final = 4


class Needed(NamedTuple):
    """What a reader at a position needs of a stream."""

    begins: StreamPosition
    """Where the first manifest that it needs begins: above the position, if all that did not are gone."""
    age: timedelta
    """How long ago that came; 0 if there is nothing yet that the reader doesn't have."""


def first_needed(log: ManifestLog, position: StreamPosition) -> Needed | None:
    """What a reader at a position needs, found about; None if there are no manifests at all.

    The age may be too high by a sixteenth of the time that was looked back, or by two minutes.
    """
    last = newest(log)
    if last is not None and last.manifest.resolved <= str(position):
        return Needed(last.manifest.since_position, timedelta())
    found = _first(log, str(position))
    if found is None:
        return None
    begins = found.manifest.since_position
    if last is None and begins <= position and not _has_more(log, found, str(position)):
        return Needed(begins, timedelta())
    return Needed(begins, max(timedelta(), log.now - found.at))


def newest(log: ManifestLog, back: timedelta = RECENT) -> Arrived | None:
    """The one that reaches furthest of the last seconds, with the time of the last one.

    If there is none, of the time from `back` on; None: none came since.
    """
    for each in (_GLANCE, max(_GLANCE, back)):
        arrived = list(log.arrivals_within(each))
        if arrived:
            furthest = max(arrived, key=lambda each: each.manifest.resolved)
            return furthest._replace(at=max(each.at for each in arrived))
    return None


def _first(log: ManifestLog, position: str) -> Arrived | None:
    """A manifest that begins at or below a position, not much earlier than needed; else the first of all."""
    late: datetime | None = None
    found: Arrived | None = None
    for back in (*LOOK_BACK, None):
        found = next(log.arrivals(None) if back is None else log.arrivals_within(back), None)
        if found is not None and found.manifest.since <= position:
            break
        if back is not None:
            late = log.now - back
    if found is None or found.manifest.since > position:
        return found
    late = late or log.now
    for _ in range(_HALVES):
        if late - found.at <= LOOK_BACK[0]:
            break
        middle = found.at + (late - found.at) / 2
        nearer = next(log.arrivals_since(middle), None)
        if nearer is None or nearer.manifest.since > position:
            late = middle
        else:
            found = nearer
    return found


def _has_more(log: ManifestLog, found: Arrived, position: str) -> bool:
    """Whether one of those from `found` on reaches beyond a position."""
    return any(each.manifest.resolved > position for each in log.arrivals_since(found.at))
