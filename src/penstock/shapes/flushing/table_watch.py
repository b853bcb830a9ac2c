"""TableWatch: looks at the followed tables again and again, for what no change in the stream tells."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import structlog

from penstock.errors import ConnectionFailed, PenstockError
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_tree import Tree
from penstock.postgres.snapshot.content import Content
from penstock.postgres.snapshot.export import SnapshotStale
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.flushing.cut import Cuts, transactions_end
from penstock.shapes.flushing.removals import Removals
from penstock.shapes.flushing.work import Work
from penstock.shapes.following.rewrites import Doubt

_LOOK_EVERY_S: Final = 1.0
_AFTER_FAILURE_S: Final = 5.0
_ATTEMPTS: Final = 12
_LOOK_AT_STREAM_S: Final = 0.1
_PATIENCE_S: Final = 5.0
_LONG_SCAN: Final = 10.0
"""So many times as long as a wait for transactions a comparison may take."""

_log = structlog.get_logger()


class TableWatch:
    """Compares the catalog with what each shape's table follows, once a second, and settles doubts."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        *,
        catalog: ShapeCatalog,
        ledger: Ledger,
        work: Work,
        removals: Removals,
        snapshot_again: Callable[[Sequence[SnapshotAgain]], Awaitable[None]],
        parameters: dict[str, Any],
    ) -> None:
        """`parameters`: of a connection, to look at rows with."""
        self._shapes = shapes
        self._catalog = catalog
        self._ledger = ledger
        self._work = work
        self._removals = removals
        self._snapshot_again = snapshot_again
        self._parameters = parameters
        self._settling: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        self._failures = 0
        self._cuts = Cuts(ledger, parameters, catalog.slot_plugin)
        self._in_doubt_since = math.inf
        """Since when something has been in doubt, and nothing of it settled; infinity if nothing is."""
        self._waits_for = ""
        self._following: set[str] = set()
        self._said: dict[str, str] = {}
        self.looks = 0
        """How many looks have come to their end."""

    def stalled(self, now: float, after_s: float) -> str | None:
        """What has been in doubt for so long, in words; None if nothing has. Large tables may take longer."""
        age_s = now - self._in_doubt_since
        if age_s < (after_s if self._waits_for else _LONG_SCAN * after_s):
            return None
        tables = ", ".join(str(doubt.member.relation) for doubt in self._ledger.collector.doubts)
        why = self._waits_for or "the comparison does not end"
        return f"the rows of {tables} could not be compared for {age_s:.0f} s: {why}"

    async def run(self) -> None:
        """Look until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                trees = await self._look()
                if self._ledger.collector.departures and (self._removing is None or self._removing.done()):
                    self._removing = group.create_task(self._removals.advance(), name="remove partitions")
                if not self._ledger.collector.doubts:
                    self._in_doubt_since = math.inf
                elif self._settling is None or self._settling.done():
                    self._in_doubt_since = min(self._in_doubt_since, time.monotonic())
                    self._settling = group.create_task(self._settle(), name="settle doubts")
                for shape in self._altered(trees):
                    self._following.add(shape)
                    group.create_task(self._follow(shape), name=f"follow {shape}")
                self.looks += 1
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _look(self) -> Sequence[Tree]:
        trees, lsn, before = await self._catalog.look({shape.table for shape in self._shapes})
        await self._snapshot_again(self._ledger.collector.check(trees, lsn, before))
        await self._removals.note_looks()
        return trees

    async def last_look(self) -> None:
        """All was flushed, and the end is near: whoever comes next should know that nothing was missed."""
        with suppress(ConnectionFailed):
            await self._look()

    def _altered(self, trees: Sequence[Tree]) -> list[str]:
        now = {tree.table.relation: tree for tree in trees}
        found = []
        for shape in self._shapes:
            facts, tree = self._work.facts(shape.name), now.get(shape.table)
            if facts is None or tree is None or shape.name in self._following:
                continue
            # What has stopped it may have been taken back.
            if tree != facts.tree or self._work.is_stopped(shape.name):
                found.append(shape.name)
        return found

    async def _settle(self) -> None:
        """Hold the rows of doubtful tables against what the stream says."""
        doubts = await self._hopeful()
        if not doubts:
            return
        collector, begun = self._ledger.collector, time.monotonic()
        for doubt in doubts:
            expected = collector.expected_rows(doubt)
            _log.info("comparison_begins", table=str(doubt.member.relation), expected_rows=expected)
        try:
            cut_lsn, contents = await self._server_rows(doubts)
            self._failures = 0
        except TimeoutError:
            return
        except PenstockError as error:
            self._failures += 1
            _log.warning(
                "rows_not_compared", tables=[str(d.member.relation) for d in doubts], detail=str(error)
            )
            if self._failures < _ATTEMPTS:
                await asyncio.sleep(_AFTER_FAILURE_S)
                return
            # Then let the snapshots fail, which say why to everybody.
            await self._snapshot_again([again for doubt in doubts for again in collector.give_up(doubt)])
            return
        await self._until_passed(cut_lsn)
        if contents:
            self._in_doubt_since = math.inf
        for doubt, content in contents:
            again = collector.settle(doubt, content)
            _log.info(
                "rows_differ" if again else "rows_compared",
                table=str(doubt.member.relation),
                rows=content.rows,
                took_s=round(time.monotonic() - begun, 1),
            )
            await self._snapshot_again(again)

    async def _server_rows(self, doubts: Sequence[Doubt]) -> tuple[int, list[tuple[Doubt, Content]]]:
        """What the server has of these, and as of where. TimeoutError if transactions don't let that be."""
        await transactions_end(self._parameters, self._waits)
        self._waits_for = ""
        still = self._ledger.collector.doubts
        contents = []
        async with AsyncExitStack() as stack:
            exported = await self._cuts.attempt(stack)
            for doubt in [each for each in doubts if each in still]:
                # One that was truncated or dropped since the snapshot is looked at again.
                with suppress(SnapshotStale):
                    contents.append((doubt, await exported.content(doubt.member.relation)))
        return exported.cut_lsn, contents

    def _waits(self, sentence: str) -> None:
        if not self._waits_for:
            _log.info("comparison_waits", detail=sentence)
        self._waits_for = sentence

    async def _hopeful(self) -> list[Doubt]:
        """The doubts that the server's rows may prove wrong. The others need no scan."""
        collector = self._ledger.collector
        doubts = collector.doubts
        # A TRUNCATE that explains it all may still be on its way. If none comes, rows are compared.
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._until_passed(max(doubt.look_lsn for doubt in doubts))
        hopeless = [doubt for doubt in doubts if collector.is_hopeless(doubt)]
        for doubt in hopeless:
            _log.info("comparison_left_out", table=str(doubt.member.relation), detail=doubt.suspicion)
            await self._snapshot_again(collector.give_up(doubt))
        return [doubt for doubt in doubts if doubt not in hopeless]

    async def _until_passed(self, lsn: int) -> None:
        while True:
            if self._ledger.collector.has_passed(lsn):
                return
            await asyncio.sleep(_LOOK_AT_STREAM_S)

    async def _follow(self, shape: str) -> None:
        try:
            again = await self._work.follow(shape)
            if again is not None:
                await self._snapshot_again([again])
            self._said.pop(shape, None)
        except PenstockError as error:
            if self._said.get(shape) != str(error):
                self._said[shape] = str(error)
                _log.error("shape_stopped", shape=shape, detail=str(error))
            await asyncio.sleep(_AFTER_FAILURE_S)
        finally:
            self._following.discard(shape)
