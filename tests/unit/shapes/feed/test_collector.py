from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pytest

from penstock.bench.collector_speed import one_row_transactions, seconds_for
from penstock.decoding.wal2json import Wal2Json
from penstock.errors import ProtocolViolation
from penstock.model.log_offset import BEFORE_ALL, OP_INFINITY, LogOffset
from penstock.model.lsn import format_lsn
from penstock.model.relation import Relation
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Found, Member, Tree
from penstock.postgres.snapshot.content import Content
from penstock.postgres.stream.walk import FrameWalk
from penstock.shapes.feed.collector import Append, Collected, Collector, Committed, Silence, Step
from penstock.shapes.following import table_routes
from penstock.shapes.following.streamed_rows import row_hash
from penstock.shapes.pace.held import Held
from penstock.shapes.wiring import trees_at_start

ORDERS = Relation("public", "orders")
EVENTS = Relation("public", "events")
MAY = Relation("public", "events_may")
JUNE = Relation("public", "events_june")
OTHER = Relation("public", "other")

SHAPES = {"open_orders": ORDERS, "all_orders": ORDERS, "events": EVENTS}


def member(relation: Relation, oid: int, *, attached: bool = False) -> Member:
    return Member(relation, oid, filenode=oid, layout="a", attached=attached)


ORDERS_TREE = Tree(member(ORDERS, 1))
EVENTS_TREE = Tree(member(EVENTS, 2), (member(MAY, 3),), is_partitioned=True)
TREES = (ORDERS_TREE, EVENTS_TREE)
ORDERS_NOW = ORDERS_TREE.table
MAY_NOW = EVENTS_TREE.partitions[0]
LATER = 2**40
"""A position that the stream has not reached."""


def collector(
    shapes: Mapping[str, Relation] = SHAPES,
    trees: Sequence[Tree] = TREES,
    held: Mapping[str, LogOffset] | None = None,
) -> Collector:
    walk = FrameWalk(Wal2Json(), confirmed_lsn=10, needs_lsn=True)
    return Collector(walk=walk, shapes=shapes, trees=trees, held=held or {})


def nothing_held() -> Held:
    held = Held()
    for shape in SHAPES:
        held.start(shape, BEFORE_ALL)
    return held


def xlogdata(payload: bytes, wal_start: int = 0) -> bytes:
    return struct.pack("!cqqq", b"w", wal_start, wal_start, 77) + payload


def keepalive(wal_end: int, *, reply: bool = False) -> bytes:
    return struct.pack("!cqqB", b"k", wal_end, 77, reply)


def boundary(action: str, commit_lsn: int) -> bytes:
    lsn, end = format_lsn(commit_lsn), format_lsn(commit_lsn + 5)
    return xlogdata(f'{{"action":"{action}","lsn":"{lsn}","nextlsn":"{end}"}}'.encode())


def payload(relation: Relation, action: str = "I") -> bytes:
    return f'{{"action":"{action}","schema":"{relation.schema}","table":"{relation.table}"}}'.encode()


def change(relation: Relation, action: str = "I", wal_start: int = 0) -> bytes:
    return xlogdata(payload(relation, action), wal_start)


def transaction(commit_lsn: int, *changes: bytes) -> list[bytes]:
    return [boundary("B", commit_lsn), *changes, boundary("C", commit_lsn)]


def take(some: Collector, frames: Sequence[bytes], start: int = 0, *, pause: bool = False) -> Collected:
    return some.take([memoryview(frame) for frame in frames], start, pause=pause)


def steps_of(some: Collector, *frames: bytes) -> list[Step]:
    taken = take(some, frames)
    assert (taken.next_frame, taken.unknown) == (len(frames), None)
    return taken.steps


def committed(commit_lsn: int, last_op: int, *touched: str) -> Committed:
    return Committed(LogOffset(commit_lsn, last_op), commit_lsn + 5, frozenset(touched))


def again(steps: Sequence[Step]) -> dict[str, str]:
    return {step.shape: step.reason for step in steps if isinstance(step, SnapshotAgain)}


def test_followed_changes_are_appended_and_touch_their_shapes() -> None:
    some = collector()
    some.learn(OTHER, Found())

    steps = steps_of(some, *transaction(100, change(ORDERS), change(OTHER), change(ORDERS, "D")))

    assert steps == [
        Append(ORDERS, 100, 0, payload(ORDERS)),
        Append(ORDERS, 100, 4, payload(ORDERS, "D")),
        committed(100, 4, "open_orders", "all_orders"),
    ]


