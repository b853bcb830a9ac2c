"""How old is the first manifest that a reader still needs, and how old is the newest? Blocks.

Nothing is read in full: a stream that has manifests among its changes may be large.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from penstock.kinesis.read.manifest_log import Arrived, ManifestLog

LOOK_BACK: Final = (timedelta(minutes=2), timedelta(minutes=30), timedelta(hours=6))
"""So far back a manifest is looked for before everything is read; clocks may differ by a minute."""
RECENT: Final = LOOK_BACK[1]
"""What is older is not the newest of anything that runs: at rest one comes every ten seconds."""
_HALVES: Final = 4


def first_needed(log: ManifestLog, position: str, now: datetime) -> Arrived | None:
    """A manifest that begins at or below a position, no earlier than needed; None if there are none at all.

    It came at most a sixteenth of the time that was looked back too early, or two minutes. If none begins so
    low, it is the first that is left.
    """
    late = now
    found: Arrived | None = None
    for back in (*LOOK_BACK, None):
        found = next(log.arrivals(None) if back is None else log.arrivals_since(now - back), None)
        if found is not None and found.manifest.since <= position:
            break
        if back is not None:
            late = now - back
    if found is None or found.manifest.since > position:
        return found
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


def newest(log: ManifestLog, now: datetime) -> Arrived | None:
    """The one that reaches furthest of the last minutes, with the time of the last; None: there are none."""
    for back in (LOOK_BACK[0], RECENT):
        arrived = list(log.arrivals_since(now - back))
        if arrived:
            furthest = max(arrived, key=lambda each: each.manifest.resolved)
            return furthest._replace(at=max(each.at for each in arrived))
    return None
