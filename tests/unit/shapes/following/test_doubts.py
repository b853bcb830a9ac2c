"""What is in doubt, what it costs to know the rows, and when nobody need ask the server."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from penstock.decoding.wal2json import Wal2Json
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.postgres.snapshot.content import Content
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Collector
from penstock.shapes.flushing import table_watch
from penstock.shapes.flushing.table_watch import TableWatch
from penstock.shapes.following import doubts as doubts_module
from penstock.shapes.following.doubts import Doubts
from penstock.shapes.following.rewrites import Doubt
from penstock.shapes.following.streamed_rows import row_hash

TABLES = [Relation("public", f"t{number}") for number in range(20)]
BUDGET = 20_000
TRUNCATE = b'{"action":"T","schema":"public","table":"t"}'


def insert(key: int, size: int = 100) -> bytes:
    cells = [
        {"name": "id", "type": "integer", "value": key},
        {"name": "v", "type": "text", "value": "x" * size},
    ]
    pk = [{"name": "id", "type": "integer"}]
    return json.dumps({"action": "I", "schema": "public", "table": "t", "columns": cells, "pk": pk}).encode()


def delete(key: int) -> bytes:
    pk = [{"name": "id", "type": "integer"}]
    old = [{"name": "id", "type": "integer", "value": key}]
    return json.dumps({"action": "D", "schema": "public", "table": "t", "identity": old, "pk": pk}).encode()


def doubt_of(table: Relation, oid: int = 1) -> Doubt:
    return Doubt(table, Member(table, oid, 7, "a"), 10, "it was rewritten", is_new=True)


def content(*keys: int, cut: int, size: int = 100) -> Content:
    return Content(cut, 1, 7, len(keys), sum(row_hash([str(key), "x" * size]) for key in keys))


def test_all_relations_together_keep_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts_module, "MOST_BYTES", BUDGET)
    doubts = Doubts(Wal2Json())
    for table in TABLES:
        doubts.follow(table, 1)
    doubts.raise_all(map(doubt_of, TABLES))
    for key in range(50):
        for table in TABLES:
            doubts.take(table, insert(key))
            doubts.committed(100 + key)
            kept = sum(rows.kept_bytes for rows in doubts._streamed.values())
            assert kept <= BUDGET, "a thousand rows of a hundred bytes are more"

    for table in TABLES:
        assert doubts.are_proved_wrong(doubt_of(table), content(*range(50), cut=150)), "rows were only added"
        assert doubts.expected_rows(doubt_of(table)) == 50


def test_the_largest_knows_less_and_the_others_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts_module, "MOST_BYTES", BUDGET)
    large, small = TABLES[:2]
    doubts = Doubts(Wal2Json())
    doubts.follow(large, 1)
    doubts.follow(small, 1)
    doubts.take(small, insert(1))
    for key in range(30):
        doubts.take(large, insert(key, 1000))
    doubts.committed(100)
    doubts.take(small, delete(1))
    doubts.committed(200)
    assert doubts.are_proved_wrong(doubt_of(small), content(cut=201))
    assert not doubts.is_hopeless(doubt_of(large))
    doubts.take(large, delete(1))
    doubts.committed(300)
    assert doubts.is_hopeless(doubt_of(large)), "which row that was nobody knows"
    assert doubts.is_hopeless(doubt_of(TABLES[2])), "not followed"


def test_what_is_passed_over_is_taken_where_it_is_followed_and_missed_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doubts_module, "_MOST_PASSED", 1)
    followed, missed, other, another = TABLES[:4]
    doubts = Doubts(Wal2Json())
    doubts.follow(followed, 1)
    doubts.pass_over(followed, insert(1))
    doubts.pass_over(missed, insert(1))
    doubts.committed(100)
    for table in (missed, other):
        doubts.follow(table, 150)
        doubts.take(table, insert(2))
    doubts.committed(200)
    assert doubts.are_proved_wrong(doubt_of(followed), content(1, cut=201))
    assert doubts.is_hopeless(doubt_of(missed)), "it wasn't empty at 150"
    assert doubts.are_proved_wrong(doubt_of(other), content(2, cut=201))

    doubts.pass_over(TABLES[5], insert(1))
    doubts.follow(another, 250)
    assert doubts.is_hopeless(doubt_of(another)), "nobody knows all that was missed"
    doubts.take(another, TRUNCATE)
    doubts.committed(300)
    assert doubts.are_proved_wrong(doubt_of(another), content(cut=301))


def test_what_can_not_be_read_may_be_of_any_relation() -> None:
    followed, later = TABLES[:2]
    doubts = Doubts(Wal2Json())
    doubts.follow(followed, 1)
    doubts.take(followed, insert(1))
    doubts.committed(100)
    doubts.pass_over(None, b"what is this")
    doubts.committed(200)
    doubts.follow(later, 250)
    assert doubts.are_proved_wrong(doubt_of(followed), content(1, cut=150))
    assert doubts.is_hopeless(doubt_of(followed))
    assert doubts.is_hopeless(doubt_of(later))


@pytest.mark.parametrize(("copied", "proved"), [(None, True), (99, True), (100, False), (150, False)])
def test_a_copy_may_hold_rows_that_the_stream_does_not_tell(copied: int | None, proved: bool) -> None:
    """Until the next TRUNCATE, which empties all tables alike."""
    table = TABLES[0]
    doubts = Doubts(Wal2Json())
    doubts.follow(table, 100)
    doubts.take(table, TRUNCATE)
    doubts.committed(100)
    assert doubts.are_proved_wrong(doubt_of(table), content(cut=300), copied) is proved
    doubts.take(table, TRUNCATE)
    doubts.committed(400)
    assert doubts.are_proved_wrong(doubt_of(table), content(cut=401), copied)


async def test_what_can_not_be_proved_needs_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is not even asked: here is none."""
    monkeypatch.setattr(table_watch, "_AFTER_FAILURE_S", 0.0)
    table = TABLES[0]
    tree = Tree(Member(table, 1, 1, "a"))
    collector = Collector(
        walk=FrameWalk(Wal2Json(), confirmed_lsn=10, needs_lsn=True),
        shapes={"a": table},
        trees=[tree],
        held={},
    )
    assert collector.check([tree._replace(table=tree.table._replace(filenode=2))], 50) == []
    (doubt,) = collector.doubts
    anew: list[SnapshotAgain] = []

    async def snapshot_again(again: Sequence[SnapshotAgain]) -> None:
        anew.extend(again)

    watch = TableWatch(
        [],
        catalog=cast(Any, SimpleNamespace(slot_plugin="wal2json")),
        ledger=cast(Any, SimpleNamespace(collector=collector)),
        work=cast(Any, None),
        removals=cast(Any, None),
        snapshot_again=snapshot_again,
        parameters={"host": "127.0.0.1", "port": 1},
    )
    assert not collector.is_hopeless(doubt), "a TRUNCATE may still be on its way"
    collector.take([memoryview(struct.pack("!cqqB", b"k", 50, 0, 0))], 0)
    assert collector.is_hopeless(doubt)

    with capture_logs() as said:
        async with asyncio.timeout(20):
            await watch._settle()

    assert [again.shape for again in anew] == ["a"]
    assert [line["event"] for line in said] == ["comparison_left_out"]
    assert not collector.doubts
