"""`penstock status`: what a running capture or shapes says of itself, for a person at a terminal.

It asks the process's own ops port, and so tells what that process knows; a process that is gone says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

from penstock import exit_codes
from penstock.errors import PenstockError
from penstock.model.lsn import format_lsn
from penstock.model.size import format_size

_TIMEOUT_S: Final = 5.0
_LEADING: Final = ("streaming", "draining")
# A proxy for the world knows nothing of this machine's own ports.
_DIRECT: Final = build_opener(ProxyHandler({}))


class NoAnswer(PenstockError):
    """Nobody, or somebody else, listens on the ops port."""


class Status(NamedTuple):
    """What the ops port said."""

    url: str
    ready: bool
    phase: str
    reasons: tuple[str, ...]
    values: Mapping[str, float]
    """Metrics without labels, by name."""
    shapes: Mapping[str, Mapping[str, float]]
    """Metrics of each shape, by name."""

    @property
    def exit_code(self) -> int:
        """For scripts."""
        return exit_codes.OK if self.ready else exit_codes.FAILED


def ask(url: str) -> Status:
    """Ask the process at `url`. Blocks; NoAnswer if that can't be done."""
    try:
        readiness = json.loads(_get(f"{url}/readyz"))
        ready, phase, reasons = readiness["ready"], readiness["phase"], tuple(readiness["reasons"])
        families = list(text_string_to_metric_families(_get(f"{url}/metrics").decode()))
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise NoAnswer(f"no penstock answers at {url}: {reason}. Fix: start it, or give its --url") from error
    values: dict[str, float] = {}
    shapes: dict[str, dict[str, float]] = {}
    for sample in (sample for family in families for sample in family.samples):
        if not sample.labels:
            values[sample.name] = sample.value
        elif sample.labels.keys() == {"shape"}:
            shapes.setdefault(sample.labels["shape"], {})[sample.name] = sample.value
    return Status(url, ready, phase, reasons, values, shapes)


def as_json(status: Status) -> str:
    """The same for programs."""
    plain: dict[str, Any] = status._asdict()
    return json.dumps({**plain, "reasons": list(status.reasons)}, indent=2, ensure_ascii=False)


def as_text(status: Status) -> str:
    """A line for each thing that matters: none of the metrics' zeros, and no row values."""
    return "\n".join(_lines(status))


def _get(url: str) -> bytes:
    try:
        with _DIRECT.open(url, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read())
    except HTTPError as error:
        # An unready process answers 503, and says why.
        return bytes(error.read())


def _lines(status: Status) -> Iterator[str]:
    yield f"{status.phase}, {'ready' if status.ready else 'NOT READY'} ({status.url})"
    for reason in status.reasons:
        yield f"  {reason}"
    values = status.values
    if status.phase in _LEADING:
        received, frontier = values["penstock_stream_received_lsn"], values["penstock_frontier_lsn"]
        behind = format_size(max(0.0, received - frontier))
        yield f"  frontier {_lsn(frontier)}, {behind} behind what was received ({_lsn(received)})"
    yield f"  slot     {_slot(values)}"
    if status.phase not in _LEADING:
        return
    if "penstock_log_bytes" in values:
        full = ", FULL: reading waits" if values["penstock_log_full"] else ""
        yield f"  log      {format_size(values['penstock_log_bytes'])}{full}"
    if "penstock_sink_records_total" in values:
        yield (
            f"  stream   {values['penstock_sink_records_total']:,.0f} records accepted,"
            f" {values['penstock_ack_pending']:,.0f} pending"
        )
    yield from _shape_lines(status.shapes)


def _slot(values: Mapping[str, float]) -> str:
    """The slot, in every phase: it needs watching most when nobody reads it."""
    age = f"read {values['penstock_slot_read_age_seconds']:.0f} s ago"
    if "penstock_slot_retained_bytes" not in values or not values["penstock_slot_confirmed_lsn"]:
        return f"does not exist, {age}" if values.get("penstock_slot_missing") else f"unknown, {age}"
    lost = "LOST, " if values["penstock_slot_lost"] else ""
    reader = "" if values["penstock_slot_active"] else ", and nobody reads it"
    return (
        f"{lost}confirmed {_lsn(values['penstock_slot_confirmed_lsn'])}, keeps"
        f" {format_size(values['penstock_slot_retained_bytes'])} of WAL on the server{reader} ({age})"
    )


def _shape_lines(shapes: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    width = max(map(len, shapes), default=0)
    for name, of in shapes.items():
        if "penstock_shape_offset_lsn" not in of:
            continue
        lag = "up to date"
        if of["penstock_shape_lag_bytes"]:
            size = format_size(of["penstock_shape_lag_bytes"])
            lag = f"{size}, {of['penstock_shape_lag_seconds']:.1f} s behind"
        failing = ", FAILING" if of["penstock_shape_failing"] else ""
        rows = f"{of['penstock_shape_rows']:,.0f} rows since it leads"
        yield f"  shape    {name:<{width}}  {_lsn(of['penstock_shape_offset_lsn'])}, {lag}, {rows}{failing}"


def _lsn(value: float) -> str:
    return format_lsn(int(value))
