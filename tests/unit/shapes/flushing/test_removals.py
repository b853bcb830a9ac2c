"""When the rows of a partition that is gone are deleted from which table, and what the registry knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from penstock.errors import PenstockError
from penstock.model.log_offset import OP_INFINITY, LogOffset
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.feed.collector import Collector
from penstock.shapes.flushing.removals import Removals
from penstock.shapes.following.departures import Departure
from penstock.shapes.registry.registry import Registry, RegistryError, ShapeEntry

T = Relation("public", "t")
TREE = Tree(Member(T, 1, 0, "a"), is_partitioned=True)
GONE = Departure(T, Relation("public", "t_old"), 2, (), frozenset(), frozenset(), 50, 100)


class Desk:
    """Removals for two shapes of one table, with what they ask told by the test."""

    def __init__(self) -> None:
        self.passed = True
        self.awaiting: set[str] = set()
        self.copying: set[str] = set()
        self.parked: set[str] = set()
        self.flushed: dict[str, int] = {}
        """Of those that are behind."""
        self.answers: dict[str, bool | PenstockError] = {"a": True, "b": True}
        self.removed: list[str] = []
        self.open = [GONE]
        self.departed_again: list[SnapshotAgain] = []
        self.anew: list[SnapshotAgain] = []
        self.seen: tuple[Tree, int] | None = (TREE, 90)
        self.offsets = {"a": 80, "b": 80}
        facts = TableFacts(TREE, ())
        self.registry = Registry("1", 1, "slot", 0, {n: ShapeEntry(n, None, facts) for n in "ab"})
        self.writes = 0
        ledger = SimpleNamespace(
            collector=self,
            plan=SimpleNamespace(
                awaits_snapshot=self.awaiting.__contains__, runs_snapshot=self.copying.__contains__
            ),
            tracker=SimpleNamespace(progress=self.progress),
            offsets=lambda: self.offsets,
            is_parked=self.parked.__contains__,
        )
        self.removals = Removals(
            [Shape("a", T), Shape("b", T), Shape("other", Relation("public", "other"))],
            ledger=cast(Any, ledger),
            work=cast(Any, SimpleNamespace(remove=self.remove)),
            keeper=cast(Any, self),
            snapshot_again=self.snapshot_again,
        )

    def progress(self, shape: str) -> object:
        lsn = self.flushed.get(shape)
        return None if lsn is None else SimpleNamespace(last_flushed=LogOffset(lsn, OP_INFINITY))

    async def remove(self, shape: str, _departure: Departure, _collector: Collector) -> bool:
        answer = self.answers[shape]
        if isinstance(answer, PenstockError):
            raise answer
        self.removed.append(shape)
        return answer

    async def snapshot_again(self, again: Sequence[SnapshotAgain]) -> None:
        self.anew.extend(again)

    async def update(self, change: Callable[[Registry], Registry]) -> None:
        self.registry = change(self.registry)
        self.writes += 1

    @property
    def departures(self) -> list[Departure]:
        return list(self.open)

    def has_passed(self, lsn: int) -> bool:
        assert lsn == 100
        return self.passed

    def departed(self, departure: Departure) -> list[SnapshotAgain]:
        self.open.remove(departure)
        return self.departed_again

    def copy_after_all(self, departure: Departure) -> list[SnapshotAgain]:
        self.open.remove(departure)
        return [SnapshotAgain(name, "after all") for name in "ab"]

    def seen_as(self, table: Relation) -> tuple[Tree, int] | None:
        return self.seen if table == T else None


async def test_every_table_is_rid_of_them_and_then_it_has_departed() -> None:
    desk = Desk()
    await desk.removals.advance()
    assert (desk.removed, desk.open, desk.anew) == (["a", "b"], [], [])


async def test_nothing_is_deleted_before_the_stream_has_passed_the_look() -> None:
    desk = Desk()
    desk.passed = False
    await desk.removals.advance()
    assert (desk.removed, desk.open) == ([], [GONE])


async def test_a_table_that_is_behind_is_waited_for_alone() -> None:
    """A reader would see rows gone that Postgres still had there."""
    desk = Desk()
    desk.flushed["a"] = 99
    await desk.removals.advance()
    assert (desk.removed, desk.open) == (["b"], [GONE])
    desk.flushed["a"] = 100
    await desk.removals.advance()
    assert (desk.removed, desk.open) == (["b", "a"], []), "each once"


async def test_a_copy_that_runs_is_waited_for() -> None:
    """It may have been cut before the partition went."""
    desk = Desk()
    desk.awaiting.add("a")
    desk.copying.add("a")
    await desk.removals.advance()
    assert (desk.removed, desk.open) == (["b"], [GONE])
    desk.copying.clear()
    await desk.removals.advance()
    assert (desk.removed, desk.open) == (["b"], []), "the next one is cut later"


async def test_a_copy_that_waits_for_its_cut_holds_nobody() -> None:
    """It is parked, perhaps for ever; and it has the table's turn."""
    desk = Desk()
    desk.awaiting.add("a")
    desk.copying.add("a")
    desk.parked.add("a")
    await desk.removals.advance()
    assert (desk.removed, desk.open) == (["b"], [])