def test_a_partition_counts_as_its_root_and_is_logged_under_its_own_name() -> None:
    some = collector()
    steps = steps_of(some, *transaction(100, change(MAY)))
    assert steps == [Append(MAY, 100, 0, payload(MAY)), committed(100, 0, "events")]
    assert some.relations_of(EVENTS) == {EVENTS, MAY}
    assert some.relations_of(ORDERS) == {ORDERS}


def test_a_shape_of_a_partition_and_one_of_its_root_see_the_same_change() -> None:
    some = collector({"may": MAY, "events": EVENTS}, [EVENTS_TREE, Tree(member(MAY, 3))])
    assert steps_of(some, *transaction(100, change(MAY)))[-1] == committed(100, 0, "may", "events")


@pytest.mark.parametrize("frames", [transaction(100), transaction(100, change(OTHER), change(OTHER))])
def test_an_untouched_transaction_is_a_commit_and_nothing_else(frames: list[bytes]) -> None:
    some = collector()
    some.learn(OTHER, Found())
    assert steps_of(some, *frames) == [committed(100, max(0, 2 * (len(frames) - 3)))]


def test_an_unknown_relation_is_asked_for_before_its_transaction_is_judged() -> None:
    some = collector()
    frames = transaction(100, change(ORDERS), change(JUNE))

    taken = take(some, frames)
    assert taken == Collected([Append(ORDERS, 100, 0, payload(ORDERS))], 2, JUNE)
    assert some.in_transaction
    assert take(some, frames, 2) == Collected([], 2, JUNE), "without an answer it blocks"
    assert some.learn(JUNE, Found((EVENTS,))) == []
    assert take(some, frames, 2).steps == [
        Append(JUNE, 100, 2, payload(JUNE)),
        committed(100, 2, "open_orders", "all_orders", "events"),
    ]
    assert some.relations_of(EVENTS) == {EVENTS, MAY, JUNE}


def test_a_sub_partition_is_found_through_all_its_ancestors() -> None:
    some = collector()
    take(some, [boundary("B", 100)])
    some.learn(JUNE, Found((Relation("public", "events_2026"), EVENTS)))
    assert steps_of(some, change(JUNE), boundary("C", 100))[-1] == committed(100, 0, "events")


LAYOUT = ("id bigint", "at date", "kind text")
WITH_COLUMNS = (ORDERS_TREE, EVENTS_TREE._replace(columns=LAYOUT))


def row(relation: Relation, *columns: str, action: str = "I") -> bytes:
    pairs = [each.split() for each in columns]
    cells = ",".join(f'{{"name":"{name}","type":"{kind}","value":1}}' for name, kind in pairs)
    where = "identity" if action == "D" else "columns"
    return xlogdata(
        f'{{"action":"{action}","schema":"{relation.schema}","table":"{relation.table}",'
        f'"{where}":[{cells}]}}'.encode()
    )


@pytest.mark.parametrize(
    ("frame", "asks"),
    [
        (row(OTHER, *LAYOUT), True),
        (row(OTHER, *reversed(LAYOUT)), True),
        (row(OTHER, *LAYOUT[:2]), False),
        (row(OTHER, *LAYOUT, "more int"), False),
        (row(OTHER, "id integer", *LAYOUT[1:]), False),
        (row(OTHER, "id bigint"), False),
        (row(OTHER, "id bigint", action="D"), True),
        (row(OTHER, "id integer", action="D"), False),
        (row(OTHER, *LAYOUT[:2], action="U"), True),
        (change(OTHER, "T"), True),
        (xlogdata(b'{"action":"I","schema":"public","table":"other","columns":[{"name":""x""}]}'), True),
    ],
)
def test_only_what_has_the_columns_of_a_partition_is_asked_for(frame: bytes, asks: bool) -> None:
    taken = take(collector(trees=WITH_COLUMNS), transaction(100, frame))
    assert taken.unknown == (OTHER if asks else None)


