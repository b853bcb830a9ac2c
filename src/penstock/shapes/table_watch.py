"""TableWatch: looks at the followed tables again and again, for what no change in the stream tells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from penstock.errors import PenstockError
from penstock.shapes.change_log_index import Relation
from penstock.shapes.ledger import Ledger
from penstock.shapes.shape import Shape
from penstock.shapes.shape_catalog import ShapeCatalog
from penstock.shapes.snapshot_again import SnapshotAgain
from penstock.shapes.table_tree import Tree
from penstock.shapes.work import Work

_LOOK_EVERY_S: Final = 1.0
_AFTER_FAILURE_S: Final = 5.0

_log = structlog.get_logger()


class TableWatch:
    """Compares the catalog with what each shape's table follows, once a second."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        *,
        catalog: ShapeCatalog,
        ledger: Ledger,
        work: Work,
        make_anew: Callable[[Sequence[SnapshotAgain]], Awaitable[None]],
    ) -> None:
        self._shapes = shapes
        self._catalog = catalog
        self._ledger = ledger
        self._work = work
        self._make_anew = make_anew
        self._following: set[str] = set()
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                trees, lsn = await self._catalog.look({Relation(*shape.table) for shape in self._shapes})
                await self._make_anew(self._ledger.collector.check(trees, lsn))
                for shape in self._altered(trees):
                    self._following.add(shape)
                    group.create_task(self._follow(shape), name=f"follow {shape}")
                await asyncio.sleep(_LOOK_EVERY_S)

    def _altered(self, trees: Sequence[Tree]) -> list[str]:
        now = {tree.table.relation: tree for tree in trees}
        found = []
        for shape in self._shapes:
            facts, tree = self._work.facts(shape.name), now.get(Relation(*shape.table))
            if facts is None or tree is None or shape.name in self._following:
                continue
            # What has stopped it may have been taken back.
            if tree != facts.tree or self._work.is_stopped(shape.name):
                found.append(shape.name)
        return found

    async def _follow(self, shape: str) -> None:
        try:
            again = await self._work.follow(shape)
            if again is not None:
                await self._make_anew([again])
            self._said.pop(shape, None)
        except PenstockError as error:
            if self._said.get(shape) != str(error):
                self._said[shape] = str(error)
                _log.error("shape_stopped", shape=shape, detail=str(error))
            await asyncio.sleep(_AFTER_FAILURE_S)
        finally:
            self._following.discard(shape)