async def test_rows_that_can_not_be_told_apart_are_copied() -> None:
    desk = Desk()
    desk.answers["a"] = False
    await desk.removals.advance()
    assert (desk.removed, desk.open, desk.anew[0].reason) == (["a"], [], "after all")


async def test_a_change_under_its_name_after_all_was_deleted() -> None:
    desk = Desk()
    desk.departed_again = [SnapshotAgain("a", "changed")]
    await desk.removals.advance()
    assert desk.anew == desk.departed_again


async def test_failures_are_said_and_have_an_end() -> None:
    desk = Desk()
    desk.answers["a"] = PenstockError("no space left")
    with capture_logs() as said:
        for _ in range(11):
            await desk.removals.advance()
        assert desk.open == [GONE]
        await desk.removals.advance()
    assert {line["event"] for line in said} == {"rows_not_removed"}
    assert (desk.open, len(desk.anew)) == ([], 2)


async def test_a_registry_that_fails_ends_the_leadership() -> None:
    desk = Desk()
    desk.answers["a"] = RegistryError("overtaken")
    with pytest.raises(RegistryError):
        await desk.removals.advance()


@pytest.mark.parametrize(
    ("known", "offset", "looked", "noted"),
    [
        (None, 80, 90, 90),
        (80, 80, 90, 90),
        # The table has later changes than the look.
        (None, 90, 90, None),
        # Known already, though not as late.
        (85, 80, 90, 85),
    ],
)
async def test_a_look_is_noted_if_it_says_more(
    known: int | None, offset: int, looked: int, noted: int | None
) -> None:
    desk = Desk()
    entry = structs.replace(desk.registry.shapes["a"], looked_lsn=known)
    desk.registry = Registry("1", 1, "slot", 0, {"a": entry})
    desk.offsets, desk.seen = {"a": offset}, (TREE, looked)
    await desk.removals.note_looks()
    assert desk.registry.shapes["a"].looked_lsn == noted
    assert desk.writes == (noted == looked)


@pytest.mark.parametrize(
    "seen",
    [
        None,
        # The registry doesn't know this one yet.
        (TREE._replace(partitions=(Member(T, 9, 9, "a"),)), 90),
        (TREE._replace(is_partitioned=False), 90),
    ],
)
async def test_a_look_at_another_tree_says_nothing(seen: tuple[Tree, int] | None) -> None:
    desk = Desk()
    desk.seen = seen
    await desk.removals.note_looks()
    assert desk.writes == 0


async def test_a_table_that_is_behind_is_not_vouched_for() -> None:
    desk = Desk()
    desk.flushed = {"a": 85, "b": 85}
    await desk.removals.note_looks()
    assert desk.writes == 0


async def test_a_table_that_does_not_count_was_not_seen() -> None:
    desk = Desk()
    desk.registry = desk.registry.awaiting("a", "new").awaiting("b", "new")
    await desk.removals.note_looks()
    assert desk.writes == 0
