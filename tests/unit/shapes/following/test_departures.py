"""A partition is gone: when its rows are deleted by its bounds, and when only a copy is right."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence

import pytest

from penstock.decoding.wal2json import Wal2Json
from penstock.model.log_offset import OP_INFINITY, LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.postgres.catalog.partition_bounds import End, RangeBound
from penstock.postgres.catalog.table_tree import Found, Member, Tree
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Append, Collector
from penstock.shapes.following.departures import Departure
from penstock.shapes.following.rewrites import judge

T, OLD, NOW, NEXT, REST, DEEP = (
    Relation("public", name) for name in ("t", "t_old", "t_now", "t_next", "t_rest", "t_old_0")
)
GONE = "public.t_old, a partition of public.t, was detached or dropped"
NOT_APART = f"{GONE}, and its rows can't be told from those of others"


def leaf(relation: Relation, oid: int, bound: str) -> Member:
    return Member(relation, oid, oid, "a", toast=7, placed="1", parent=1, bound=bound)


ROOT = Member(T, 1, 0, "a", placed="1", split=("r", "n"))
OLD_ONE = leaf(OLD, 2, "FOR VALUES FROM (0) TO (10)")
NOW_ONE = leaf(NOW, 3, "FOR VALUES FROM (10) TO (20)")
NEXT_ONE = leaf(NEXT, 4, "FOR VALUES FROM (20) TO (30)")
REST_ONE = leaf(REST, 5, "DEFAULT")
BEFORE = Tree(ROOT, (OLD_ONE, NOW_ONE, REST_ONE), is_partitioned=True, columns=("id integer", "n integer"))
AFTER = BEFORE._replace(partitions=(NOW_ONE, REST_ONE))
WITHIN = (RangeBound(("n",), (End(0, "0"),), (End(0, "10"),), ("integer",)),)
DEPARTURE = Departure(T, OLD, 2, WITHIN, frozenset({OLD}), frozenset({T, NOW}), 50, 100)


def frames(commit_lsn: int, *relations: Relation) -> list[memoryview]:
    """A transaction that inserts into these."""
    lsn, end = format_lsn(commit_lsn), format_lsn(commit_lsn + 8)
    begin, commit = ({"action": action, "lsn": lsn, "nextlsn": end} for action in "BC")
    columns = [{"name": name, "type": "integer", "value": 1} for name in ("id", "n")]
    changes = [
        {"action": "I", "schema": each.schema, "table": each.table, "columns": columns} for each in relations
    ]
    header = struct.pack("!cqqq", b"w", 0, 0, 0)
    texts = [json.dumps(frame, separators=(",", ":")) for frame in (begin, *changes, commit)]
    return [memoryview(header + text.encode()) for text in texts]


def collector(held: Mapping[str, int] | None = None, looked: Mapping[str, int] | None = None) -> Collector:
    held = {"s": 10} if held is None else held
    return collector_of({name: LogOffset(lsn, OP_INFINITY) for name, lsn in held.items()}, looked)


def collector_of(held: Mapping[str, LogOffset], looked: Mapping[str, int] | None = None) -> Collector:
    return Collector(
        walk=FrameWalk(Wal2Json(), confirmed_lsn=10, needs_lsn=True),
        shapes={"s": T},
        trees=[BEFORE],
        held=held,
        looked=looked or {},
    )


def reasons(again: Sequence[tuple[str, str]]) -> list[str]:
    return [reason for _, reason in again]


def test_its_bounds_and_what_could_lie_there() -> None:
    found = judge(BEFORE, AFTER, 100, {}, 50)
    assert found.again == ""
    assert found.departures == (DEPARTURE,)


def test_with_all_below_it() -> None:
    """Nobody knows what a hash partition holds; but its parent is gone too."""
    parent = OLD_ONE._replace(filenode=0, split=("h", "id"))
    below = Member(DEEP, 6, 6, "a", parent=2, bound="FOR VALUES WITH (modulus 1, remainder 0)")
    before = BEFORE._replace(partitions=(parent, NOW_ONE, REST_ONE, below))
    (found,) = judge(before, AFTER, 100, {}, 50).departures
    assert found == DEPARTURE._replace(names=frozenset({OLD, DEEP}))
    only_below = judge(before, before._replace(partitions=(parent, NOW_ONE, REST_ONE)), 100, {}, 50)
    assert only_below.again.startswith("public.t_old_0, a partition of public.t, was detached or dropped")


def test_a_new_partition_beside_it_counts_unless_its_bounds_are_others() -> None:
    beside = judge(BEFORE, AFTER._replace(partitions=(NOW_ONE, REST_ONE, NEXT_ONE)), 100, {}, 50)
    assert beside.departures[0].others == {T, NOW, NEXT}
    over = NEXT_ONE._replace(bound="FOR VALUES FROM (5) TO (10)")
    overlapping = judge(BEFORE, AFTER._replace(partitions=(NOW_ONE, REST_ONE, over)), 100, {}, 50)
    assert overlapping.departures == (DEPARTURE,)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (
            BEFORE._replace(table=ROOT._replace(split=())),
            AFTER,
            f"{GONE}, and its bounds can't be told exactly in the lake",
        ),
        (
            BEFORE._replace(partitions=(OLD_ONE._replace(bound="DEFAULT"), NOW_ONE)),
            AFTER._replace(partitions=(NOW_ONE,)),
            f"{GONE}, and its bounds can't be told exactly in the lake",
        ),
        # As a registry has it that was written before bounds were read.
        (
            BEFORE._replace(partitions=(Member(OLD, 2, 2, "a"), NOW_ONE, REST_ONE)),
            AFTER,
            f"{GONE}, and its bounds can't be told exactly in the lake",
        ),
        (
            BEFORE,
            AFTER._replace(table=ROOT._replace(layout="b")),
            f"{GONE}, and columns were altered",
        ),
        (
            BEFORE,
            AFTER._replace(partitions=(NOW_ONE, REST_ONE, OLD_ONE._replace(oid=9))),
            f"{GONE}, and another has its name",
        ),
        (
            BEFORE,
            AFTER._replace(partitions=(NOW_ONE._replace(placed="2"), REST_ONE)),
            "public.t_now, a partition of public.t, was renamed or detached, and back, or got another owner",
        ),
    ],
)
def test_what_is_copied(before: Tree, after: Tree, why: str) -> None:
    found = judge(before, after, 100, {}, 50)
    assert (found.again, found.departures) == (why, ())


def test_a_quiet_one_is_deleted_and_its_name_is_nobodys_then() -> None:
    some = collector()
    some.check([BEFORE], 60, 50)
    some.take(frames(90, NOW), 0)
    assert some.check([AFTER], 100, 80) == []
    assert some.departures == [DEPARTURE]
    assert not some.is_certain
    assert some.tree_of(T, "s") == BEFORE, "who comes after a crash finds it too"
    assert some.seen_as(T) is None
    assert some.may_delete(DEPARTURE, "s")

    assert some.departed(DEPARTURE) == []

    assert (some.departures, some.is_certain) == ([], True)
    assert some.tree_of(T, "s") == AFTER
    assert some.seen_as(T) == (AFTER, 80)
    assert some.relations_of(T) == {T, NOW, REST}
    taken = some.take(frames(200, OLD), 0)
    assert taken.unknown == OLD, "somebody may have made one of that name"
    some.learn(OLD, Found())
    assert not any(isinstance(step, Append) for step in some.take(frames(200, OLD)[1:], 0).steps)


@pytest.mark.parametrize(
    ("at", "relation", "allowed"),
    [
        (40, OLD, True),
        (90, OLD, False),
        (90, REST, False),
        (90, NOW, True),
        (40, REST, True),
        (50, REST, False),
    ],
)
def test_changes_that_could_lie_there(at: int, relation: Relation, allowed: bool) -> None:
    some = collector()
    some.check([BEFORE], 60, 50)
    some.take(frames(at, relation), 0)
    again = some.check([AFTER], 100, 80)
    assert reasons(again) == ([] if allowed else [NOT_APART])
    assert some.departures == ([DEPARTURE] if allowed else [])


def test_changes_that_come_after_the_look() -> None:
    """The stream is behind; and a table may be flushed further before its turn comes."""
    for relation, is_harm in ((REST, True), (OLD, True), (NOW, False)):
        some = collector()
        some.check([BEFORE], 60, 50)
        some.check([AFTER], 100, 80)
        some.take(frames(150, relation), 0)
        assert some.may_delete(DEPARTURE, "s") is not is_harm


def test_others_bring_what_they_like_once_the_rows_are_deleted() -> None:
    for relation, expected in ((REST, []), (OLD, [NOT_APART])):
        some = collector()
        some.check([BEFORE], 60, 50)
        some.check([AFTER], 100, 80)
        assert some.may_delete(DEPARTURE, "s")
        some.take(frames(150, relation), 0)
        assert reasons(some.departed(DEPARTURE)) == expected
        assert some.departures == []


def test_a_partition_that_no_look_has_seen_counts() -> None:
    some = collector()
    some.check([BEFORE], 60, 50)
    assert some.take(frames(90, NEXT), 0).unknown == NEXT
    some.learn(NEXT, Found((T,)))
    some.take(frames(90, NEXT)[1:], 0)
    assert reasons(some.check([AFTER], 100, 80)) == [NOT_APART]


@pytest.mark.parametrize(
    ("held", "looked", "allowed"), [(40, 50, True), (50, 50, False), (40, 0, False), (60, 50, False)]
)
def test_while_the_service_was_stopped(held: int, looked: int, allowed: bool) -> None:
    """What the table holds of later changes than the look that had the partition, nobody sees again."""
    some = collector({"s": held}, {"s": looked})
    assert reasons(some.check([AFTER], 100, 80)) == ([] if allowed else [NOT_APART])
    assert some.departures == ([DEPARTURE] if allowed else [])


def test_a_table_that_is_copied_since_has_no_such_rows() -> None:
    for held, is_copied, may_delete in ((45, False, True), (70, False, False), (100, True, True)):
        tables = {"s": LogOffset(10, OP_INFINITY)}
        some = collector_of(tables)
        some.check([BEFORE], 60, 50)
        some.check([AFTER], 100, 80)
        tables["s"] = LogOffset(held, OP_INFINITY)
        some.copy_begins("s", held + 1)
        assert some.is_copied_since(DEPARTURE, "s") is is_copied
        assert some.may_delete(DEPARTURE, "s") is may_delete, "which changes were passed over isn't known"


def test_a_copy_that_begins_for_another_reason_ends_it() -> None:
    some = collector()
    some.check([BEFORE], 60, 50)
    some.check([AFTER], 100, 80)
    rewritten = AFTER._replace(partitions=(NOW_ONE._replace(filenode=9, layout="b"), REST_ONE))
    assert reasons(some.check([rewritten], 110, 100))[0].startswith("public.t_now was rewritten")
    assert some.departures == []
    assert some.copy_after_all(DEPARTURE) == [], "that is under way"


def test_one_that_was_in_doubt_is_copied() -> None:
    """Whether its rows were in the stream was never proved; its own bounds would say nothing of that."""
    some = collector()
    some.check([BEFORE], 60, 50)
    new = BEFORE._replace(partitions=(*BEFORE.partitions, NEXT_ONE))
    some.check([new], 70, 65)
    assert [doubt.member.relation for doubt in some.doubts] == [NEXT]
    assert len(some.check([BEFORE], 100, 80)) == 1
    assert (some.departures, some.doubts) == ([], [])


def test_shapes_that_were_judged_by_different_looks_are_copied() -> None:
    walk = FrameWalk(Wal2Json(), confirmed_lsn=10, needs_lsn=True)
    held = {name: LogOffset(10, OP_INFINITY) for name in "ab"}
    some = Collector(
        walk=walk,
        shapes={"a": T, "b": T},
        trees=[BEFORE],
        held=held,
        own_trees={"b": BEFORE._replace(partitions=(OLD_ONE, NOW_ONE))},
        looked={"a": 50, "b": 50},
    )
    assert [again.shape for again in some.check([AFTER], 100, 80)] == ["a", "b"]
    assert some.departures == []
