"""Snapshots of all tables that are compared, each with an exact cut; and what is known of each so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from psycopg import AsyncConnection

from penstock.errors import PenstockError
from penstock.lake.comparison import Comparison, Counts, Difference, PostgresAt
from penstock.lake.errors import CannotCompare
from penstock.model.lsn import format_lsn
from penstock.model.shape import Shape
from penstock.postgres.catalog.table_catalog import ShapeCatalog
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.leader.lock import lock_holder
from penstock.postgres.slot.state import read_slot
from penstock.postgres.snapshot.export import ExportedSnapshot, export_snapshot
from penstock.shapes.verify.report import ShapeResult

SHOWN: Final = 10
"""How many differing keys of a shape are printed."""

_POLL_S: Final = 0.2

Say = Callable[[str], None]


@dataclass
class ShapeCheck:
    """A shape on its way to a result."""

    shape: Shape
    facts: TableFacts
    left_out: tuple[str, ...] = ()
    counts: Counts = field(default_factory=Counts)
    first: list[Difference] = field(default_factory=list)
    keys: pa.Table | None = None
    """To be looked at again."""
    unchecked: int = 0
    untold: int = 0
    """Rows that a stream doesn't tell, and need not."""
    told: int | None = None
    told_behind: str | None = None
    """See ShapeResult."""
    counted: bool = False
    """Its rows have no key, and were only counted."""
    behind_bytes: int | None = None
    problem: str | None = None

    @property
    def open_keys(self) -> int:
        """How many keys are to be looked at again."""
        return 0 if self.keys is None or self.problem is not None else self.keys.num_rows

    def add(self, comparison: Comparison, *, show_values: bool) -> None:
        """Count what is certain, and give Spark's memory back. Blocks."""
        own, found = self.counts, comparison.counts
        self.counts = Counts(
            own.postgres, own.lake, *(a + b for a, b in zip(own[2:], found[2:], strict=True))
        )
        if found.differing and len(self.first) < SHOWN:
            self.first += comparison.first(SHOWN - len(self.first), show_values=show_values)
        comparison.close()

    def result(self) -> ShapeResult:
        """As it stands."""
        return ShapeResult(
            self.shape.name,
            self.counts,
            tuple(self.first),
            changing=self.open_keys,
            unchecked=self.unchecked,
            untold=self.untold,
            told=self.told,
            told_behind=self.told_behind,
            counted=self.counted,
            behind_bytes=self.behind_bytes,
            left_out=self.left_out,
            problem=self.problem,
        )


class Led(NamedTuple):
    """How a service is known that runs."""

    slot: str
    lock_key: int
    read_ceiling: Callable[[], int]
    """The registry's: below it every settled table has everything. Blocks."""


class Passing:
    """Waits until the service has confirmed a place: then all that it keeps has everything below."""

    def __init__(self, session: AsyncConnection, led: Led, timeout_s: float, say: Say) -> None:
        self._session = session
        self._slot = led.slot
        self._led = led
        self._timeout_s = timeout_s
        self._say = say

    async def is_running(self) -> bool:
        """Whether somebody reads the slot, or leads: who takes changes from a stream reads none."""
        slot = await read_slot(self._session, self._slot)
        is_read = slot is not None and slot.active_pid is not None
        return is_read or await lock_holder(self._session, self._led.lock_key) is not None

    async def reach(self, lsn: int) -> None:
        """Wait; CannotCompare if it takes too long."""
        self._say(f"waiting until the tables have everything up to {format_lsn(lsn)}")
        deadline = time.monotonic() + self._timeout_s
        while True:
            slot = await read_slot(self._session, self._slot)
            confirmed = 0 if slot is None else slot.confirmed_flush_lsn or 0
            at = max(confirmed, await asyncio.to_thread(self._led.read_ceiling))
            if at >= lsn:
                return
            if time.monotonic() > deadline:
                raise CannotCompare(
                    f"slot {self._slot} stood at {format_lsn(at)} after {self._timeout_s:g} s, and the"
                    f" snapshot is of {format_lsn(lsn)}: the tables don't have everything yet. Fix: raise"
                    " --timeout, or see what holds penstock shapes up"
                )
            await asyncio.sleep(_POLL_S)


class VerifyCuts:
    """Takes snapshots."""

    def __init__(self, catalog: ShapeCatalog, parameters: dict[str, Any], *, plugin: str, say: Say) -> None:
        """`plugin` is one that the server can make a slot with."""
        self._catalog = catalog
        self._parameters = parameters
        self._plugin = plugin
        self._say = say

    async def take(
        self, checks: Sequence[ShapeCheck], stack: AsyncExitStack
    ) -> tuple[ExportedSnapshot, dict[str, PostgresAt]] | None:
        """A snapshot of these tables, until the stack ends; None if there are none.

        A table that can't be had spoils a snapshot: then another one is taken, without that table.
        """
        while any(check.problem is None for check in checks):
            self._say("waiting for open transactions, to take a snapshot")
            async with AsyncExitStack() as attempt:
                exported = await attempt.enter_async_context(
                    export_snapshot(self._parameters, plugin=self._plugin)
                )
                places: dict[str, PostgresAt] = {}
                for check in checks:
                    if check.problem is None and not await self._place(check, exported, places):
                        break
                else:
                    stack.push_async_exit(attempt.pop_all())
                    return exported, places
        return None

    async def _place(
        self, check: ShapeCheck, exported: ExportedSnapshot, places: dict[str, PostgresAt]
    ) -> bool:
        relations = [leaf.relation for leaf in check.facts.leaves]
        try:
            places[check.shape.name] = PostgresAt(check.facts, await exported.parts(relations), exported.name)
            # They are locked now: what is still as it was stays so.
            table = check.shape.table
            if (await self._catalog.facts([table])).get(table) != check.facts:
                raise CannotCompare(
                    f"{check.shape.table} was altered or truncated meanwhile. Fix: verify again"
                )
        except PenstockError as error:
            check.problem = str(error)
        return check.problem is None
