"""Doubts about the rows of a table: what is compared, what only a snapshot can answer, and what fails."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.errors import ConnectionFailed
from penstock.model.relation import Relation
from penstock.model.shape import Shape
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.snapshot.content import Content
from penstock.postgres.snapshot.export import SnapshotStale
from penstock.shapes.flushing import table_watch as module
from penstock.shapes.flushing.table_watch import TableWatch
from penstock.shapes.following.rewrites import Doubt

TABLE = Relation("public", "t")
TREE = Tree(Member(TABLE, 1, 1, "x"))
LOOK, CUT = 100, 200


def doubt(name: str) -> Doubt:
    return Doubt(TABLE, Member(Relation("public", name), 1, 1, "x"), LOOK, f"{name} was rewritten")


ONE, TWO = doubt("one"), doubt("two")


class Snapshot:
    """One of the server: each table has three rows, or is not as the snapshot knows it."""

    cut_lsn = CUT

    def __init__(self, site: Site) -> None:
        self._site = site

    async def content(self, relation: Relation) -> Content:
        self._site.did.append(f"scan {relation.table}")
        if relation in self._site.stale:
            raise SnapshotStale("it was truncated")
        return Content(CUT, 1, 1, 3, 0)


class Site:
    """Stands for the catalog, the collector, Work, Removals and Cuts; writes down who does what."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.again: list[SnapshotAgain] = []
        self.doubts: list[Doubt] = []
        self.departures: list[object] = []
        self.passed = math.inf
        self.hopeless: list[Doubt] = []
        self.differ: list[Doubt] = []
        self.stale: set[Relation] = set()
        self.attempts: list[Exception] = []
        """What the next attempts at a cut raise."""
        self.transactions: list[str] = []
        """What is said of those that are open; they end when `transactions_over` is set."""
        self.transactions_over = asyncio.Event()
        self.transactions_over.set()
        self.collector, self.slot_plugin = self, "wal2json"
        one: Any = self
        self.watch = TableWatch(
            [Shape(name="a", table=TABLE)],
            catalog=one,
            ledger=one,
            work=one,
            removals=one,
            snapshot_again=self._snapshot_again,
            parameters={},
        )

    # The catalog, Removals and Work
    async def look(self, tables: set[Relation]) -> tuple[list[Tree], int, int]:
        return [TREE], LOOK, LOOK

    async def note_looks(self) -> None:
        pass

    def facts(self, shape: str) -> TableFacts:
        return TableFacts(TREE, ())

    def is_stopped(self, shape: str) -> bool:
        return False

    # The collector
    def check(self, trees: Sequence[Tree], lsn: int, before: int) -> list[SnapshotAgain]:
        return []

    def has_passed(self, lsn: int) -> bool:
        return self.passed >= lsn

    def is_hopeless(self, doubt: Doubt) -> bool:
        return doubt in self.hopeless

    def expected_rows(self, doubt: Doubt) -> int:
        return 3

    def settle(self, doubt: Doubt, content: Content) -> list[SnapshotAgain]:
        assert self.has_passed(content.cut_lsn), "the stream's rows are not those at the cut yet"
        self.did.append(f"settle {doubt.member.relation.table}")
        self.doubts.remove(doubt)
        return [SnapshotAgain("a", doubt.suspicion)] if doubt in self.differ else []

    def give_up(self, doubt: Doubt) -> list[SnapshotAgain]:
        self.did.append(f"give up {doubt.member.relation.table}")
        self.doubts.remove(doubt)
        return [SnapshotAgain("a", doubt.suspicion)]

    # Cuts
    async def attempt(self, stack: AsyncExitStack) -> Snapshot:
        self.did.append("cut")
        if self.attempts:
            raise self.attempts.pop(0)
        return Snapshot(self)

    async def transactions_end(self, parameters: object, say: Callable[[str], None]) -> None:
        for sentence in self.transactions:
            say(sentence)
        await self.transactions_over.wait()

    async def _snapshot_again(self, again: Sequence[SnapshotAgain]) -> None:
        self.again += again

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        self._running = asyncio.create_task(self.watch.run())
        try:
            async with asyncio.timeout(10):
                yield
        finally:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            assert not self._running.done(), self._running
            await asyncio.sleep(0)

    async def settled(self) -> None:
        """Watch until nothing is in doubt."""
        async with self.watching():
            await self.until(lambda: not self.doubts)
            looks = self.watch.looks
            await self.until(lambda: self.watch.looks > looks + 1)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("_LOOK_EVERY_S", "_AFTER_FAILURE_S", "_LOOK_AT_STREAM_S"):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(module, "Cuts", lambda ledger, *_: ledger)
    site = Site()
    monkeypatch.setattr(module, "transactions_end", site.transactions_end)
    return site


@pytest.mark.parametrize("differ", [False, True])
async def test_rows_are_compared_and_only_those_that_differ_mean_a_snapshot(site: Site, differ: bool) -> None:
    site.doubts = [ONE, TWO]
    site.differ = [ONE] if differ else []
    with capture_logs() as said:
        await site.settled()
    assert site.did == ["cut", "scan one", "scan two", "settle one", "settle two"]
    assert site.again == ([SnapshotAgain("a", "one was rewritten")] if differ else [])
    events = [(line["event"], line["table"]) for line in said]
    assert events[:2] == [("comparison_begins", "public.one"), ("comparison_begins", "public.two")]
    assert events[2:] == [
        ("rows_differ" if differ else "rows_compared", "public.one"),
        ("rows_compared", "public.two"),
    ]


