from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.changelog.log import ChangeLog
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
from penstock.shapes.feed.collector import Collector
from penstock.shapes.feed.ledger import Ledger
from penstock.shapes.feed.log_writer import LogWriter
from penstock.shapes.pace.flush_plan import FlushPlan
from penstock.shapes.pace.flush_tracker import FlushTracker
from penstock.shapes.pace.held import Held

EVENTS = Relation("public", "events")
COLUMNS = ("id integer", "day integer")


class Line:
    """Sends some frames, and then nothing."""

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = [memoryview(frame) for frame in frames]
        self.is_read = asyncio.Event()

    async def read(self) -> list[memoryview]:
        frames, self._frames = self._frames, []
        if not frames:
            self.is_read.set()
            await asyncio.Event().wait()
        return frames

    def send_status(self, *, write: int, flush: int, reply_requested: bool = False) -> None:
        pass


class Site:
    """A reader over such a line, with a catalog that is asked and a list of what was said."""

    def __init__(self, directory: Path, frames: Sequence[bytes], catalog: dict[Relation, list[Found | None]]):
        self.line = Line(frames)
        self.asked: list[Relation] = []
        self.again: list[SnapshotAgain] = []
        self._catalog = catalog
        walk = FrameWalk(Wal2Json(), confirmed_lsn=1, needs_lsn=True)
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
            log=ChangeLog(create_run(directory, "run")),
            tracker=tracker,
            plan=FlushPlan(held=held),
        )
        self.ledger.add("events", interval_s=0.0, held=BEFORE_ALL, now=0.0)
        self._reader = LogWriter(
            source=self.line,
            left_out=set(),
            ledger=self.ledger,
            look_up=self._look_up,
            note_again=self._note,
            snapshot_again=self._note,
            on_commits=lambda: None,
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

    async def _note(self, again: Sequence[SnapshotAgain]) -> None:
        self.again += again

    async def read_all(self) -> float:
        """Read until the line is silent; returns how long that took."""
        began = time.monotonic()
        task = asyncio.create_task(self._reader.run())
        async with asyncio.timeout(30):
            await self.line.is_read.wait()
        task.cancel()
        await asyncio.wait([task])
        self.ledger.log.close()
        return time.monotonic() - began


def frames(tables: Sequence[Relation], columns: Sequence[str] = COLUMNS) -> list[bytes]:
    """A transaction of one row for each table."""
    found = []
    pairs = [each.split() for each in columns]
    cells = ",".join(f'{{"name":"{name}","type":"{kind}","value":1}}' for name, kind in pairs)
    for number, table in enumerate(tables, start=1):
        ends = f'"lsn":"{format_lsn(1000 * number)}","nextlsn":"{format_lsn(1000 * number + 50)}"'
        row = f'"schema":"{table.schema}","table":"{table.table}","columns":[{cells}]'
        texts = (f'{{"action":"B",{ends}}}', f'{{"action":"I",{row}}}', f'{{"action":"C",{ends}}}')
        found += [struct.pack("!cqqq", b"w", 0, 0, 0) + text.encode() for text in texts]
    return found


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
