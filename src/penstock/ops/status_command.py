"""`penstock status` in words: a line for each thing that matters, whoever has told it.

A process is asked at its ops port, and tells what it knows. Of one that isn't asked, or is gone, Postgres,
the registry and the tables tell (outside/); the words are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http.client import HTTPException
from typing import Final
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import msgspec

from penstock import exit_codes
from penstock.errors import PenstockError
from penstock.model.lsn import format_lsn
from penstock.model.size import format_size
from penstock.status.model import ShapeReading, SlotReading, Status
from penstock.status.outside_reading import OutsideReading, TableReading
from penstock.terminal import painted

_TIMEOUT_S: Final = 5.0
# A proxy for the world knows nothing of this machine's own ports.
_DIRECT: Final = build_opener(ProxyHandler({}))


class NoAnswer(PenstockError):
    """Nobody, or somebody else, listens on the ops port."""


def ask(url: str) -> Status:
    """Ask the process at `url`. Blocks; NoAnswer if that can't be done."""
    try:
        with _DIRECT.open(f"{url}/status", timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=Status)
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise NoAnswer(f"no penstock answers at {url}: {reason}. Fix: start it, or give its --url") from error


def exit_code(status: Status) -> int:
    """For scripts."""
    return exit_codes.OK if status.ready else exit_codes.FAILED


def as_json(status: Status, *, indent: bool = True) -> str:
    """The same for programs; without `indent` on one line."""
    encoded = msgspec.json.encode(status)
    return (msgspec.json.format(encoded, indent=2) if indent else encoded).decode()


def as_text(status: Status, source: str, *, colour: bool = False) -> str:
    """A line for each thing that matters: no zeros that tell nothing, and no row values.

    `source`: who has told it.
    """
    return "\n".join(_lines(status, source, colour))


def _lines(status: Status, source: str, colour: bool) -> Iterator[str]:
    well = "ready" if status.outside is None else "nothing wrong is seen"
    verdict = (
        painted(well, "32", colour=colour) if status.ready else painted("NOT READY", "1;31", colour=colour)
    )
    yield f"{status.phase}, {verdict} ({source})"
    for reason in status.reasons:
        yield f"  {reason}"
    leading = status.capture or status.shapes
    if leading is not None:
        behind = format_size(max(0, leading.received_lsn - leading.frontier_lsn))
        yield (
            f"  frontier {format_lsn(leading.frontier_lsn)}, {behind} behind what was received"
            f" ({format_lsn(leading.received_lsn)})"
        )
    yield f"  slot     {_slot(status.slot)}"
    if status.capture is not None:
        yield f"  stream   {status.capture.records:,} records accepted, {status.capture.pending:,} pending"
    if status.shapes is not None:
        full = ", FULL: reading waits" if status.shapes.log_is_full else ""
        yield f"  log      {format_size(status.shapes.log_bytes)}{full}"
        yield from _shape_lines(status.shapes.shapes)
    if status.outside is not None:
        yield from _outside_lines(status.outside, status.slot)


def _outside_lines(outside: OutsideReading, slot: SlotReading) -> Iterator[str]:
    """What Postgres, the registry and the tables tell."""
    if slot.exists:
        behind = format_size(max(0, outside.wal_lsn - slot.confirmed_lsn))
        yield (
            f"  server   WAL up to {format_lsn(outside.wal_lsn)}, {behind} above what is confirmed;"
            f" wal_status {outside.wal_status}"
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


def _slot(slot: SlotReading) -> str:
    """The slot, in every phase: it needs watching most when nobody reads it."""
    age = f"read {slot.read_age_s:.0f} s ago"
    if not slot.exists:
        return f"unknown, {age}" if slot.exists is None else f"does not exist, {age}"
    if not slot.confirmed_lsn:
        return f"is being made, {age}"
    lost = "LOST, " if slot.is_lost else ""
    reader = "" if slot.is_active else ", and nobody reads it"
    keeps = f"keeps {format_size(slot.retained_bytes)} of WAL on the server"
    return f"{lost}confirmed {format_lsn(slot.confirmed_lsn)}, {keeps}{reader} ({age})"


def _shape_lines(shapes: Sequence[ShapeReading]) -> Iterator[str]:
    width = max((len(shape.name) for shape in shapes), default=0)
    for shape in shapes:
        lag = (
            f"{format_size(shape.lag_bytes)}, {shape.lag_s:.1f} s behind" if shape.lag_bytes else "up to date"
        )
        failing = ", FAILING" if shape.error is not None else ""
        rows = f"{shape.rows:,} rows since it leads"
        offset = format_lsn(max(0, shape.offset_lsn))
        yield f"  shape    {shape.name:<{width}}  {offset}, {lag}, {rows}{failing}"
