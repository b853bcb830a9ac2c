"""`penstock status`: what a running capture or shapes says of itself, for a person at a terminal.

It asks the process's own ops port, and so tells what that process knows; a process that is gone says nothing.
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


def as_json(status: Status) -> str:
    """The same for programs."""
    return msgspec.json.format(msgspec.json.encode(status), indent=2).decode()


def as_text(status: Status, url: str) -> str:
    """A line for each thing that matters: no zeros that tell nothing, and no row values."""
    return "\n".join(_lines(status, url))


def _lines(status: Status, url: str) -> Iterator[str]:
    yield f"{status.phase}, {'ready' if status.ready else 'NOT READY'} ({url})"
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