async def test_what_no_rows_could_prove_wrong_is_not_scanned(site: Site) -> None:
    site.doubts, site.hopeless = [ONE, TWO], [ONE]
    with capture_logs() as said:
        await site.settled()
    assert site.did == ["give up one", "cut", "scan two", "settle two"]
    assert site.again == [SnapshotAgain("a", "one was rewritten")]
    assert [line["detail"] for line in said if line["event"] == "comparison_left_out"] == [
        "one was rewritten"
    ]


async def test_where_all_is_hopeless_no_cut_is_taken(site: Site) -> None:
    site.doubts, site.hopeless = [ONE], [ONE]
    await site.settled()
    assert site.did == ["give up one"]


async def test_the_look_is_waited_for_but_not_for_ever(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.doubts, site.passed = [ONE], LOOK - 1
    async with site.watching():
        await site.until(lambda: site.watch.looks > 5)
        assert site.did == [], "a TRUNCATE that explains it may still be on its way"
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    site.watch._settling = None
    async with site.watching():
        await site.until(lambda: "scan one" in site.did)
    assert site.did == ["cut", "scan one"]


async def test_rows_count_only_when_the_stream_has_passed_the_cut(site: Site) -> None:
    site.doubts, site.passed = [ONE], LOOK
    async with site.watching():
        await site.until(lambda: "scan one" in site.did)
        looks = site.watch.looks
        await site.until(lambda: site.watch.looks > looks + 5)
        assert site.did == ["cut", "scan one"]
        site.passed = CUT
        await site.until(lambda: not site.doubts)
    assert site.did == ["cut", "scan one", "settle one"]


async def test_a_table_that_is_not_as_in_the_snapshot_is_looked_at_again(site: Site) -> None:
    site.doubts, site.stale = [ONE, TWO], {ONE.member.relation}
    async with site.watching():
        await site.until(lambda: site.doubts == [ONE])
        site.stale.clear()
        await site.until(lambda: not site.doubts)
    assert site.did[:4] == ["cut", "scan one", "scan two", "settle two"]
    assert site.did[-3:] == ["cut", "scan one", "settle one"]
    assert site.again == []


async def test_a_doubt_that_ends_while_transactions_are_open_is_not_scanned(site: Site) -> None:
    site.doubts = [ONE, TWO]
    site.transactions_over.clear()
    with capture_logs() as said:
        async with site.watching():
            await site.until(lambda: any(line["event"] == "comparison_begins" for line in said))
            looks = site.watch.looks
            await site.until(lambda: site.watch.looks > looks + 3)
            site.doubts.remove(ONE)
            site.transactions_over.set()
            await site.until(lambda: not site.doubts)
    assert site.did == ["cut", "scan two", "settle two"]
    assert len([line for line in said if line["event"] == "comparison_begins"]) == 2, "one at a time"


async def test_a_cut_that_does_not_come_is_tried_for_ever(site: Site) -> None:
    site.doubts, site.attempts = [ONE], [TimeoutError() for _ in range(3 * module._ATTEMPTS)]
    await site.settled()
    assert site.did == ["cut"] * (3 * module._ATTEMPTS + 1) + ["scan one", "settle one"]
    assert site.again == []


async def test_too_many_failures_in_a_row_leave_it_to_snapshots(site: Site) -> None:
    site.doubts = [ONE, TWO]
    site.attempts = [ConnectionFailed("refused") for _ in range(module._ATTEMPTS)]
    with capture_logs() as said:
        await site.settled()
    failures = [line for line in said if line["event"] == "rows_not_compared"]
    assert len(failures) == module._ATTEMPTS
    assert (failures[0]["tables"], failures[0]["detail"]) == (["public.one", "public.two"], "refused")
    assert site.did == ["cut"] * module._ATTEMPTS + ["give up one", "give up two"]
    assert [each.reason for each in site.again] == ["one was rewritten", "two was rewritten"]


async def test_a_comparison_in_between_forgets_failures(site: Site) -> None:
    failures: list[Exception] = [ConnectionFailed("refused") for _ in range(module._ATTEMPTS - 1)]
    site.doubts, site.attempts = [ONE], [*failures]
    await site.settled()
    site.doubts, site.attempts = [TWO], [*failures]
    await site.settled()
    assert site.again == []


async def test_who_is_waited_for_is_said_once_and_after_some_time_to_whoever_asks(site: Site) -> None:
    assert site.watch.stalled(time.monotonic(), after_s=0.0) is None, "nothing is in doubt"
    site.doubts, site.transactions = [ONE], ["it waits for pid 7", "it waits for pid 8"]
    site.transactions_over.clear()
    with capture_logs() as said:
        async with site.watching():
            await site.until(lambda: any(line["event"] == "comparison_waits" for line in said))
            now = time.monotonic()
            assert site.watch.stalled(now, after_s=60.0) is None
            assert site.watch.stalled(now + 60.0, after_s=60.0) == (
                "the rows of public.one could not be compared for 60 s: it waits for pid 8"
            )
            site.transactions_over.set()
            await site.until(lambda: not site.doubts)
    assert [line["detail"] for line in said if line["event"] == "comparison_waits"] == ["it waits for pid 7"]
    assert site.watch.stalled(now + 60.0, after_s=60.0) is None


async def test_a_comparison_that_waits_for_nobody_may_take_ten_times_as_long(site: Site) -> None:
    site.doubts, site.passed = [ONE], LOOK
    async with site.watching():
        await site.until(lambda: "scan one" in site.did)
        now = time.monotonic()
        assert site.watch.stalled(now + 500.0, after_s=60.0) is None
        sentence = site.watch.stalled(now + 700.0, after_s=60.0)
    assert sentence is not None
    assert sentence.endswith("the comparison does not end")
