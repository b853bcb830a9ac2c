"""With `--from`, the slot that the tables were fed from before is watched: it may keep WAL."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.model.shape import ShapesFile
from penstock.settings.loading import load_shapes_settings
from penstock.shapes import app as module
from penstock.shapes.app import Run, ShapesApp

SOURCE = StreamAddress("shop", "shop", "etl", "eu-west-1")


class Monitor:
    """Writes down whose it is."""

    def __init__(self) -> None:
        self.slots: list[str] = []

    def of(self, replication: Any, _leader: Any, **_on: Any) -> Monitor:
        self.slots.append(replication.slot)
        return self

    async def run(self) -> None:
        """It has seen all."""


@pytest.mark.parametrize(
    ("source", "registry", "watched"),
    [
        (SOURCE, SimpleNamespace(slot="former"), ["former"]),
        (SOURCE, None, ["ours"]),
        (None, SimpleNamespace(slot="former"), []),
    ],
)
def test_it_is_the_one_that_the_registry_names(
    monkeypatch: pytest.MonkeyPatch, source: StreamAddress | None, registry: Any, watched: list[str]
) -> None:
    async def facts(*_: Any) -> tuple[dict[Any, Any], list[Any]]:
        return {}, []

    monkeypatch.setattr(module, "read_facts", facts)
    monkeypatch.setattr(module, "open_registry", lambda _: SimpleNamespace(read=lambda: registry))
    monkeypatch.setattr(module, "judge", lambda *_, **__: SimpleNamespace(refused=[]))
    monkeypatch.setattr(module, "where_refusals", lambda *_: [])
    monkeypatch.setattr(module, "watch_credentials", lambda *_: None)
    monitor = Monitor()
    monkeypatch.setattr(module, "SlotMonitor", monitor)
    settings = load_shapes_settings({"REPLICATION_SLOT": "ours"}, dotenv=None)
    file = ShapesFile("shapes.toml", "/lake", ())
    nothing: Any = None

    async def check() -> None:
        app = ShapesApp(settings, file, Run("local", {}, stream=source), spark=nothing, progress=nothing)
        await app._check(file)
        if app._left_slot is not None:
            await app._watch_slot(app._left_slot)

    asyncio.run(check())
    assert monitor.slots == watched
