"""What tasks have published, put together for one manifest."""

from __future__ import annotations

from penstock.kinesis.aws.outcome import Entry, Taken
from penstock.kinesis.marked.manifest import ShardRange, TableMark
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.tally import MOST_TABLES, Records, Tally
from penstock.lake.stream.parts import Part, together
from penstock.model.change import Truncate
from penstock.model.relation import Relation
from penstock.model.stream_position import History

ORDERS = Relation("public", "orders")


def at(shard: str, sequence: str) -> Taken:
    return Taken.of([Entry(shard=shard, sequence=sequence)])


def event(lsn: int, *, truncates: bool = False) -> ChangeEvent:
    return ChangeEvent(
        1, b"{}", "k", 10, lsn, 0, 0.0, table=Truncate(ORDERS, lsn, 0) if truncates else ORDERS
    )


def test_ranges_go_by_number_and_counts_add_up() -> None:
    one, other = Tally(), Tally()
    one.add(Records.of([event(5, truncates=True)], at("s0", "99")))
    one.add(Records.of([event(6)], at("s1", "7")))
    other.add(Records.of([event(7, truncates=True)], at("s0", "100")))
    history = History(1, {})
    part = together([Part.of(one, history), Part.of(other, history)])
    assert part == Part(
        3,
        30,
        {"s0": ShardRange("99", "100", 2), "s1": ShardRange("7", "7", 1)},
        {"public.orders": TableMark(3, "00000001.0000000000000007.000000000001")},
    )


def test_no_part_and_too_many_tables() -> None:
    assert together([]) == Part()
    assert Part.decode(Part(1, 2, {"s": ShardRange("1", "2", 3)}, "*").encode()).shards["s"].count == 3
    many = [Part(1, 1, {}, {f"public.t{number}": TableMark(1, None)}) for number in range(MOST_TABLES + 1)]
    assert together(many).tables == "*"
    assert together([Part(tables="*"), Part(tables={"public.t": TableMark(1, None)})]).tables == "*"
