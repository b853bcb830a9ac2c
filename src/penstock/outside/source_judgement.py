"""What is made of a look at the marked stream that shapes read. Pure."""

from __future__ import annotations

from datetime import timedelta

from msgspec import structs

from penstock.kinesis.read.retention import CATCH_UP, is_late, late_sentence, too_short
from penstock.outside.source_look import SourceFacts
from penstock.postgres.timeline import ServerIdentity
from penstock.status.model import SourceReading
from penstock.status.outside_reading import OutsideReading


def with_newest(outside: OutsideReading, source: SourceFacts) -> OutsideReading:
    """The same, with how far the stream is."""
    if source.newest is None:
        return outside
    return structs.replace(
        outside,
        manifest_lsn=source.newest.manifest.resolved_position.commit_lsn,
        manifest_age_s=max(0.0, (source.asked_at - source.newest.at).total_seconds()),
    )


def source_reading(source: SourceFacts) -> SourceReading:
    """The stream in numbers."""
    age = timedelta() if source.first is None else source.first.age
    return SourceReading(
        source.address.stream,
        source.address.slot,
        None if source.retention is None else source.retention.total_seconds(),
        age.total_seconds(),
    )


def source_reasons(source: SourceFacts, server: ServerIdentity | None, stall_s: float) -> list[str]:
    """What is wrong with it: it isn't written, is another server's, or doesn't reach back far enough."""
    if source.problem is not None:
        return [source.problem]
    reasons: list[str] = []
    newest, first, needed = source.newest, source.first, source.needed
    silent = source.looked_back if newest is None else source.asked_at - newest.at
    if silent.total_seconds() >= stall_s:
        time = f"{'at least ' if newest is None else ''}{silent.total_seconds():.0f} s"
        reasons.append(
            f"no manifest has come into {source.address.marks_stream} for {time}."
            " Fix: see whether penstock capture runs and is ready"
        )
    if newest is not None and server is not None and newest.manifest.system != server.system_id:
        reasons.append(
            f"the stream has manifests of system {newest.manifest.system}, and the server is"
            f" {server.system_id}. Fix: read the stream of this server, or connect to the other"
        )
    if first is None or needed is None:
        return reasons
    begins, age = first
    if begins > needed:
        reasons.append(
            f"manifests of slot {source.address.slot}: {too_short(begins, needed)}. Fix: {CATCH_UP}"
        )
    elif source.retention is not None and is_late(age, source.retention):
        reasons.append(late_sentence("the slowest shape", age, source.retention))
    return reasons
