"""What happens to each shape at a start: a table of all cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from penstock.model.log_offset import OP_INFINITY, LogOffset
from penstock.model.relation import Relation
from penstock.model.shape import Shape, definition_hash
from penstock.model.snapshot_again import SnapshotAgain
from penstock.postgres.catalog.table_facts import TableFacts
from penstock.postgres.catalog.table_tree import Member, Tree
from penstock.shapes.registry.decisions import (
    Action,
    Continue,
    Refuse,
    ServerFacts,
    decide,
)
from penstock.shapes.registry.registry import Copy, Registry, ShapeEntry

FACTS = TableFacts(Tree(Member(Relation("public", "orders"), 1, 2, "a")), ())
ORDERS = Shape("orders", Relation("public", "orders"))
ITEMS = Shape("items", Relation("public", "items"), where="price > 1")
BOTH = (ORDERS, ITEMS)


def at(tx_offset: int) -> LogOffset:
    return LogOffset(tx_offset, OP_INFINITY)


def entries(*shapes: Shape) -> dict[str, ShapeEntry]:
    return {shape.name: ShapeEntry(definition_hash(shape), None, None) for shape in shapes}


REGISTRY = Registry("7301", 3, "penstock_shapes", 1000, entries(*BOTH))
SERVER = ServerFacts("7301", 3, {1: 100, 2: 200}, "penstock_shapes", 900, 5000)
OFFSETS: dict[str, LogOffset | None] = {"orders": at(950), "items": at(40)}
GO_ON: tuple[Action, ...] = (Continue("orders", at(950)), Continue("items", at(40)))


def reasons(actions: tuple[Action, ...]) -> dict[str, str]:
    return {action.shape: action.reason for action in actions if isinstance(action, SnapshotAgain)}


def test_an_ordinary_restart_goes_on_and_changes_nothing() -> None:
    assert decide(REGISTRY, SERVER, BOTH, OFFSETS) == (GO_ON, REGISTRY)


@pytest.mark.parametrize("confirmed", [0, 900, 1000])
def test_the_slot_may_be_anywhere_up_to_the_ceiling(confirmed: int) -> None:
    """It goes back after a crash of the server."""
    decision = decide(REGISTRY, SERVER._replace(confirmed_flush_lsn=confirmed), BOTH, OFFSETS)
    assert decision == (GO_ON, REGISTRY)


@pytest.mark.parametrize(("flush_lsn", "lost"), [(1000, False), (999, True), (900, True)])
def test_a_database_that_was_brought_back_from_an_older_copy(flush_lsn: int, lost: bool) -> None:
    decision = decide(REGISTRY, SERVER._replace(flush_lsn=flush_lsn), BOTH, OFFSETS)
    if not lost:
        assert decision.actions == GO_ON
        return
    found = reasons(decision.actions)
    assert found.keys() == {"orders", "items"}
    assert all("brought back from an older copy" in reason for reason in found.values())
    assert decision.registry is not None
    assert decision.registry.ceiling_lsn == 900, "what was confirmed of the lost history is no measure"


def test_a_table_further_than_the_server_was_not_written_from_its_history() -> None:
    ahead: dict[str, LogOffset | None] = {**OFFSETS, "orders": at(5001)}
    assert reasons(decide(REGISTRY, SERVER, BOTH, ahead).actions).keys() == {"orders", "items"}


def test_a_table_that_was_brought_back_from_an_older_copy() -> None:
    registry = REGISTRY.with_ceiling(1000, {"orders": 951, "items": 40, "removed": 7})
    (again, items) = decide(registry, SERVER, BOTH, OFFSETS).actions
    assert isinstance(again, SnapshotAgain)
    assert again.reason == "its table is at 0/3B6 and was at 0/3B7: an older copy was put in its place"
    assert items == Continue("items", at(40))
    assert registry.awaiting("orders", "any").shapes["orders"].offset is None, "a new table begins anew"


def test_a_first_start_snapshots_everything() -> None:
    decision = decide(None, SERVER._replace(confirmed_flush_lsn=None), BOTH, {})
    assert reasons(decision.actions) == {"orders": "it is new", "items": "it is new"}
    assert decision.registry is not None
    assert decision.registry.ceiling_lsn == 0
    assert decision.registry.shapes["items"] == ShapeEntry(definition_hash(ITEMS), "it is new", None)


def test_tables_without_a_registry_are_not_trusted() -> None:
    decision = decide(None, SERVER, BOTH, OFFSETS)
    assert set(reasons(decision.actions).values()) == {"its table is not in the registry"}
    assert decision.registry is not None
    assert decision.registry.ceiling_lsn == 900


@pytest.mark.parametrize(
    ("server", "reason", "ceiling"),
    [
        (SERVER._replace(confirmed_flush_lsn=None), "slot penstock_shapes is missing", 0),
        (SERVER._replace(confirmed_flush_lsn=1001), "stands at 0/3E9, above 0/3E8, the highest", 1001),
        (SERVER._replace(slot="other"), "the slot is other now", 900),
        (SERVER._replace(timeline=4, switch_points={}), "doesn't descend from timeline 3", 900),
        (SERVER._replace(timeline=4, switch_points={1: 10, 2: 9}), "doesn't descend from", 900),
        (SERVER._replace(timeline=4, switch_points={3: 899}), "0/383, where timeline 3 was left", 900),
        (SERVER._replace(timeline=4, switch_points={3: 2000}, confirmed_flush_lsn=1001), "highest", 1001),
    ],
)
def test_a_gap_snapshots_all_again(server: ServerFacts, reason: str, ceiling: int) -> None:
    decision = decide(REGISTRY, server, BOTH, OFFSETS)
    found = reasons(decision.actions)
    assert found.keys() == {"orders", "items"}
    assert all(reason in words for words in found.values()), found
    assert decision.registry is not None
    assert decision.registry.ceiling_lsn == ceiling
    assert (decision.registry.slot, decision.registry.timeline) == (server.slot, server.timeline)
    assert {entry.awaits_snapshot for entry in decision.registry.shapes.values()} == set(found.values())


def test_a_crash_after_the_new_slot_and_before_the_snapshots_forgets_nothing() -> None:
    first = decide(REGISTRY, SERVER._replace(confirmed_flush_lsn=None), BOTH, OFFSETS)
    assert first.registry is not None
    # The slot was created at 1500, the ceiling written; the tables are still the old ones.
    again = decide(
        first.registry.with_ceiling(1500), SERVER._replace(confirmed_flush_lsn=1500), BOTH, OFFSETS
    )
    assert reasons(again.actions) == reasons(first.actions)
    assert again.registry == first.registry.with_ceiling(1500)
    settled = again.registry.settled("orders", FACTS).settled("items", FACTS)
    moved: dict[str, LogOffset | None] = {"orders": at(1520), "items": at(1530)}
    later = decide(settled, SERVER._replace(confirmed_flush_lsn=1500), BOTH, moved)
    assert later.actions == (Continue("orders", at(1520)), Continue("items", at(1530)))


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (SERVER._replace(system_id="7302"), "belongs to the database system 7301, and the server is 7302"),
        (SERVER._replace(timeline=2), "the tables follow timeline 3, and the server is on 2"),
        (SERVER._replace(system_id="7302", confirmed_flush_lsn=None), "Fix: connect to the former"),
    ],
)
def test_another_server_is_refused(server: ServerFacts, sentence: str) -> None:
    decision = decide(REGISTRY, server, BOTH, OFFSETS)
    assert decision.registry is None
    assert [action.shape for action in decision.actions] == ["orders", "items"]
    assert all(isinstance(action, Refuse) and sentence in action.sentence for action in decision.actions)


@pytest.mark.parametrize(
    ("orders_at", "goes_on"),
    [(at(959), True), (LogOffset(960, 0), False), (at(960), False), (at(961), False)],
)
def test_on_a_higher_timeline_only_the_common_history_goes_on(orders_at: LogOffset, goes_on: bool) -> None:
    """A commit record that begins at the switch point was on the old timeline only."""
    server = SERVER._replace(timeline=5, switch_points={1: 100, 2: 200, 3: 960, 4: 980})
    decision = decide(REGISTRY, server, BOTH, OFFSETS | {"orders": orders_at})
    assert decision.actions[1] == Continue("items", at(40))
    if goes_on:
        assert decision.actions[0] == Continue("orders", orders_at)
    else:
        assert "not below 0/3C0, where the server left" in reasons(decision.actions)["orders"]
    assert decision.registry is not None
    assert decision.registry.timeline == 5
    assert decision.registry.ceiling_lsn == 960, "what was confirmed above it is another history"


def test_a_switch_point_above_the_ceiling_leaves_the_ceiling() -> None:
    decision = decide(REGISTRY, SERVER._replace(timeline=4, switch_points={3: 5000}), BOTH, OFFSETS)
    assert decision == (GO_ON, structs.replace(REGISTRY, timeline=4))


def test_looks_on_another_timeline_say_nothing_of_this_one() -> None:
    registry = REGISTRY.looked({"orders": 940})
    same = decide(registry, SERVER, BOTH, OFFSETS).registry
    assert same is not None
    assert same.shapes["orders"].looked_lsn == 940
    server = SERVER._replace(timeline=4, switch_points={3: 5000})
    other = decide(registry, server, BOTH, OFFSETS).registry
    assert other is not None
    assert other.shapes["orders"].looked_lsn is None


CHANGED = [
    replace(ITEMS, where="price > 2"),
    replace(ITEMS, where=None),
    replace(ITEMS, columns=("id",)),
    replace(ITEMS, table=Relation("public", "things")),
]


@pytest.mark.parametrize("changed", CHANGED)
def test_a_changed_definition_is_snapshotted_alone(changed: Shape) -> None:
    decision = decide(REGISTRY, SERVER, (ORDERS, changed), OFFSETS)
    assert decision.actions == (GO_ON[0], SnapshotAgain("items", "its definition was changed"))
    assert decision.registry is not None
    assert decision.registry.shapes["items"] == ShapeEntry(
        definition_hash(changed), "its definition was changed", None
    )
    assert decide(decision.registry, SERVER, (ORDERS, changed), OFFSETS) == decision, "after a crash too"


def test_a_change_that_was_taken_back_is_snapshotted_still() -> None:
    """The former table may have missed changes by now."""
    first = decide(REGISTRY, SERVER, (ORDERS, CHANGED[0]), OFFSETS)
    assert reasons(decide(first.registry, SERVER, BOTH, OFFSETS).actions).keys() == {"items"}


def test_another_pace_is_the_same_shape() -> None:
    slower = replace(ITEMS, flush_interval_ms=60_000)
    assert decide(REGISTRY, SERVER, (ORDERS, slower), OFFSETS) == (GO_ON, REGISTRY)


def test_a_removed_shape_stops_counting_and_comes_back_as_a_stranger() -> None:
    without = decide(REGISTRY, SERVER, (ORDERS,), OFFSETS)
    assert without.actions == (GO_ON[0],)
    assert without.registry == structs.replace(REGISTRY, shapes=entries(ORDERS))
    back = decide(without.registry, SERVER, BOTH, OFFSETS)
    assert back.actions == (GO_ON[0], SnapshotAgain("items", "its table is not in the registry"))
    assert back.registry is not None
    assert back.registry.ceiling_lsn == REGISTRY.ceiling_lsn


def test_a_new_shape_is_snapshotted_alone() -> None:
    registry = structs.replace(REGISTRY, shapes=entries(ORDERS))
    decision = decide(registry, SERVER, BOTH, {"orders": at(950)})
    assert decision.actions == (GO_ON[0], SnapshotAgain("items", "it is new"))


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ({"orders": at(950)}, "its table is gone"),
        ({"orders": at(950), "items": None}, "its table has lost its offset"),
    ],
)
def test_a_table_that_was_taken_away_is_made_again(offsets: dict[str, LogOffset | None], reason: str) -> None:
    assert reasons(decide(REGISTRY, SERVER, BOTH, offsets).actions) == {"items": reason}


def test_a_snapshot_that_was_asked_for_or_not_finished_is_taken() -> None:
    registry = REGISTRY.awaiting("items", "--resnapshot items")
    for offsets in (OFFSETS, OFFSETS | {"items": None}, {"orders": at(950)}):
        decision = decide(registry, SERVER, BOTH, offsets)
        assert decision == ((GO_ON[0], SnapshotAgain("items", "--resnapshot items")), registry)


@pytest.mark.parametrize("registry", [None, structs.replace(REGISTRY, shapes=entries(ORDERS))])
def test_somebody_elses_table_is_not_written_over(registry: Registry | None) -> None:
    decision = decide(registry, SERVER, BOTH, OFFSETS | {"items": None})
    assert decision.registry is None
    assert isinstance(decision.actions[1], Refuse)
    assert "the table items in the storage was not written by Penstock" in decision.actions[1].sentence


class TestACopyThatWasCompleteBeforeAStop:
    """The registry knew what was about to be copied, and not how it ended."""

    KNOWN = REGISTRY.awaiting("orders", "it is new").copying("orders", Copy(952, FACTS))
    COPIED: Mapping[str, LogOffset | None] = {**OFFSETS, "orders": at(951)}

    @pytest.mark.parametrize("confirmed", [0, 900, 952])
    def test_it_is_taken(self, confirmed: int) -> None:
        server = SERVER._replace(confirmed_flush_lsn=confirmed)

        actions, registry = decide(self.KNOWN, server, BOTH, self.COPIED)

        assert actions == (Continue("orders", at(951)), Continue("items", at(40)))
        assert registry == REGISTRY.settled("orders", FACTS)

    @pytest.mark.parametrize(
        ("registry", "server", "offset"),
        [
            pytest.param(KNOWN, SERVER, at(950), id="the commit was not made"),
            pytest.param(KNOWN, SERVER, at(960), id="something was flushed on top, or it is another table"),
            pytest.param(KNOWN, SERVER, None, id="the table isn't ours"),
            pytest.param(
                KNOWN, SERVER._replace(confirmed_flush_lsn=953), at(951), id="what follows was passed over"
            ),
            pytest.param(
                KNOWN, SERVER._replace(confirmed_flush_lsn=None), at(951), id="there is no slot"
            ),
            pytest.param(
                KNOWN, SERVER._replace(timeline=4, switch_points={3: 4000}), at(951), id="another timeline"
            ),
            pytest.param(
                KNOWN.awaiting("orders", "a label was renamed"), SERVER, at(951), id="asked for once more"
            ),
            pytest.param(REGISTRY.awaiting("orders", "it is new"), SERVER, at(951), id="it was not noted"),
        ],
    )  # fmt: skip
    def test_in_doubt_it_is_copied_again(
        self, registry: Registry, server: ServerFacts, offset: LogOffset | None
    ) -> None:
        decision = decide(registry, server, BOTH, {**OFFSETS, "orders": offset})

        assert "orders" in reasons(decision.actions)
        assert decision.registry is not None
        assert decision.registry.shapes["orders"].copy is None

    def test_only_of_the_same_definition(self) -> None:
        edited = replace(ORDERS, where="id > 1")

        actions, _ = decide(self.KNOWN, SERVER, (edited, ITEMS), self.COPIED)

        assert reasons(actions) == {"orders": "its definition was changed"}

    def test_a_table_that_counts_has_no_copy_to_be_taken(self) -> None:
        assert REGISTRY.copying("orders", Copy(952, FACTS)) == REGISTRY
