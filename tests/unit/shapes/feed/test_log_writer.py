from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.changelog.log import ChangeLog, LogLimits
from penstock.changelog.runs import create_run
from penstock.decoding.wal2json import Wal2Json
from penstock.model.log_offset import BEFORE_ALL
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Found, Member, Tree
from penstock.postgres.leader.answering import Answering
from penstock.postgres.leader.freshness import Freshness
from penstock.postgres.stream.feedback import Feedback
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed import log_writer as module
from penstock.shapes.feed.collector import Collector
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.feed.log_writer import LogWriter
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held

EVENTS = Relation("public", "events")
COLUMNS = ("id integer", "day integer")
LONG_S = 1e6


class Line:
    """Sends some frames, all at once or so many at a time, and then nothing."""

    def __init__(self, frames: Sequence[bytes], at_once: int | None) -> None:
        self._frames = [memoryview(frame) for frame in frames]
        self._at_once = at_once
        self.is_read = asyncio.Event()

    async def read(self) -> list[memoryview]:
        at_once = self._at_once or len(self._frames)
        frames, self._frames = self._frames[:at_once], self._frames[at_once:]
        if not frames:
            self.is_read.set()
            await asyncio.Event().wait()
        return frames

    def send_status(self, *, write: int, flush: int, reply_requested: bool = False) -> None:
        pass


class Site:
    """A reader over such a line, with a catalog that is asked and a list of what was said."""

    def __init__(
        self,
        directory: Path,
        frames: Sequence[bytes],
        catalog: dict[Relation, list[Found | None]],
        limits: LogLimits | None = None,
        at_once: int | None = None,
    ) -> None:
        self.line = Line(frames, at_once)
        self.asked: list[Relation] = []
        self.again: list[SnapshotAgain] = []
        self.left_out: set[Relation] = set()
        self.did: list[str] = []
        self._catalog = catalog
        self.walk = walk = FrameWalk(Wal2Json(), confirmed_lsn=1, needs_lsn=True)
        held = Held()
        collector = Collector(
            walk=walk,
            shapes={"events": EVENTS},
            trees=[Tree(Member(EVENTS, 1, 0, "a"), is_partitioned=True, columns=COLUMNS)],
            held=held,
        )
        tracker = FlushTracker(initial_lsn=1)
        self.ledger = Ledger(
            held=held,
            collector=collector,
            log=ChangeLog(create_run(directory, "run"), limits),
            tracker=tracker,
            plan=FlushPlan(held=held),
        )
        self.ledger.add("events", interval_s=LONG_S, held=BEFORE_ALL, now=0.0)
        self.writer = LogWriter(
            source=self.line,
            left_out=self.left_out,
            ledger=self.ledger,
            look_up=self._look_up,
            note_again=self._note_again,
            snapshot_again=self._snapshot_again,
            on_commits=self._on_commits,
            answering=Answering(
                walk,
                Feedback(line=self.line, tracker=tracker, received_lsn=lambda: 1, heartbeat_s=60.0),
                Freshness(limit_s=60.0, now=time.monotonic()),
            ),
        )

    async def _look_up(self, relation: Relation) -> Found | None:
        self.asked.append(relation)
        answers = self._catalog.get(relation, [None])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def _snapshot_again(self, again: Sequence[SnapshotAgain]) -> None:
        self.again += again

    async def _note_again(self, again: Sequence[SnapshotAgain]) -> None:
        self.again += again
        self.did.append("note")

    def _on_commits(self) -> None:
        self.did.append(f"{self.ledger.transactions} commits")

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.writer.run())
        async with asyncio.timeout(30):
            yield task
        task.cancel()
        await asyncio.wait([task])
        self.ledger.log.close()

    async def read_all(self) -> float:
        """Read until the line is silent; returns how long that took."""
        began = time.monotonic()
        async with self.reading():
            await self.line.is_read.wait()
        return time.monotonic() - began


def frames(tables: Sequence[Relation], columns: Sequence[str] = COLUMNS) -> list[bytes]:
    """A transaction of one row for each table."""
    return [
        frame for number, table in enumerate(tables, 1) for frame in transaction(number, row(table, columns))
    ]


def transaction(number: int, *changes: str) -> list[bytes]:
    ends = f'"lsn":"{format_lsn(1000 * number)}","nextlsn":"{format_lsn(1000 * number + 50)}"'
    texts = (f'{{"action":"B",{ends}}}', *changes, f'{{"action":"C",{ends}}}')
    return [struct.pack("!cqqq", b"w", 0, 0, 0) + text.encode() for text in texts]


def row(table: Relation, columns: Sequence[str] = COLUMNS) -> str:
    pairs = [each.split() for each in columns]
    cells = ",".join(f'{{"name":"{name}","type":"{kind}","value":1}}' for name, kind in pairs)
    return f'{{"action":"I","schema":"{table.schema}","table":"{table.table}","columns":[{cells}]}}'


def truncate(table: Relation) -> str:
    return f'{{"action":"T","schema":"{table.schema}","table":"{table.table}"}}'


SHORT_LIVED = [Relation("public", f"short_{number}") for number in range(20)]


@pytest.mark.parametrize(("columns", "asks"), [(COLUMNS, True), (("id integer",), False)])
async def test_tables_that_are_gone_hold_nobody_up(
    tmp_path: Path, columns: tuple[str, ...], asks: bool
) -> None:
    site = Site(tmp_path, frames(SHORT_LIVED, columns), {})
    took = await site.read_all()
    assert took < 2, "each of them was waited for"
    assert set(site.asked) == (set(SHORT_LIVED) if asks else set()), "no other can be a partition"
    assert site.again == []
    assert (site.ledger.transactions, site.ledger.changes) == (20, 0)