@pytest.mark.parametrize(
    ("frame", "asks"),
    [
        (row(OTHER, *LAYOUT), True),
        (row(OTHER, "id bigint", action="D"), False),
        (row(OTHER, *LAYOUT[:2], action="D"), True),
        (row(OTHER, *LAYOUT, action="D"), True),
        (row(OTHER, "id bigint", "kind text", action="U"), False),
        (row(OTHER, *LAYOUT[:2], action="U"), True),
        (xlogdata(b'{"action":"T","schema":"public","table":"other"}'), True),
    ],
)
def test_what_lacks_the_key_is_no_change_of_a_partition(frame: bytes, asks: bool) -> None:
    keyed = (ORDERS_TREE, EVENTS_TREE._replace(columns=LAYOUT, key=LAYOUT[:2]))
    assert take(collector(trees=keyed), transaction(100, frame)).unknown == (OTHER if asks else None)


def test_a_key_that_the_table_had_before_counts_too() -> None:
    """The stream is behind the catalog."""
    for columns in (LAYOUT[:2], LAYOUT[1:]):
        some = collector(trees=(ORDERS_TREE, EVENTS_TREE._replace(columns=LAYOUT, key=LAYOUT[:2])))
        some.check([ORDERS_TREE, EVENTS_TREE._replace(columns=LAYOUT, key=LAYOUT[1:])], LATER)
        assert take(some, transaction(100, row(OTHER, *columns, action="D"))).unknown == OTHER


def test_without_partitioned_tables_nothing_is_asked_for() -> None:
    some = collector({"orders": ORDERS}, [ORDERS_TREE])
    assert steps_of(some, *transaction(100, row(OTHER, *LAYOUT))) == [committed(100, 0)]


@pytest.mark.parametrize("columns", [LAYOUT, (*LAYOUT, "more integer")])
def test_partitions_may_have_the_columns_that_their_root_had(columns: tuple[str, ...]) -> None:
    """The stream is behind the catalog."""
    some = collector(trees=WITH_COLUMNS)
    some.check([ORDERS_TREE, EVENTS_TREE._replace(columns=(*LAYOUT, "more integer"))], LATER)
    assert take(some, transaction(100, row(OTHER, *columns))).unknown == OTHER


def test_columns_that_were_not_known_are_as_soon_as_a_look_brings_them() -> None:
    some = collector()
    take(some, [boundary("B", 100)])
    assert take(some, [row(OTHER, "id bigint")]).unknown == OTHER
    some.check(WITH_COLUMNS, LATER)
    assert take(some, [row(OTHER, "id bigint")]).unknown is None


def test_names_of_short_lived_tables_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_routes, "_MOST_ROUTES", 5)
    some = collector(trees=WITH_COLUMNS)
    for number in range(1, 10):
        steps_of(some, *transaction(100 * number, row(Relation("public", f"t{number}"), "id bigint")))
    assert some.knows(Relation("public", "t9"))
    some.check(WITH_COLUMNS, LATER)
    assert not some.knows(Relation("public", "t9"))
    assert steps_of(some, *transaction(2000, change(MAY)))[-1] == committed(2000, 0, "events")


def test_a_relation_that_is_gone_is_nobodys() -> None:
    some = collector(trees=WITH_COLUMNS)
    frames = transaction(100, row(OTHER, *LAYOUT))
    assert take(some, frames).unknown == OTHER
    assert some.learn(OTHER, None) == []
    assert take(some, frames, 1).steps == [committed(100, 0)]
    assert some.check(WITH_COLUMNS, LATER) == []


def rewritten(*, toast: int = 0, filenode: int = 77) -> list[Tree]:
    return [Tree(ORDERS_NOW._replace(filenode=filenode, toast=toast)), EVENTS_TREE]


def test_a_rewrite_shows_by_the_toast_table() -> None:
    some = collector(trees=[Tree(ORDERS_NOW._replace(toast=5)), EVENTS_TREE])
    assert some.check(rewritten(toast=5), LATER) == [], "TRUNCATE"
    assert some.is_certain
    found = again(some.check(rewritten(toast=6, filenode=78), LATER))
    assert found.keys() == {"open_orders", "all_orders"}
    assert "public.orders was rewritten" in found["all_orders"]


ID = '"pk":[{"name":"id","type":"integer"}]'


def insert(relation: Relation, number: int) -> bytes:
    cells = f'{{"name":"id","type":"integer","value":{number}}}'
    text = f'"schema":"{relation.schema}","table":"{relation.table}","columns":[{cells}],{ID}'
    return xlogdata(f'{{"action":"I",{text}}}'.encode())


