"""What a storage tells of a shape's table to somebody who has no Spark."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.lake.delta.app_id import AppId
from penstock.lake.delta.log_files import read_version
from penstock.lake.errors import StorageRefused
from penstock.lake.ports import TableVersion
from penstock.model.shape import Shape, ShapesFile


def read_table_version(file: ShapesFile, shape: Shape, system_id: str) -> TableVersion:
    """The newest version of a shape's table, by its own log. Blocks; StorageFailed, StorageRefused."""
    if urlsplit(file.storage).scheme not in ("", "s3a"):
        raise StorageRefused(f"storage {file.storage}: how far it is can't be told without Spark")
    # The timeline is one of those that the log has.
    return read_version(file.location(shape), AppId(system_id, shape.name, timeline=0))
