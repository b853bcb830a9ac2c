"""What `penstock check --from` makes of the marked stream that shapes are to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from penstock.errors import PenstockError
from penstock.finding import Finding
from penstock.kinesis.read.marked_stream import MarkedStream, StreamAddress
from penstock.kinesis.read.retention import CATCH_UP, KEEP_LONGER, is_late, too_short
from penstock.kinesis.write.client import KEYS_IGNORED, ignores_keys
from penstock.lake.storages.stream_url import stream_of
from penstock.model.shape import ShapesFile
from penstock.model.stream_position import StreamPosition
from penstock.settings.kinds import stream_name
from penstock.settings.kinesis import MarkedStreamSettings

Needed = Callable[[], StreamPosition | None]
"""Where the slowest shape needs changes from; None: all begin with a snapshot. May raise a PenstockError."""


def address_of(settings: MarkedStreamSettings) -> StreamAddress:
    """The same, for a reader."""
    return StreamAddress(
        settings.stream,
        settings.marks or settings.stream,
        settings.slot,
        settings.region,
        settings.endpoint_url,
    )


def shared_names(file: ShapesFile, source: StreamAddress | None) -> list[str]:
    """A line if a shape's manifests would stand among those of the capture whose changes are read.

    Both go by the name: readers of either would take the other's for theirs, and lose transactions.
    SettingsError and StorageRefused if a stream can't be told.
    """
    storage = stream_of(file)
    if (
        source is None
        or storage is None
        or stream_name(source.marks_stream) != stream_name(storage.marks_stream)
    ):
        return []
    return [
        f"{file.path}: shape {shape.name} has the name of the slot whose changes are read, and the manifests"
        f" of both go to {storage.marks_stream}: readers can't tell them apart. Fix: rename the shape, or"
        " give the storage a stream of its own"
        for shape in file.shapes
        if shape.name == source.slot
    ]


def check_names(file: ShapesFile, settings: MarkedStreamSettings) -> list[Finding]:
    """The same, for `penstock check`; none if a stream can't be told, which others say."""
    try:
        lines = shared_names(file, address_of(settings))
    except PenstockError:
        return []
    return [Finding.from_error("shapes", PenstockError(line)) for line in lines]


def check_source(settings: MarkedStreamSettings, needed: Needed) -> list[Finding]:
    """Is it marked, does it go by keys, and does it reach back to what the tables need? Blocks.

    The stream of the manifests, if there is one, has to do the same.
    """
    address = address_of(settings)
    try:
        streams = dict.fromkeys((address.stream, address.marks_stream))
        summaries = {stream: _summary(address, stream) for stream in streams}
        kept = min(timedelta(hours=summary["RetentionPeriodHours"]) for summary in summaries.values())
        found = [_judge_keys(stream, summary) for stream, summary in summaries.items()]
        return [*found, _judge_reach(address, needed, kept)]
    except PenstockError as error:
        return [Finding.from_error("stream", error)]


def _summary(address: StreamAddress, stream: str) -> Mapping[str, Any]:
    client = address.open(stream)
    try:
        return client.summary()
    finally:
        client.close()


def _judge_keys(stream: str, summary: Mapping[str, Any]) -> Finding:
    found = f"{stream!r} keeps records {summary['RetentionPeriodHours']} h"
    if ignores_keys(summary):
        why, _, fix = KEYS_IGNORED.message.partition(" Fix: ")
        return Finding.fail("stream", f"{found}; {why}", fix.partition("; or,")[0])
    return Finding.ok("stream", found)


def _judge_reach(address: StreamAddress, ask: Needed, retention: timedelta) -> Finding:
    try:
        needed = ask()
    except PenstockError as error:
        return Finding.from_error("manifests", error)
    stream = MarkedStream(address)
    try:
        if needed is None:
            stream.begin(None)
            return Finding.ok("manifests", f"of slot {address.slot}; every shape begins with a snapshot")
        begins, age = stream.first_needed(needed)
    finally:
        stream.close()
    if begins > needed:
        return Finding.fail("manifests", too_short(begins, needed), CATCH_UP)
    if is_late(age, retention):
        return Finding.warn(
            "manifests",
            f"the slowest shape needs what came {age.total_seconds() / 3600:.1f} h ago",
            f"start penstock shapes soon, or {KEEP_LONGER}",
        )
    return Finding.ok("manifests", f"of slot {address.slot}; they reach back to {needed.described()}")