def content(member: Member, *numbers: int, cut: int = 1000, filenode: int = 77) -> Content:
    hashes = [row_hash([str(number)]) for number in numbers]
    return Content(cut, member.oid, filenode, len(hashes), sum(hashes))


@pytest.mark.parametrize("look_first", [True, False])
@pytest.mark.parametrize(
    ("truncates", "rows", "proved"),
    [(True, (1, 2), True), (True, (1, 2, 3), False), (True, (1, 3), False), (False, (), False)],
)
def test_without_a_toast_table_a_new_file_is_settled_by_its_rows(
    look_first: bool, truncates: bool, rows: tuple[int, ...], proved: bool
) -> None:
    """TRUNCATE and a load, or TRUNCATE and a load without WAL, or such a load alone."""
    some = collector()
    some.check(TREES, 50)
    frames = transaction(100, change(ORDERS, "T"), insert(ORDERS, 1)) if truncates else []
    frames += transaction(150, insert(ORDERS, 2))
    if not look_first:
        steps_of(some, *frames)
    assert some.check(rewritten(), 200) == []
    assert some.tree_of(ORDERS, "all_orders") == ORDERS_TREE, "whoever comes after a crash must see it too"
    if look_first:
        steps_of(some, *frames)
    assert not some.has_passed(300)
    steps_of(some, *transaction(299, insert(ORDERS, 9)), *transaction(400, insert(ORDERS, 10)))
    assert some.has_passed(300)
    (doubt,) = some.doubts

    found = some.settle(doubt, content(ORDERS_NOW, *rows, *([9] if rows else []), cut=300))

    assert again(found).keys() == (set() if proved else {"open_orders", "all_orders"})
    assert all("public.orders was rewritten" in reason for reason in again(found).values())
    assert some.is_certain
    assert some.tree_of(ORDERS, "all_orders").table.filenode == 77
    assert some.check(rewritten(), 500) == []
    assert some.is_certain, "it is said once"


def test_a_table_that_is_truncated_again_and_again() -> None:
    some = collector()
    for turn in range(1, 5):
        at = 1000 * turn
        assert some.check(rewritten(filenode=at), at) == []
        (doubt,) = some.doubts
        steps_of(some, *transaction(at + 100, change(ORDERS, "T"), insert(ORDERS, turn)))
        # Its file is a later one by now.
        assert some.settle(doubt, content(ORDERS_NOW, turn, cut=at + 200, filenode=at + 1)) == []
        assert some.check(rewritten(filenode=at + 1), at + 300) == []
        assert some.is_certain


def test_a_doubt_that_can_not_be_settled_is_a_snapshot() -> None:
    some = collector()
    some.check(rewritten(), 200)
    (doubt,) = some.doubts
    assert again(some.give_up(doubt)).keys() == {"open_orders", "all_orders"}
    assert some.give_up(doubt) == []


def test_snapshots_that_began_since_settle_a_doubt() -> None:
    held = nothing_held()
    some = collector(held=held)
    some.check(rewritten(), 200)
    (doubt,) = some.doubts
    for shape in ("open_orders", "all_orders"):
        held.begin_copy(shape, 251)
    assert some.settle(doubt, content(ORDERS_NOW, 1, cut=300)) == []
    assert some.is_certain


def test_a_doubt_about_another_table_is_for_the_next_look() -> None:
    some = collector()
    some.check(rewritten(), 200)
    (doubt,) = some.doubts
    assert some.settle(doubt, content(MAY_NOW, cut=300)) == []
    assert some.doubts == [doubt]


def with_june(tree: Tree = EVENTS_TREE) -> list[Tree]:
    return [ORDERS_TREE, tree._replace(partitions=(*tree.partitions, member(JUNE, 4)))]


@pytest.mark.parametrize("look_first", [True, False])
@pytest.mark.parametrize(("rows", "proved"), [((1, 2), True), ((1, 2, 3), False), ((), False)])
def test_a_new_partition_is_settled_by_its_rows(
    look_first: bool, rows: tuple[int, ...], proved: bool
) -> None:
    some = collector()
    frames = transaction(100, insert(JUNE, 1), insert(JUNE, 2))
    if look_first:
        assert some.check(with_june(), 150) == []
        assert steps_of(some, *frames)[-1] == committed(100, 2, "events")
    else:
        assert take(some, frames).unknown == JUNE
        assert some.learn(JUNE, Found((EVENTS,))) == []
        assert take(some, frames, 1).steps[-1] == committed(100, 2, "events")
        assert some.check(with_june(), 150) == []
    (doubt,) = some.doubts
    found = again(some.settle(doubt, content(doubt.member, *rows, filenode=4)))
    assert found.keys() == (set() if proved else {"events"})
    assert all("not all of its rows are in the stream" in reason for reason in found.values())


