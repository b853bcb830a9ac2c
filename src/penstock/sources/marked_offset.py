"""The offset of a query over a marked stream, as JSON that Spark keeps in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.kinesis.read.errors import StreamReadError
from penstock.kinesis.read.manifest_log import Place
from penstock.kinesis.read.marked_plan import MarkedOffset
from penstock.settings.kinds import stream_name

_BOUND_TO: Final = ("stream", "slot")
"""What a checkpoint is of, and no other is read with it."""


def offset_json(offset: MarkedOffset, *, stream: str, slot: str) -> dict[str, Any]:
    """As Spark keeps it. `stream` is a name or an ARN."""
    places = {"place": offset.place, "beginsBehind": offset.begins_behind}
    return {
        "stream": stream_name(stream),
        "slot": slot,
        "resolved": offset.resolved,
        "system": offset.system,
        "begins": offset.begins,
        **{name: f"{place.shard}:{place.sequence}" for name, place in places.items() if place is not None},
    }


def parse_offset(found: Mapping[str, Any], *, stream: str, slot: str) -> MarkedOffset | None:
    """Read it; None: it is where a query begins, which is only a word.

    StreamReadError if it is of another stream or slot. One that names none is an older version's.
    """
    if "resolved" not in found:
        return None
    asked = {"stream": stream_name(stream), "slot": slot}
    for what in _BOUND_TO:
        if found.get(what, asked[what]) != asked[what]:
            raise StreamReadError(
                f"the checkpoint is of the {what} {found[what]}, and the query reads the {what}"
                f" {asked[what]}, whose changes need not be the same. Fix: a new checkpointLocation, with a"
                f" new snapshot of what is kept downstream; or read the {what} {found[what]}"
            )
    return MarkedOffset(
        found["resolved"],
        _place(found.get("place")),
        found["system"],
        found["begins"],
        _place(found.get("beginsBehind")),
    )


def _place(text: str | None) -> Place | None:
    if text is None:
        return None
    shard, _, sequence = text.partition(":")
    return Place(shard, int(sequence))
