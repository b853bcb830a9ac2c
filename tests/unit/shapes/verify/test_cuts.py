"""What is known of a shape while it is compared; and waiting for the service to have passed a cut."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
import pytest
from psycopg import AsyncConnection

from penstock.lake.comparison import Comparison, Counts, Difference, Verdict
from penstock.lake.errors import CannotCompare
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.slot.state import SlotState
from penstock.shapes.verify import cuts as module
from penstock.shapes.verify.cuts import SHOWN, Led, Passing, ShapeCheck

ORDERS = Relation("public", "orders")
FACTS = TableFacts(Tree(Member(ORDERS, 1, 1, "layout")), ())
SLOT = SlotState("s", "logical", "wal2json", "db", False, None, 0x300, 0x200, "reserved", None, "db", 10)
KEYS = pa.table({"id": [1, 2, 3]})


class Compared:
    """Stands for a Comparison with so many different keys."""

    def __init__(self, different: int) -> None:
        self.counts = Counts(100, 100, 5, different)
        self.asked: list[int] = []
        self.closed = 0

    def first(self, most: int, *, show_values: bool) -> list[Difference]:
        self.asked.append(most)
        return [Difference(Verdict.DIFFERENT, {"id": str(number)}) for number in range(most)][
            : self.counts.different
        ]

    def close(self) -> None:
        self.closed += 1


def check() -> ShapeCheck:
    return ShapeCheck(Shape("a", ORDERS), FACTS, counts=Counts(100, 99))


class TestShapeCheck:
    def test_verdicts_add_up_and_rows_are_counted_once(self) -> None:
        one = check()
        for different in (7, 0, 8):
            one.add(cast(Comparison, Compared(different)), show_values=False)

        assert one.counts == Counts(100, 99, 15, 15)
        assert len(one.result().first) == SHOWN

    def test_no_more_keys_are_asked_for_than_are_shown(self) -> None:
        one, parts = check(), [Compared(7), Compared(0), Compared(8), Compared(9)]
        for part in parts:
            one.add(cast(Comparison, part), show_values=False)

        assert [part.asked for part in parts] == [[SHOWN], [], [SHOWN - 7], []]
        assert [part.closed for part in parts] == [1, 1, 1, 1], "Spark's memory is given back each time"

    def test_keys_that_are_open_count_unless_it_could_not_be_compared(self) -> None:
        one = check()
        assert one.result().changing == 0
        one.keys = KEYS
        assert one.result().changing == 3
        one.problem = "the table is gone"
        assert one.result().changing == 0


class TestPassing:
    def passing(self, ceilings: list[int], timeout_s: float = 60.0) -> Passing:
        led = Led("s", 42, lambda: ceilings.pop(0) if len(ceilings) > 1 else ceilings[0])
        return Passing(cast(AsyncConnection, self), led, timeout_s, lambda _: None)

    @pytest.mark.parametrize(
        ("slot", "ceiling", "lsn"),
        [
            (SLOT, 0, 0x300),
            (SLOT, 0x400, 0x400),
            (None, 0x400, 0x400),
            (SLOT._replace(confirmed_flush_lsn=None), 0x400, 0x400),
        ],
        ids=["the slot is there", "the registry is further", "no slot: a stream is read", "a new slot"],
    )
    async def test_the_slot_or_the_registry_says_it(
        self, monkeypatch: pytest.MonkeyPatch, slot: SlotState | None, ceiling: int, lsn: int
    ) -> None:
        async def read_slot(*_: object) -> SlotState | None:
            return slot

        monkeypatch.setattr(module, "read_slot", read_slot)
        await self.passing([ceiling]).reach(lsn)
        with pytest.raises(CannotCompare, match="raise --timeout"):
            await self.passing([ceiling], timeout_s=-1.0).reach(lsn + 1)

    @pytest.mark.parametrize(
        ("pid", "holder", "runs"), [(None, None, False), (4711, None, True), (None, 4712, True)]
    )
    async def test_who_reads_the_slot_or_holds_the_lock_runs(
        self, monkeypatch: pytest.MonkeyPatch, pid: int | None, holder: int | None, runs: bool
    ) -> None:
        async def read_slot(*_: object) -> SlotState:
            return SLOT._replace(active_pid=pid)

        async def lock_holder(_session: object, key: int) -> int | None:
            assert key == 42
            return holder

        monkeypatch.setattr(module, "read_slot", read_slot)
        monkeypatch.setattr(module, "lock_holder", lock_holder)
        assert await self.passing([0]).is_running() is runs