def test_the_changes_of_a_partition_under_another_name_are_missed() -> None:
    """Made, filled and renamed, while a table of the same columns took its name."""
    some = collector()
    frames = transaction(100, insert(OTHER, 1))
    assert take(some, frames).unknown == OTHER
    some.learn(OTHER, Found())
    take(some, frames, 1)
    some.check(with_june(), 150)
    (doubt,) = some.doubts
    assert again(some.settle(doubt, content(doubt.member, 1, filenode=4))).keys() == {"events"}


def test_a_partition_that_came_and_went_between_looks_has_left_rows_behind() -> None:
    some = collector()
    take(some, [boundary("B", 100), insert(JUNE, 1)])
    some.learn(JUNE, Found((EVENTS,)))
    assert some.check(TREES, 150) == [], "these may have been read before"
    assert again(some.check(TREES, 160)) == {
        "events": "public.events_june, a partition of public.events, was detached or dropped"
    }
    assert some.check(TREES, 170) == []


@pytest.mark.parametrize(
    ("before", "now", "renamed"), [("1", "1", False), ("1", "2", True), ("", "2", False)]
)
def test_a_table_that_was_renamed_and_back(before: str, now: str, renamed: bool) -> None:
    some = collector(trees=[Tree(ORDERS_NOW._replace(placed=before)), EVENTS_TREE])
    found = again(some.check([Tree(ORDERS_NOW._replace(placed=now)), EVENTS_TREE], LATER))
    assert found.keys() == ({"open_orders", "all_orders"} if renamed else set())


def test_an_attached_table_brings_rows_along() -> None:
    some = collector()
    take(some, [boundary("B", 100), change(JUNE)])
    assert (
        "public.events_june was attached"
        in again(some.learn(JUNE, Found((EVENTS,), attached=True)))["events"]
    )
    tree = EVENTS_TREE._replace(partitions=(member(MAY, 3), member(JUNE, 4, attached=True)))
    assert some.check([ORDERS_TREE, tree], LATER) == [], "it is said once"


def test_an_attached_table_says_nothing_about_shapes_of_its_own() -> None:
    some = collector({"may": MAY}, [Tree(member(MAY, 3))])
    assert some.learn(MAY, Found((EVENTS,), attached=True)) == []


@pytest.mark.parametrize(
    ("relation", "shapes"),
    [(ORDERS, {"open_orders", "all_orders"}), (MAY, {"events"}), (OTHER, set())],
)
def test_what_the_server_left_out_is_copied_again(relation: Relation, shapes: set[str]) -> None:
    some = collector()
    assert some.knows(relation) == (relation != OTHER)
    some.learn(OTHER, Found())

    found = again(some.left_out(relation))

    assert found.keys() == shapes
    assert all(f"left out changes of {relation}" in reason for reason in found.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([(MAY, 50)], "public.events_may, a partition of public.events, was truncated alone"),
        ([(EVENTS, 50), (MAY, 50)], None),
        ([(MAY, 50), (EVENTS, 50)], None),
        ([(EVENTS, 50), (MAY, 50), (MAY, 60)], "public.events_may"),
        ([(MAY, 40), (EVENTS, 50), (MAY, 50)], None),
        ([(ORDERS, 50)], None),
    ],
)
def test_truncate_of_a_partition(changes: list[tuple[Relation, int]], reason: str | None) -> None:
    some = collector()
    frames = [change(relation, "T", lsn) for relation, lsn in changes]
    steps = steps_of(some, *transaction(100, *frames))
    assert [step.relation for step in steps if isinstance(step, Append)] == [name for name, _ in changes]
    assert isinstance(steps[-1], Committed), "what stops a shape comes before the commit"
    assert again(steps).keys() == ({"events"} if reason else set())
    assert (reason or "") in "".join(again(steps).values())
    assert again(steps_of(some, *transaction(200, change(MAY)))) == {}, "the next one starts clean"


