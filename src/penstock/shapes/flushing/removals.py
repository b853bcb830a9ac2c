"""Removals: the rows of partitions that are gone, deleted from the shapes' tables by their bounds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from penstock.errors import PenstockError
from penstock.lake.errors import SparkGone
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.flushing.work import Work
from penstock.shapes.following.departures import Departure
from penstock.shapes.registry.keeper import RegistryKeeper
from penstock.shapes.registry.registry import RegistryError

_ATTEMPTS: Final = 12

_log = structlog.get_logger()


class Removals:
    """Takes what the collector knows to have departed out of each table, in the one order that is exact.

    1. The registry knows the tree with the partition, and an LSN at which it was one: `note_looks`.
    2. A look lacks the partition. The stream has passed that look, and the shape's table holds all up to it:
       so what is deleted next was gone from Postgres by then, and never before its time.
    3. The table's turn is taken. Nothing that could lie within the bounds has changed since that LSN, by all
       that was read from the stream, so also by all that the table holds: its rows there are the partition's.
    4. They are deleted, in one commit of ours that leaves the offset as it is. The table now equals Postgres
       at that offset.
    5. When no table has them any more, and nothing came under the partition's name: its route ends, the
       collector's tree is judged, and the registry gets it (`Work.follow`).

    If 3 or 5 finds otherwise, the table is snapshotted again. So it is after a crash between 4 and 5, unless
    the table's offset is still below the LSN in the registry: then no change that the new leadership
    doesn't see again is in the table, and all of this is done once more.
    """

    def __init__(
        self,
        shapes: Sequence[Shape],
        *,
        ledger: Ledger,
        work: Work,
        keeper: RegistryKeeper,
        snapshot_again: Callable[[Sequence[SnapshotAgain]], Awaitable[None]],
    ) -> None:
        self._shapes = shapes
        self._ledger = ledger
        self._work = work
        self._keeper = keeper
        self._snapshot_again = snapshot_again
        self._rid: set[tuple[str, int]] = set()
        """Shapes whose tables have no rows of a partition any more, by its oid."""
        self._failures = 0

    async def advance(self) -> None:
        """Do what can be done now; the rest waits for flushes and for the stream."""
        for departure in self._ledger.collector.departures:
            try:
                await self._advance(departure)
                self._failures = 0
            except (RegistryError, SparkGone):
                raise
            except PenstockError as error:
                self._failures += 1
                _log.warning("rows_not_removed", partition=str(departure.partition), detail=str(error))
                if self._failures >= _ATTEMPTS:
                    # Then let the snapshots fail, which say why to everybody.
                    await self._give_up(departure)

    async def _advance(self, departure: Departure) -> None:
        collector = self._ledger.collector
        if not collector.has_passed(departure.look_lsn):
            return
        names = [shape.name for shape in self._shapes if shape.table == departure.table]
        for shape in (name for name in names if (name, departure.oid) not in self._rid):
            if self._will_be_cut(shape):
                self._rid.add((shape, departure.oid))
                continue
            if not self._is_at(shape, departure):
                continue
            if not await self._work.remove(shape, departure, collector):
                await self._give_up(departure)
                return
            self._rid.add((shape, departure.oid))
        if all((name, departure.oid) in self._rid for name in names):
            await self._snapshot_again(collector.departed(departure))

    def _will_be_cut(self, shape: str) -> bool:
        """Whether a copy replaces the table whose cut lies above all that was received, so above the look.

        Its turn is not asked for: a copy that waits for its cut has it, and so may a job that hangs.
        """
        plan = self._ledger.plan
        is_waiting = self._ledger.is_parked(shape) or not plan.runs_snapshot(shape)
        return plan.awaits_snapshot(shape) and is_waiting

    def _is_at(self, shape: str, departure: Departure) -> bool:
        """Whether the shape's table holds all that was committed before the partition was missed."""
        if self._ledger.plan.awaits_snapshot(shape):
            # It is copied now, and may have been cut before.
            return False
        progress = self._ledger.tracker.progress(shape)
        return progress is None or progress.last_flushed.tx_offset >= departure.look_lsn

    async def _give_up(self, departure: Departure) -> None:
        await self._snapshot_again(self._ledger.collector.copy_after_all(departure))

    async def note_looks(self) -> None:
        """Let the registry know up to where partitioned tables were as it has them, if that says more.

        That is: if a partition that goes while nobody looks could be removed by its bounds thanks to it. A
        table that is behind will soon hold more than this look can vouch for.
        """
        offsets, known = self._ledger.offsets(), self._keeper.registry.shapes
        seen = {}
        for shape in self._shapes:
            entry, offset = known.get(shape.name), offsets.get(shape.name)
            looked = self._ledger.collector.seen_as(shape.table)
            is_behind = self._ledger.tracker.progress(shape.name) is not None
            if entry is None or offset is None or looked is None or is_behind:
                continue
            tree, lsn = looked
            if tree.is_partitioned and (entry.looked_lsn or 0) <= offset < lsn and entry.is_seen_as(tree):
                seen[shape.name] = lsn
        if seen:
            await self._keeper.update(lambda registry: registry.looked(seen))
