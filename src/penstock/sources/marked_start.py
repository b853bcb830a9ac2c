"""Where a query over a marked stream begins that names a position: behind a gap, or at a snapshot's LSN."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from penstock.kinesis.marked.manifest import Manifest
from penstock.kinesis.read.chain import denies
from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.manifest_ages import LOOK_BACK
from penstock.kinesis.read.manifest_log import ManifestLog, Place
from penstock.kinesis.read.marked_plan import MarkedOffset
from penstock.kinesis.read.newest import Newest
from penstock.model.lsn import parse_lsn
from penstock.model.stream_position import History, StreamPosition


def parse_start(text: str) -> str:
    """A position or an LSN, as it is kept; ValueError if it is neither.

    Of a change's position the transaction counts: batches hold whole ones.
    """
    if "/" in text:
        parse_lsn(text)
        return text.upper()
    return str(StreamPosition.parse(text.upper())._replace(operation=0))


def newest_of(log: ManifestLog) -> Newest:
    """Where the chain ends, found without reading all of it."""
    found = Newest()
    for part in log.backwards():
        found.take(part)
        if found.is_certain:
            break
    return found


class _Holding(NamedTuple):
    """The first manifest that ends behind a position."""

    behind: Place | None
    """The place of the one before it."""
    place: Place
    manifest: Manifest


def begin_at(log: ManifestLog, start: str) -> MarkedOffset | None:
    """The offset of a start that `parse_start` has read; None if no manifest is there yet. Blocks.

    1. An LSN is one of the history of the newest manifest. A position that never happened there is refused.
    2. Manifests of other systems, and of what was lost in a failover, are passed over: that is what this is
       for. So are those that end before the position.
    3. The first of the rest must hold the position. Whoever begins elsewhere would leave changes out, so it
       is refused, with the next position that there is.
    4. A position beyond all manifests is waited for: what comes is read from there on.
    5. It is looked for in the last minutes, then hours, then everywhere. A manifest that was carried out late
       may hold it, and those that follow stand further back: so two looks must agree, or the last one tells.
    """
    newest = newest_of(log)
    last = newest.manifest
    if last is None or newest.offset is None:
        return None
    position = _position(start, last)
    if denies(last, position):
        raise StreamReadError(
            f"option startingPosition, {start}: that never happened in the history of"
            f" {last.resolved_position.described()}. Fix: a position of that history, such as {last.since}"
        )
    if position >= last.resolved:
        return newest.offset._replace(resolved=position, begins=position)
    before: Place | None = None
    for back in (*LOOK_BACK, None):
        found = _first_behind(log, position, last, back)
        is_sure = back is None or (found is not None and found.place == before and found.behind is not None)
        if found is not None and found.manifest.since <= position and is_sure:
            return MarkedOffset(position, found.behind, last.system, position, found.behind)
        before = None if found is None else found.place
    assert found is not None, "the newest manifest ends behind the position"
    raise StreamReadError(
        f"option startingPosition, {start}: no manifest holds {StreamPosition.parse(position).described()}:"
        " it is in a gap, or retention has passed it. The next one begins at"
        f" {found.manifest.since_position.described()}. Fix: if what lies between is not needed, or is in a"
        f" new snapshot, startingPosition {found.manifest.since}"
    )


def _position(start: str, last: Manifest) -> str:
    if "/" not in start:
        return start
    left = {timeline: parse_lsn(lsn) for timeline, lsn in last.history}
    return str(History(last.resolved_position.timeline, left).boundary(parse_lsn(start)))


def _first_behind(log: ManifestLog, position: str, last: Manifest, back: timedelta | None) -> _Holding | None:
    before: Place | None = None
    for found in log.arrivals(None) if back is None else log.arrivals_within(back):
        manifest = found.manifest
        is_ours = manifest.system == last.system and not denies(last, manifest.resolved)
        if is_ours and manifest.resolved > position:
            return _Holding(before, found.place, manifest)
        before = found.place
    return None