def test_a_transaction_is_skipped_for_tables_that_hold_it_and_no_others() -> None:
    some = collector(held={"open_orders": LogOffset(200, OP_INFINITY), "events": LogOffset(99, OP_INFINITY)})
    frames = [frame for lsn in (100, 200, 300) for frame in transaction(lsn, change(ORDERS), change(MAY))]
    commits = [step for step in steps_of(some, *frames) if isinstance(step, Committed)]
    assert commits == [
        committed(100, 2, "all_orders", "events"),
        committed(200, 2, "all_orders", "events"),
        committed(300, 2, "all_orders", "open_orders", "events"),
    ]


def test_what_every_table_holds_is_neither_appended_nor_looked_up() -> None:
    held = dict.fromkeys(SHAPES, LogOffset(100, OP_INFINITY))
    some = collector(held=held)
    frames = transaction(100, change(ORDERS), change(JUNE), change(MAY, "T"), xlogdata(b"unreadable"))
    assert steps_of(some, *frames) == [committed(100, 6)]


def test_a_table_in_mid_transaction_still_needs_it() -> None:
    some = collector(held={"events": LogOffset(100, 0)})
    assert steps_of(some, *transaction(100, change(MAY)))[-1] == committed(100, 0, "events")


def test_a_copy_that_begins_has_what_commits_before_its_cut() -> None:
    held = nothing_held()
    some = collector(held=held)
    held.begin_copy("events", 200)
    assert steps_of(some, *transaction(100, change(MAY))) == [committed(100, 0)]
    assert steps_of(some, *transaction(200, change(MAY)))[-1] == committed(200, 0, "events")


def test_a_keepalive_counts_between_transactions_only() -> None:
    some = collector()
    frames = [
        keepalive(50),
        keepalive(50),
        boundary("B", 100),
        keepalive(100, reply=True),
        boundary("C", 100),
    ]
    assert steps_of(some, *frames, keepalive(104), keepalive(300)) == [
        Silence(50),
        committed(100, 0),
        Silence(300),
    ]


def test_pausing_waits_for_the_end_of_the_transaction() -> None:
    some = collector()
    frames = [*transaction(100, change(ORDERS), change(ORDERS)), *transaction(200, change(ORDERS))]
    assert take(some, frames, pause=True) == Collected([], 0)
    take(some, frames[:2])
    assert take(some, frames, 2, pause=True).next_frame == 4
    assert not some.in_transaction


def test_messages_are_not_changes() -> None:
    some = collector()
    message = xlogdata(b'{"action":"M","transactional":false,"prefix":"p","content":"c"}')
    assert steps_of(some, message, *transaction(100, message, change(ORDERS)))[0] == Append(
        ORDERS, 100, 0, payload(ORDERS)
    )


def test_names_are_read_exactly() -> None:
    odd = Relation('we"ird', 'a\\b,"table":"x')
    some = collector({"odd": odd}, [Tree(member(odd, 9))])
    text = rb'{"action":"I","lsn":"0/1","schema":"we\"ird","table":"a\\b,\"table\":\"x","columns":[]}'
    assert steps_of(some, *transaction(100, xlogdata(text)))[0] == Append(odd, 100, 0, text)


def test_a_followed_change_that_can_not_be_read_is_its_readers_affair() -> None:
    some = collector()
    broken = b'{"action":"I","schema":"public","table":"orders","columns":[{"name":"a","type":""odd""}]}'
    steps = steps_of(some, *transaction(100, xlogdata(broken)))
    assert steps == [Append(ORDERS, 100, 0, broken), committed(100, 0, "open_orders", "all_orders")]


@pytest.mark.parametrize(
    "frames",
    [
        [boundary("B", 100), xlogdata(b"what is this", 50)],
        [change(ORDERS)],
        [boundary("B", 100), boundary("B", 200)],
        [boundary("B", 100), boundary("C", 200)],
        [xlogdata(b'{"action":"B"}')],
        [xlogdata(b'{"action":"B","lsn":"x"}')],
        [b"?"],
    ],
)
def test_what_can_not_be_placed_ends_the_stream(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolViolation):
        take(collector(), frames)


def test_a_tree_that_nobody_follows_is_left_alone() -> None:
    some = collector({"orders": ORDERS})
    assert steps_of(some, *transaction(100, change(MAY))) == [committed(100, 0)]
    assert some.check(TREES, LATER) == []


