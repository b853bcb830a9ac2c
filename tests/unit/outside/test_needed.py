"""Where `penstock check --from` takes it that shapes go on: where the next start would."""

from __future__ import annotations

import pytest

from penstock.lake.ports import Position, TableVersion
from penstock.model.relation import Relation
from penstock.model.shape import Shape, ShapesFile, definition_hash
from penstock.model.stream_position import StreamPosition
from penstock.outside import needed
from penstock.outside.needed import needed_now
from penstock.outside.postgres_look import PostgresFacts
from penstock.outside.shapes_look import StorageFacts
from penstock.postgres.timeline import ServerIdentity
from penstock.settings.loading import load_shapes_settings
from penstock.shapes.registry.registry import Registry, ShapeEntry

SHAPE = Shape("orders", Relation("public", "orders"))
FILE = ShapesFile("shapes.toml", "/lake", (SHAPE,))
ENTRY = ShapeEntry(definition_hash(SHAPE), awaits_snapshot=None, facts=None)
REGISTRY = Registry("77", 1, "s", 0x20, {"orders": ENTRY})


class Look:
    """At a server that was promoted at 0/40."""

    def __init__(self, *_: object) -> None:
        self.is_open = True

    async def look(self) -> PostgresFacts:
        return PostgresFacts(None, 0.0, None, None, 0, server=ServerIdentity("77", 2, {1: 0x40}))

    async def wal_lsn(self) -> int:
        return 0x100

    def close(self) -> None:
        self.is_open = False


@pytest.mark.parametrize(
    ("registry", "table", "position"),
    [
        pytest.param(REGISTRY, Position(1, 0x10), StreamPosition(1, 0x20), id="the registry's ceiling"),
        pytest.param(REGISTRY, Position(1, 0x30), StreamPosition(1, 0x31), id="a table that is further"),
        pytest.param(None, None, None, id="new shapes"),
    ],
)
async def test_it_goes_by_what_the_next_start_decides(
    registry: Registry | None,
    table: Position | None,
    position: StreamPosition | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = TableVersion(-1 if table is None else 3, table)
    monkeypatch.setattr(needed, "PostgresLook", Look)
    monkeypatch.setattr(needed, "look_at_storage", lambda *_: StorageFacts(registry, {"orders": version}, {}))
    settings = load_shapes_settings({"REPLICATION_SLOT": "s"}, None)
    assert await needed_now(settings, FILE) == position
