from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.log_offset import LogOffset
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.registry.keeper import Confirmed, RegistryKeeper
from penstock.shapes.registry.registry import FileRegistry, Registry, RegistryError, ShapeEntry


@pytest.fixture
def store(tmp_path: Path) -> FileRegistry:
    store = FileRegistry(tmp_path)
    store.read()
    return store


@pytest.fixture
def keeper(store: FileRegistry) -> RegistryKeeper:
    registry = Registry("7301", 1, "slot", ceiling_lsn=100, shapes={"orders": ShapeEntry("hash", None, None)})
    store.write(registry)
    return RegistryKeeper(store, registry)


async def test_nothing_above_the_ceiling_on_disk_is_confirmed(keeper: RegistryKeeper, tmp_path: Path) -> None:
    tracker = FlushTracker(initial_lsn=100)
    confirmed = Confirmed(tracker, keeper, lambda: {"orders": 150})
    tracker.committed(LogOffset(200, 0), 208, frozenset(), 0.0)
    assert (tracker.frontier_lsn, confirmed.frontier_lsn) == (208, 100)

    assert await confirmed.raise_ceiling(1.0)
    assert confirmed.frontier_lsn == 208
    on_disk = FileRegistry(tmp_path).read()
    assert on_disk is not None
    assert on_disk.ceiling_lsn == 208
    assert on_disk.shapes["orders"].offset == 150
    assert not await confirmed.raise_ceiling(5.0), "nothing has moved"


async def test_one_write_a_second(keeper: RegistryKeeper) -> None:
    tracker = FlushTracker(initial_lsn=100)
    confirmed = Confirmed(tracker, keeper, dict)
    tracker.keepalive(200)
    assert await confirmed.raise_ceiling(1.0)
    tracker.keepalive(300)
    assert not await confirmed.raise_ceiling(1.9)
    assert await confirmed.raise_ceiling(2.1)
    assert confirmed.frontier_lsn == 300


async def test_a_write_that_fails_confirms_nothing(keeper: RegistryKeeper, tmp_path: Path) -> None:
    tracker = FlushTracker(initial_lsn=100)
    confirmed = Confirmed(tracker, keeper, dict)
    tracker.keepalive(200)
    other = FileRegistry(tmp_path)
    other.read()
    other.write(Registry("7301", 1, "slot", ceiling_lsn=150, shapes={}))
    with pytest.raises(RegistryError, match="another process"):
        await confirmed.raise_ceiling(1.0)
    assert confirmed.frontier_lsn == 100
    assert keeper.registry.ceiling_lsn == 100


async def test_an_equal_registry_is_not_written(keeper: RegistryKeeper, tmp_path: Path) -> None:
    before = (tmp_path / "_penstock" / "registry").stat().st_ino
    await keeper.update(lambda registry: registry.with_ceiling(50))
    assert (tmp_path / "_penstock" / "registry").stat().st_ino == before
    await keeper.update(lambda registry: registry.with_ceiling(150))
    assert (tmp_path / "_penstock" / "registry").stat().st_ino != before