def test_a_table_that_is_gone_can_be_copied_when_a_look_has_its_routes() -> None:
    some = collector(trees=[ORDERS_TREE])
    assert [name for name in SHAPES if some.is_gone(name)] == ["events"]
    assert some.check([ORDERS_TREE], LATER) == []
    assert steps_of(some, *transaction(100, change(MAY))) == [committed(100, 0)], "a snapshot will have it"

    assert some.check(TREES, LATER) == [SnapshotAgain("events", "there is a table public.events again")]

    assert not some.is_gone("events")
    assert some.tree_of(EVENTS, "events") == EVENTS_TREE
    assert committed(200, 0, "events") in steps_of(some, *transaction(200, change(MAY)))
    assert some.check(TREES, LATER) == []


def test_a_table_that_went_and_came_back_as_it_was_is_copied_again() -> None:
    some = collector()
    (first, second) = some.check([EVENTS_TREE], LATER)
    assert {first.shape, second.shape} == {"open_orders", "all_orders"}
    assert some.is_gone("open_orders")
    assert some.check([EVENTS_TREE], LATER) == []

    assert {again.shape for again in some.check(TREES, LATER)} == {"open_orders", "all_orders"}
    assert not some.is_gone("open_orders")


@pytest.mark.parametrize(
    ("trees", "shapes", "reason"),
    [
        (TREES, set(), ""),
        ([EVENTS_TREE], {"open_orders", "all_orders"}, "public.orders was dropped or renamed"),
        ([Tree(member(ORDERS, 8)), EVENTS_TREE], {"open_orders", "all_orders"}, "has taken the name"),
        ([ORDERS_TREE, EVENTS_TREE._replace(partitions=())], {"events"}, "was detached or dropped"),
        (
            [ORDERS_TREE, EVENTS_TREE._replace(partitions=(MAY_NOW._replace(relation=JUNE),))],
            {"events"},
            "was renamed to public.events_june",
        ),
        (
            [Tree(ORDERS_NOW._replace(filenode=77, layout="b")), EVENTS_TREE],
            {"open_orders", "all_orders"},
            "public.orders was rewritten",
        ),
        ([Tree(ORDERS_NOW._replace(filenode=77)), EVENTS_TREE], set(), "TRUNCATE"),
        ([Tree(ORDERS_NOW._replace(layout="b")), EVENTS_TREE], set(), "ADD COLUMN"),
        (
            [ORDERS_TREE, EVENTS_TREE._replace(partitions=(MAY_NOW, member(JUNE, 4)))],
            set(),
            "a new partition is settled by its rows",
        ),
        (
            [ORDERS_TREE, EVENTS_TREE._replace(partitions=(MAY_NOW, member(JUNE, 4, attached=True)))],
            {"events"},
            "public.events_june was attached to public.events",
        ),
    ],
)
def test_what_only_the_catalog_tells(trees: Sequence[Tree], shapes: set[str], reason: str) -> None:
    some = collector()
    some.learn(OTHER, Found())
    found = again(some.check(trees, LATER))
    assert found.keys() == shapes
    assert all(reason in words for words in found.values()), found
    assert some.check(trees, LATER) == [], "it is said once"


def test_a_table_that_comes_back_as_another_is_said_again() -> None:
    some = collector()
    some.check([EVENTS_TREE], LATER)
    assert again(some.check([Tree(member(ORDERS, 8)), EVENTS_TREE], LATER)).keys() == {
        "open_orders",
        "all_orders",
    }


def test_a_new_partition_is_followed_after_a_check() -> None:
    some = collector()
    some.learn(JUNE, Found())
    some.check([ORDERS_TREE, EVENTS_TREE._replace(partitions=(MAY_NOW, member(JUNE, 4)))], LATER)
    assert steps_of(some, *transaction(100, change(JUNE)))[-1] == committed(100, 0, "events")


def test_a_partition_that_left_is_looked_up_again() -> None:
    some = collector()
    some.check([ORDERS_TREE, EVENTS_TREE._replace(partitions=())], LATER)
    assert take(some, transaction(100, change(MAY))).unknown == MAY
    assert some.relations_of(EVENTS) == {EVENTS}


def test_trees_read_before_a_look_up_take_nothing_away() -> None:
    """Changes of the new partition are in the log: whoever reads it must go on asking for them."""
    some = collector()
    take(some, [boundary("B", 100), change(JUNE)])
    some.learn(JUNE, Found((EVENTS,)))
    steps_of(some, change(JUNE), boundary("C", 100))
    assert some.check(TREES, LATER) == []
    assert some.relations_of(EVENTS) == {EVENTS, MAY, JUNE}


