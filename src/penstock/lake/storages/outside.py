"""What a storage tells of a shape's table to somebody who has no Spark."""

from __future__ import annotations

from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.log_files import read_version
from penstock.lake.ports import Position, TableVersion
from penstock.lake.storages.stream_url import StreamUrl, stream_of
from penstock.lake.stream.shape_marks import last_manifest
from penstock.model.shape import Shape, ShapesFile


def read_table_version(file: ShapesFile, shape: Shape, system_id: str) -> TableVersion:
    """The newest version of a shape's table, by its own log. Blocks.

    StorageFailed, StorageRefused; of a stream also StreamReadError.
    """
    stream = stream_of(file)
    if stream is not None:
        return _told(stream, shape, system_id)
    # The timeline is one of those that the log has.
    return read_version(file.location(shape), AppId(system_id, shape.name, timeline=0))


def _told(stream: StreamUrl, shape: Shape, system_id: str) -> TableVersion:
    """A stream has no versions: its last manifest tells how far it is."""
    client = stream.place._replace(stream=stream.marks_stream).open()
    try:
        last = last_manifest(client, shape.name, system_id)
    finally:
        client.close()
    if last is None:
        return TableVersion(-1, None)
    resolved = last.resolved_position
    return TableVersion(0, Position(resolved.timeline, resolved.commit_lsn - 1))
