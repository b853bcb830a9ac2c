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


def silence(source: SourceFacts, stall_s: float) -> str | None:
    """That nobody writes the stream, if that is so: no manifest has come for that long."""
    newest = source.newest
    silent = source.looked_back if newest is None else source.asked_at - newest.at
    if silent.total_seconds() < stall_s:
        return None
    time = f"{'at least ' if newest is None else ''}{silent.total_seconds():.0f} s"
    return (
        f"no manifest has come into {source.address.marks_stream} for {time}."
        " Fix: see whether penstock capture runs and is ready"
    )


def stranger(source: SourceFacts, server: ServerIdentity | None) -> str | None:
    """That the stream is another server's, if it is."""
    newest = source.newest
    if newest is None or server is None or newest.manifest.system == server.system_id:
        return None
    return (
        f"the stream has manifests of system {newest.manifest.system}, and the server is"
        f" {server.system_id}. Fix: read the stream of this server, or connect to the other"
    )


def source_reasons(source: SourceFacts, server: ServerIdentity | None, stall_s: float) -> list[str]:
    """What is wrong with it: it isn't written, is another server's, or doesn't reach back far enough."""
    if source.problem is not None:
        return [source.problem]
    first, needed = source.first, source.needed
    found = (silence(source, stall_s), stranger(source, server))
    reasons = [each for each in found if each is not None]
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
