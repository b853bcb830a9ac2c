"""Verification: are tables equal to Postgres, while both move?

All tables are compared under one exported snapshot, whose cut P is exact: transactions with a commit LSN
below P are in it, no others.

While the service runs:
1. It waits until the slot's confirmed_flush_lsn, or the registry's ceiling if changes come from a stream, is
   at P or above. Then every table has every transaction below P: that is what confirming means. It may have
   some above P, too.
2. So a row that is equal now was right. One that differs may have been changed above P, or is wrong: it is
   looked at again, up to RECHECK_LIMIT of them a shape.
3. For another look a ChangeWatch begins first, then a new snapshot is taken, with the cut Q; it waits for
   the slot again; then the table's version is fixed, with its offset O. It has every transaction up to O
   and none above; the watch tells all changes from before Q up to O.
4. So for each key we know which row Postgres had at O: that of the snapshot if no change is about it, else
   that of its last change. This look is final: the row is equal, or it differs. A row that goes back and
   forth, or comes and goes, makes no difference.
5. A last change that lacks columns (unchanged TOAST) can't be judged, nor can any key if there are too many
   changes. Such keys are looked at again, LOOKS_AGAIN times at most, and then count as `changing`.

What a last change says went through the output plugin and our decoder, as it did on its way to the lake: an
error of these two is not seen in a row that is changed all the time. When it comes to rest, it is.

While the service is stopped, tables are compared as they are; the report says how far behind they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

from penstock.errors import PenstockError
from penstock.lake.comparison import Counts, PostgresAt
from penstock.lake.ports import VerifyJobs
from penstock.postgres.snapshot.change_watch import ChangeWatch, watch_changes
from penstock.shapes.flushing.job_runner import JobThreads
from penstock.shapes.flushing.workplace import Database
from penstock.shapes.verify.cuts import Passing, Say, ShapeCheck, VerifyCuts

LOOKS_AGAIN: Final = 5


class Verification:
    """Looks at some shapes as often as it takes. Used once."""

    def __init__(
        self,
        checks: Sequence[ShapeCheck],
        *,
        jobs: VerifyJobs,
        threads: JobThreads,
        database: Database,
        passing: Passing,
        show_values: bool,
        say: Say,
    ) -> None:
        self._checks = checks
        self._jobs = jobs
        self._threads = threads
        self._plugin = database.catalog.decoder.plugin
        self._cuts = VerifyCuts(database.catalog, database.parameters, plugin=self._plugin, say=say)
        self._passing = passing
        self._parameters = database.parameters
        self._show_values = show_values
        self._say = say

    async def run(self) -> None:
        """Bring every check to its end. PenstockError if none can be."""
        await self._first_look(running=await self._passing.is_running())
        for _ in range(LOOKS_AGAIN):
            if not any(check.open_keys for check in self._checks):
                return
            await self._look_again()

    async def _first_look(self, *, running: bool) -> None:
        async with AsyncExitStack() as stack:
            checks = [check for check in self._checks if check.problem is None]
            taken = await self._cuts.take(checks, stack)
            if taken is None:
                return
            exported, places = taken
            if running:
                await self._passing.reach(exported.cut_lsn)

            async def compare(check: ShapeCheck) -> None:
                self._say(f"comparing {check.shape.name}")
                stopped_at = None if running else exported.cut_lsn
                await self._threads.run(self._compare_all, check, places[check.shape.name], stopped_at)

            await _each(checks, compare)

    def _compare_all(self, check: ShapeCheck, postgres: PostgresAt, stopped_at: int | None) -> None:
        lake = self._jobs.look(check.shape, check.facts)
        comparison = self._jobs.compare(check.shape, postgres, lake)
        found = comparison.counts
        if stopped_at is not None:
            check.counts = Counts(found.postgres, found.lake)
            check.behind_bytes = max(0, stopped_at - 1 - lake.offset)
            check.add(comparison, show_values=self._show_values)
            return
        check.counts = Counts(found.postgres, found.lake, found.equal)
        check.keys = comparison.keys()
        check.unchecked = found.differing - check.keys.num_rows
        comparison.close()

    async def _look_again(self) -> None:
        checks = [check for check in self._checks if check.open_keys]
        self._say(f"looking again at {sum(check.open_keys for check in checks):,} keys")
        async with AsyncExitStack() as stack:
            watch = await stack.enter_async_context(watch_changes(self._parameters, plugin=self._plugin))
            taken = await self._cuts.take(checks, stack)
            if taken is None:
                return
            exported, places = taken
            await self._passing.reach(exported.cut_lsn)

            async def compare(check: ShapeCheck) -> None:
                await self._compare_again(check, places[check.shape.name], watch)

            await _each(checks, compare)

    async def _compare_again(self, check: ShapeCheck, postgres: PostgresAt, watch: ChangeWatch) -> None:
        shape, run = check.shape, self._threads.run
        lake = await run(self._jobs.look, shape, check.facts)
        frames = await watch.frames([leaf.relation for leaf in check.facts.leaves], lake.offset)
        keys = await run(self._jobs.sort_out, shape, check.facts, check.keys, frames)
        if keys.clear:
            comparison = await run(self._jobs.compare_keys, shape, postgres, lake, keys)
            await run(lambda: check.add(comparison, show_values=self._show_values))
        check.keys = keys.unclear


async def _each(checks: Sequence[ShapeCheck], work: Callable[[ShapeCheck], Awaitable[None]]) -> None:
    """All at once, as far as there are threads; a failure is one shape's own."""

    async def guarded(check: ShapeCheck) -> None:
        try:
            await work(check)
        except PenstockError as error:
            check.problem = str(error)

    await asyncio.gather(*(guarded(check) for check in checks if check.problem is None))
