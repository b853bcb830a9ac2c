"""A status in words: the same sentences at a terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.model.lsn import format_lsn
from penstock.model.size import format_size
from penstock.status.health import Fault, Phase
from penstock.status.model import CaptureReading, ShapeReading, SlotReading, SourceReading, Status

_FIX: Final = " Fix: "
_SOON_S: Final = 3600.0
_CLOCK_OFF_S: Final = 1.0
_LATE_S: Final = 1.0
_OLD_S: Final = 600.0

_ADVICE: Final = {
    f"{Fault.POSTGRES}: ": "see that Postgres is up and reachable; it is tried again by itself",
    f"{Fault.SERVICE}: ": "the sentence says what is missing; it is tried again by itself",
    f"{Fault.SINK}: ": "see that Kinesis can be reached with these credentials; it is tried again by itself,"
    " and Postgres keeps the changes meanwhile: watch the WAL that the slot keeps",
    f"{Fault.STREAM}: ": "mend the stream, or our right to it; it is tried again by itself",
    f"{Fault.KEYS}: ": "look for records_failed in the log: a hot shard, an encryption key, the service",
    f"{Fault.MARKS}: ": "mend the stream of the manifests, or our right to it (kinesis:PutRecord)",
    f"{Fault.SLOT}: ": "look at the process that holds the lock",
    f"{Fault.LOST}: ": "create a slot under a new name, and take new snapshots downstream",
    f"{Fault.NOTE}: ": "end whoever holds a lock on the note, or give the server what it has run out of",
    f"{Fault.DROPPED}: ": "give the table a replica identity, and take a new snapshot of it downstream",
    f"{Fault.BLOCKED}: ": "look for record_blocks in the log; UNDELIVERABLE_POLICY=quarantine lets the rest"
    " go on",
    f"{Fault.QUARANTINE}: ": "see that QUARANTINE_URL can be written",
    f"{Fault.SHAPE}: ": "see the shape's own sentence below",
    f"phase is {Phase.STARTING}": "wait: it has just been started",
    f"phase is {Phase.PREPARING}": "wait: it has the lock and sets up slot and stream",
    f"phase is {Phase.DRAINING}": "nothing: it was told to stop, and delivers what it has read",
    f"phase is {Phase.STOPPED}": "nothing: it was told to stop",
    "phase is ": "see the sentences above; it is tried again by itself",
    "no sign of leadership": "see whether Postgres or the network hangs; another can lead soon",
    "the frontier stands still": "look for records_failed in the log: a shard or a key may fail",
}


class Trouble(NamedTuple):
    """Something is wrong."""

    what: str
    do: str


class Fact(NamedTuple):
    """One thing that matters: a label of a word, and a sentence."""

    label: str
    sentence: str


def headline(status: Status) -> str:
    """In three words."""
    return f"{status.phase}, {'ready' if status.ready else 'NOT READY'}"


def troubles(status: Status) -> list[Trouble]:
    """Why it isn't ready, and what to do."""
    return [trouble_of(reason) for reason in status.reasons]


def warnings(status: Status) -> list[Trouble]:
    """What is wrong without making it unready."""
    found = []
    for shape in [] if status.shapes is None else status.shapes.shapes:
        if shape.error is not None:
            what, do = trouble_of(shape.error)
            found.append(Trouble(f"shape {shape.name} fails: {what}", do))
    if status.capture is not None and status.capture.quarantined:
        count = status.capture.quarantined
        found.append(
            Trouble(
                f"{count:,} records are in quarantine since this process began",
                "look at them in QUARANTINE_URL; the stream has a pointer to each",
            )
        )
    return found


def trouble_of(sentence: str) -> Trouble:
    """A sentence that has its own advice, or the advice for its kind."""
    what, fix, do = sentence.partition(_FIX)
    if fix:
        return Trouble(what, do)
    return Trouble(sentence, next((do for start, do in _ADVICE.items() if sentence.startswith(start)), ""))


def facts(status: Status) -> Iterator[Fact]:
    """What matters, in order: no zeros that tell nothing, and no row values."""
    leading = status.capture or status.shapes
    if status.leader is not None or leading is not None:
        yield Fact("leader", status.leader or "this process")
    if leading is not None:
        behind = format_size(max(0, leading.received_lsn - leading.frontier_lsn))
        yield Fact(
            "frontier",
            f"{format_lsn(leading.frontier_lsn)}, {behind} behind what was received"
            f" ({format_lsn(leading.received_lsn)})",
        )
    if status.behind_s >= _LATE_S:
        since = "read" if status.service == "shapes" else "committed"
        yield Fact(
            "behind", f"{status.behind_s:.1f} s since the oldest change was {since} that is not delivered"
        )
    if status.source is not None:
        yield Fact("stream", source(status.source))
    if status.source is None or status.slot.exists:
        yield Fact("slot", slot(status.slot))
    if status.capture is not None:
        yield from _capture_facts(status.capture)
    if status.shapes is not None:
        full = ", FULL: reading waits" if status.shapes.log_is_full else ""
        yield Fact("log", f"{format_size(status.shapes.log_bytes)}{full}")
    offset_s, expire_s = status.clock_offset_s, status.credentials_expire_s
    if offset_s is not None and abs(offset_s) > _CLOCK_OFF_S:
        yield Fact(
            "clock", f"the server's is {abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'} ours"
        )
    if expire_s is not None and expire_s < _SOON_S:
        yield Fact(
            "access", f"AWS credentials expire in {max(0.0, expire_s) / 60:.0f} min; they are renewed before"
        )


def _capture_facts(reading: CaptureReading) -> Iterator[Fact]:
    yield Fact("stream", f"{reading.records:,} records accepted, {reading.pending:,} pending")
    if reading.queue_events:
        yield Fact("queue", f"{reading.queue_events:,} of {reading.queue_limit:,} events wait")
    if reading.inflight_bytes:
        used = f"{format_size(reading.inflight_bytes)} of {format_size(reading.inflight_limit_bytes)}"
        yield Fact("window", f"{used} in flight, {reading.pending:,} of {reading.pending_limit:,} entries")


def source(reading: SourceReading) -> str:
    """The stream that shapes read."""
    words = f"{reading.stream}, of slot {reading.of_slot}"
    if reading.retention_s is not None:
        words += f"; keeps records {reading.retention_s / 3600:.0f} h"
    if reading.needed_s >= _OLD_S:
        words += f", and those that came {reading.needed_s / 3600:.1f} h ago are still needed"
    return words


def slot(reading: SlotReading) -> str:
    """The slot, in every phase: it needs watching most when nobody reads it."""
    age = f"read {reading.read_age_s:.0f} s ago"
    if not reading.exists:
        return f"unknown, {age}" if reading.exists is None else f"does not exist, {age}"
    if not reading.confirmed_lsn:
        return f"is being made, {age}"
    lost = "LOST, " if reading.is_lost else ""
    reader = "" if reading.is_active else ", and nobody reads it"
    keeps = f"keeps {format_size(reading.retained_bytes)} of WAL on the server"
    if reading.safe_bytes is not None and not reading.is_lost:
        keeps += f" (lost after {format_size(max(0, reading.safe_bytes))} more)"
    return f"{lost}confirmed {format_lsn(reading.confirmed_lsn)}, {keeps}{reader} ({age})"


def shape_lag(shape: ShapeReading) -> str:
    """How far its table is behind."""
    return f"{format_size(shape.lag_bytes)}, {shape.lag_s:.1f} s behind" if shape.lag_bytes else "up to date"


def shape_position(shape: ShapeReading) -> str:
    """What its table holds."""
    return format_lsn(max(0, shape.offset_lsn))
