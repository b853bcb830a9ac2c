"""A status from outside in words: those that a process has for itself, and what else is seen."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.lsn import format_lsn
from penstock.model.size import format_size
from penstock.ops.status_command import as_text
from penstock.status.model import SlotReading, Status
from penstock.status.outside_reading import OutsideReading, TableReading


def in_words(status: Status, source: str) -> str:
    """A line for each thing that matters; `source`: who has told it."""
    if status.outside is None:
        return as_text(status, source)
    verdict = "nothing wrong is seen" if status.ready else "NOT READY"
    said = as_text(status, source).splitlines()[1:]
    return "\n".join(
        [f"{status.phase}, {verdict} ({source})", *said, *_outside_lines(status.outside, status.slot)]
    )


def _outside_lines(outside: OutsideReading, slot: SlotReading) -> Iterator[str]:
    if slot.exists:
        behind = format_size(max(0, outside.wal_lsn - slot.confirmed_lsn))
        yield (
            f"  server   WAL up to {format_lsn(outside.wal_lsn)}, {behind} above what is confirmed;"
            f" wal_status {outside.wal_status}"
        )
    if outside.manifest_lsn is not None and outside.manifest_age_s is not None:
        behind = format_size(max(0, outside.wal_lsn - outside.manifest_lsn))
        yield (
            f"  manifest up to {format_lsn(outside.manifest_lsn)}, {behind} below the server's WAL; the last"
            f" came {outside.manifest_age_s:.0f} s ago"
        )
    leader = "nobody" if outside.leader is None else outside.leader
    watched = f"; processes that watch the slot: {outside.processes}" if outside.processes else ""
    yield f"  leader   {leader}{watched}"
    if outside.note_lsn is not None:
        yield f"  note     {format_lsn(outside.note_lsn)} was about to be confirmed last"
    width = max((len(table.name) for table in outside.tables), default=0)
    for table in outside.tables:
        yield f"  shape    {table.name:<{width}}  {_table(table)}"
    for sentence in outside.unknown:
        yield f"  unknown  {sentence}"


def _table(table: TableReading) -> str:
    words = []
    if table.offset_lsn is not None:
        words.append(format_lsn(max(0, table.offset_lsn)))
    if table.awaits_snapshot is not None:
        words.append(f"awaits a snapshot: {table.awaits_snapshot}")
    elif table.lag_bytes is not None:
        words.append(f"at most {format_size(table.lag_bytes)} behind" if table.lag_bytes else "up to date")
    if table.problem is not None:
        words.append(table.problem)
    return ", ".join(words)
