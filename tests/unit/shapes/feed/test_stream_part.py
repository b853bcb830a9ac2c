"""Parts of a stream: what a shape takes of a place, what can't be applied, and what is read once."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pyarrow as pa
import pytest

from penstock.kinesis.read.errors import RecordsUnusable
from penstock.kinesis.read.marked_ranges import MarkedTask
from penstock.kinesis.read.marked_stream import StreamAddress
from penstock.lake.ports import SharedPart
from penstock.model.relation import Relation
from penstock.shapes.feed.stream_part import SCHEMA, RecentBlocks, StreamBlock, StreamPart, parts_of
from penstock.shapes.pace.held import whole

ADDRESS = StreamAddress("changes", "changes", "slot", "eu-west-1")
A, B = Relation("public", "a"), Relation("public", "b")
TASK = MarkedTask((), ())


def part(*relations: Relation) -> StreamPart:
    """Behind 10."""
    return StreamPart(ADDRESS, (TASK,), frozenset(relations), whole(10), whole(99), 5)


def batch(*rows: tuple[str, str, int]) -> pa.RecordBatch:
    columns = zip(*[(name, action, lsn, 0, b"{}") for name, action, lsn in rows], strict=True)
    return pa.RecordBatch.from_arrays([pa.array(list(column)) for column in columns], schema=SCHEMA)


def test_a_part_takes_its_own_tables_behind_what_is_held() -> None:
    found = part(A).select(batch(("public.a", "I", 10), ("public.a", "U", 11), ("public.b", "I", 12)))
    assert found.to_pydict() == {"tx_offset": [11], "op_offset": [0], "payload": [b"{}"]}
    assert part(A).behind(whole(11)).select(batch(("public.a", "U", 11))).num_rows == 0
    assert part(A).behind(whole(5)).after == whole(10)


def test_a_part_of_a_block_ends_where_it_is_told() -> None:
    found = part(A).select(batch(("public.a", "I", 99), ("public.a", "I", 100), ("public.a", "Q", 101)))
    assert found["tx_offset"].to_pylist() == [99]


def test_a_change_that_is_not_there_has_to_be_copied() -> None:
    with pytest.raises(RecordsUnusable, match="in quarantine"):
        part(A).select(batch(("public.a", "Q", 11)))
    assert part(A).select(batch(("public.b", "Q", 11), ("public.a", "Q", 9))).num_rows == 0


def test_a_truncate_of_one_table_is_applied_and_one_of_parts_is_not() -> None:
    assert part(A).select(batch(("public.a", "T", 11))).num_rows == 1
    with pytest.raises(RecordsUnusable, match="was truncated, at 0/B"):
        part(A, B).select(batch(("public.b", "T", 11)))


def test_it_travels_without_what_the_driver_keeps() -> None:
    kept = StreamPart(ADDRESS, (TASK,), frozenset([A]), whole(1), whole(2), 5, RecentBlocks())
    there = pickle.loads(pickle.dumps(kept))
    assert there.recent is None
    assert there.wanted == {A}
    assert isinstance(there, SharedPart)


@pytest.mark.parametrize(("readers", "place"), [(1, ""), (2, "block 7")])
def test_a_large_block_is_shared_if_several_read_it(readers: int, place: str) -> None:
    block = StreamBlock((TASK, TASK), whole(99), 2 << 20, "block 7", readers)
    found = parts_of(ADDRESS, RecentBlocks(), block, frozenset([A]), whole(1))
    assert [(each.place, each.recent) for each in found] == [(place, None)] * 2


def test_a_small_block_is_read_by_the_driver() -> None:
    recent = RecentBlocks()
    (found,) = parts_of(
        ADDRESS, recent, StreamBlock((TASK, TASK), whole(99), 9, "", 3), frozenset(), whole(1)
    )
    assert (found.recent, found.tasks, found.wanted_bytes) == (recent, (TASK, TASK), 9)


class TestRecentBlocks:
    table = pa.table({"payload": [b"x" * 100]})

    def test_those_who_ask_together_read_once(self) -> None:
        recent, may_end, loads = RecentBlocks(), Event(), 0

        def load() -> pa.Table:
            nonlocal loads
            loads += 1
            assert may_end.wait(10)
            return self.table

        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(recent.read, (TASK,), load) for _ in range(3)]
            may_end.set()
            assert [each.result(10) for each in asked] == [self.table] * 3
        assert loads == 1

    def test_a_failure_is_everybody_s_and_the_next_tries_again(self) -> None:
        recent = RecentBlocks()

        def fail() -> pa.Table:
            raise RecordsUnusable("no")

        with pytest.raises(RecordsUnusable):
            recent.read((TASK,), fail)
        assert recent.read((TASK,), lambda: self.table) is self.table

    def test_only_some_bytes_are_kept(self) -> None:
        recent = RecentBlocks(most_bytes=250)
        loads: list[int] = []

        def read(number: int) -> None:
            def load() -> pa.Table:
                loads.append(number)
                return self.table

            recent.read((MarkedTask((), ()),) * (number + 1), load)

        for number in (0, 1, 2, 2, 0):
            read(number)
        assert loads == [0, 1, 2, 0]