def test_a_check_in_mid_transaction_counts_from_there_on() -> None:
    some = collector()
    some.learn(JUNE, Found())
    steps_of(some, boundary("B", 100), change(JUNE))
    some.check([ORDERS_TREE, EVENTS_TREE._replace(partitions=(MAY_NOW, member(JUNE, 4)))], LATER)
    assert steps_of(some, change(JUNE), boundary("C", 100)) == [
        Append(JUNE, 100, 2, payload(JUNE)),
        committed(100, 2, "events"),
    ]


def test_a_transaction_costs_by_what_it_touches_and_not_by_the_number_of_shapes() -> None:
    frames = one_row_transactions(4000)
    ratios = [seconds_for(frames, shapes=1) / seconds_for(frames, shapes=1000) for _ in range(7)]
    assert max(ratios) > 0.6, "0.8 is the target, and machines are noisy; a look at each shape is 0.2"


def test_shapes_need_a_transaction_in_any_order_of_what_they_hold() -> None:
    """The cut of a snapshot may lie ahead of the stream."""
    held = nothing_held()
    some = collector(held=held)
    for name, cut in (("events", 250), ("open_orders", 150), ("all_orders", 350)):
        held.begin_copy(name, cut)
    frames = [
        frame for lsn in range(100, 500, 100) for frame in transaction(lsn, change(ORDERS), change(MAY))
    ]
    assert [step for step in steps_of(some, *frames) if isinstance(step, Committed)] == [
        committed(100, 2),
        committed(200, 2, "open_orders"),
        committed(300, 2, "open_orders", "events"),
        committed(400, 2, "open_orders", "all_orders", "events"),
    ]


TWICE_REWRITTEN = [
    Tree(ORDERS_NOW._replace(filenode=filenode, layout=layout))
    for filenode, layout in ((1, "a"), (7, "b"), (7, "c"))
]
"""As of one look before the rewrite, and two after it: then a column was added."""


@pytest.mark.parametrize("lagging", ["all_orders", "open_orders"])
def test_each_shape_of_a_table_goes_on_from_the_look_that_judged_it(lagging: str) -> None:
    """One was snapshotted after a rewrite, the other had still to be judged; then the table was altered."""
    old, rewritten, now = TWICE_REWRITTEN
    facts = TableFacts(rewritten, ())
    known = {name: facts._replace(tree=old if name == lagging else rewritten) for name in SHAPES}
    del known["events"]
    for names in (["all_orders", "open_orders"], ["open_orders", "all_orders"]):
        trees, own = trees_at_start(
            {ORDERS: facts._replace(tree=now), EVENTS: facts._replace(tree=EVENTS_TREE)},
            {name: known[name] for name in names},
        )
        some = Collector(
            walk=FrameWalk(Wal2Json(), confirmed_lsn=10, needs_lsn=True),
            shapes=SHAPES,
            trees=trees,
            held={},
            own_trees=own,
        )
        assert {name: some.tree_of(ORDERS, name) for name in names} == {
            name: facts.tree for name, facts in known.items()
        }, "what a crash before the first look must find"

        found = some.check([now, EVENTS_TREE], LATER)

        assert {again.shape for again in found} == {"all_orders", "open_orders"}
        assert all("was rewritten" in again.reason for again in found)
        assert {some.tree_of(ORDERS, name) for name in names} == {now}
        assert some.check([now, EVENTS_TREE], LATER) == []


def test_an_open_doubt_is_kept_for_the_shape_that_has_it() -> None:
    """And only for as long as it is open."""
    old, now = ORDERS_TREE, Tree(ORDERS_NOW._replace(filenode=7))
    some = Collector(
        walk=FrameWalk(Wal2Json(), confirmed_lsn=10, needs_lsn=True),
        shapes=SHAPES,
        trees=[now, EVENTS_TREE],
        held={},
        own_trees={"all_orders": old},
    )
    assert some.check([now, EVENTS_TREE], LATER) == []
    (doubt,) = some.doubts
    assert some.tree_of(ORDERS, "all_orders") == old

    found = some.give_up(doubt)

    assert {again.shape for again in found} == {"all_orders", "open_orders"}
    assert some.tree_of(ORDERS, "all_orders") == now
