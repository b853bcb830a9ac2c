"""The one place that chooses the feeder: where the changes of shapes come from, and who leads meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from penstock.decoding.plugins import STREAM_PLUGIN
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.model.shape import ShapesFile
from penstock.settings.services import ShapesSettings
from penstock.shapes.leadership import ShapesLeadership
from penstock.shapes.slot_leadership import PostgresLeadership
from penstock.shapes.stream_leadership import KinesisLeadership


class Feeder(NamedTuple):
    """A way for changes to come."""

    leadership: type[ShapesLeadership]
    source: Path | StreamAddress
    """Through a log in this directory, or from a marked stream."""
    plugin: str
    """Whose frames they are."""


def feeder_for(settings: ShapesSettings, file: ShapesFile, stream: StreamAddress | None) -> Feeder:
    """`stream`: what `--from` names; None: a slot of our own."""
    if stream is not None:
        return Feeder(KinesisLeadership, stream, STREAM_PLUGIN)
    log = settings.change_log.directory_for(file.storage, settings.replication.slot)
    return Feeder(PostgresLeadership, log, settings.replication.output_plugin)