async def test_a_partition_that_is_not_visible_yet_is_waited_for(tmp_path: Path) -> None:
    june = Relation("public", "june")
    site = Site(tmp_path, frames([june]), {june: [None, None, Found((EVENTS,))]})
    await site.read_all()
    assert site.asked == [june] * 3
    assert site.ledger.changes == 1


@pytest.mark.parametrize(("at_once", "asks"), [(None, 1), (1, 2)])
async def test_a_truncate_of_a_table_that_is_gone_is_asked_for_and_not_waited_for(
    tmp_path: Path, at_once: int | None, asks: int
) -> None:
    """Once for all that were read together."""
    changes = [truncate(table) for table in SHORT_LIVED * 2]
    sent = [frame for number, each in enumerate(changes, 1) for frame in transaction(number, each)]
    site = Site(tmp_path, sent, {}, at_once=at_once)
    await site.read_all()
    assert site.asked == SHORT_LIVED * asks
    assert (site.again, site.ledger.transactions, site.ledger.changes) == ([], 40, 0)


async def test_a_truncate_that_comes_after_the_answer_is_asked_for_again(tmp_path: Path) -> None:
    """By then there may be a table of that name, and a copy of what it holds."""
    june = Relation("public", "june")
    sent = [*transaction(1, truncate(june)), *transaction(2, truncate(june))]
    site = Site(tmp_path, sent, {june: [None, Found((EVENTS,))]}, at_once=3)
    await site.read_all()
    assert site.asked == [june] * 2
    (again,) = site.again
    assert again.reason == "public.june, a partition of public.events, was truncated alone"


async def test_a_truncate_of_a_table_that_nobody_follows_is_asked_for_once(tmp_path: Path) -> None:
    other = Relation("public", "other")
    sent = [frame for number in range(1, 21) for frame in transaction(number, truncate(other))]
    site = Site(tmp_path, sent, {other: [Found(())]}, at_once=1)
    await site.read_all()
    assert (site.asked, site.again) == ([other], [])


async def test_rows_behind_a_truncate_of_a_partition_that_is_not_visible_yet(tmp_path: Path) -> None:
    """In one transaction: a partition is made, truncated and loaded."""
    june = Relation("public", "june")
    sent = transaction(1, truncate(june), row(june), row(june))
    site = Site(tmp_path, sent, {june: [None, None, Found((EVENTS,))]})
    await site.read_all()
    assert site.asked == [june] * 3
    assert (site.again, site.ledger.changes) == ([], 2)


async def test_everybody_is_woken_for_each_run_of_commits(tmp_path: Path) -> None:
    site = Site(tmp_path, frames([EVENTS] * 3), {})
    await site.read_all()
    assert site.did == ["3 commits"]
    assert (site.ledger.changes, site.asked) == (3, [])
    assert not site.writer.is_paused


async def test_a_full_buffer_is_written_before_more_is_read(tmp_path: Path) -> None:
    site = Site(tmp_path, frames([EVENTS] * 3), {}, LogLimits(min_free_bytes=0, buffer_bytes=1))
    await site.read_all()
    (segment,) = (tmp_path / "run").glob("*.arrow*")
    assert segment.stat().st_size > 0


@pytest.mark.parametrize("max_bytes", [8000, 1], ids=["of some transactions", "of less than a row"])
@pytest.mark.parametrize("at_once", [2, 3, 4])
async def test_a_full_log_is_not_read_into_between_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, max_bytes: int
) -> None:
    monkeypatch.setattr(module, "_LOOK_FOR_ROOM_S", 0.0)
    limits = LogLimits(min_free_bytes=0, max_bytes=max_bytes, segment_bytes=1, buffer_bytes=1)
    site = Site(tmp_path, frames([EVENTS] * 20), {}, limits, at_once)
    ledger = site.ledger
    paused_at = []
    async with site.reading():
        while not site.line.is_read.is_set():
            await asyncio.sleep(0.001)
            if not site.writer.is_paused:
                continue
            assert ledger.log.is_over_limit
            assert not site.walk.in_transaction, "the open one is read to its end"
            paused_at.append(ledger.transactions)
            # The flush that makes room need not wait for its interval.
            (start,) = ledger.plan.start(time.monotonic())
            await asyncio.to_thread(ledger.log.flush, time.monotonic())
            ledger.flushed(start.shape, 1000 * ledger.transactions, time.monotonic())
            await asyncio.to_thread(ledger.log.trim, ledger.tracker.droppable)
            while site.writer.is_paused:
                assert ledger.transactions == paused_at[-1]
                await asyncio.sleep(0)
    assert len(paused_at) > 1
    assert ledger.transactions == 20


async def test_changes_that_the_server_left_out_mean_a_snapshot_before_their_commit(tmp_path: Path) -> None:
    site = Site(tmp_path, frames([EVENTS]), {})
    site.left_out.add(EVENTS)
    await site.read_all()
    (again,) = site.again
    assert again.shape == "events"
    assert again.reason == "the server left out changes of public.events, which has no replica identity"
    assert (site.asked, site.left_out) == ([], set())


async def test_what_was_left_out_of_an_unknown_table_is_looked_up(tmp_path: Path) -> None:
    june, other = Relation("public", "june"), Relation("public", "other")
    site = Site(tmp_path, frames([EVENTS]), {june: [Found((EVENTS,))], other: [Found(())]})
    site.left_out |= {june, other}
    await site.read_all()
    assert set(site.asked) == {june, other}
    assert [each.shape for each in site.again] == ["events"], "nobody follows the other one"
