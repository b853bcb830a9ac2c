from __future__ import annotations

from penstock.log_offset import LogOffset
from penstock.spark.key_changes import Event, Source, find_sources

BOTH = frozenset({"a", "b"})


def at(tx: int, op: int = 0) -> LogOffset:
    return LogOffset(tx, op)


def moved(tx: int, old: str, new: str, absent: frozenset[str] = BOTH) -> list[Event]:
    return [Event(at(tx), "delete", old), Event(at(tx, 1), "insert", new, old, absent)]


def test_a_row_that_the_batch_doesnt_know_is_in_the_table() -> None:
    found = find_sources(moved(1, "k1", "k2", frozenset({"b"})), ("a", "b"))

    assert found == {at(1, 1): {"b": Source(at(1, 1), in_table=True)}}


def test_a_chain_leads_to_the_table_row_of_its_first_key() -> None:
    found = find_sources([*moved(1, "k1", "k2"), *moved(2, "k2", "k3"), *moved(3, "k3", "k4")], ("a", "b"))

    first = Source(at(1, 1), in_table=True)
    assert found == {at(tx, 1): {"a": first, "b": first} for tx in (1, 2, 3)}


def test_each_column_stands_in_the_last_change_that_carries_it() -> None:
    events = [
        Event(at(1), "update", "k1", absent=frozenset({"b"})),
        Event(at(2), "update", "k1", absent=frozenset({"a"})),
        Event(at(3), "update", "k1", absent=frozenset({"a"})),
        *moved(4, "k1", "k2"),
    ]

    assert find_sources(events, ("a", "b")) == {
        at(4, 1): {"a": Source(at(1), False), "b": Source(at(3), False)}
    }


def test_behind_an_insert_there_is_nothing_in_the_table() -> None:
    events = [Event(at(1), "delete", "k1"), Event(at(2), "insert", "k1", absent=frozenset({"b"}))]

    assert find_sources([*events, *moved(3, "k1", "k2")], ("a", "b")) == {
        at(3, 1): {"a": Source(at(2), False)}
    }


def test_a_key_change_that_carries_everything_needs_nothing_and_is_a_source() -> None:
    events = [*moved(1, "k1", "k2", frozenset()), *moved(2, "k2", "k3", frozenset({"a"}))]

    assert find_sources(events, ("a", "b")) == {at(2, 1): {"a": Source(at(1, 1), False)}}
