"""What a storage tells of its shapes: the registry, and each table's own log."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from penstock.errors import PenstockError
from penstock.lake.ports import TableVersion
from penstock.lake.storages.outside import read_table_version
from penstock.model.shape import Shape, ShapesFile
from penstock.shapes.registry.places import open_registry
from penstock.shapes.registry.registry import Registry

_AT_ONCE: Final = 8


class StorageFacts(NamedTuple):
    """What was read."""

    registry: Registry | None
    """None: there is none yet."""
    tables: Mapping[str, TableVersion]
    """By shape; those that could be read."""
    problems: Mapping[str, str]
    """By shape, why not the others."""


def look_at_storage(file: ShapesFile, system_id: str | None) -> StorageFacts:
    """Read the registry, then the tables, which are never behind it. Blocks.

    `system_id`: the server's, if it is known; else the registry's counts. RegistryError if the registry can't
    be read.
    """
    registry = open_registry(file.registry_at).read()
    known = system_id if registry is None else registry.system_id
    if known is None:
        return StorageFacts(registry, {}, {shape.name: "the server's system id" for shape in file.shapes})
    tables: dict[str, TableVersion] = {}
    problems: dict[str, str] = {}

    def read(shape: Shape) -> None:
        try:
            tables[shape.name] = read_table_version(file, shape, known)
        except PenstockError as error:
            problems[shape.name] = str(error)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(read, file.shapes))
    return StorageFacts(registry, tables, problems)
