from __future__ import annotations

from collections.abc import Container, Sequence

import pytest

from penstock.kinesis.write.batcher import MicroBatcher, Stay
from penstock.kinesis.write.event import ChangeEvent


def event(key: str, size: int = 1, *, at: float = 0.0, fault: str | None = None) -> ChangeEvent:
    return ChangeEvent(0, b"", key, size, 0, 0, at, fault)


def batcher(*events: ChangeEvent, max_records: int = 3, max_bytes: int = 100) -> MicroBatcher:
    made = MicroBatcher(max_records=max_records, max_bytes=max_bytes, max_delay_s=0.5)
    made.add(events, now=0.0)
    return made


def fill(made: MicroBatcher, busy: Container[str] = ()) -> tuple[list[ChangeEvent], list[ChangeEvent], int]:
    """The batch, what was diverted, and the batch's bytes."""
    batch: list[ChangeEvent] = []
    diverted: list[ChangeEvent] = []
    size = made.fill(batch, 0, busy=busy, divert=diverted.append, now=0.0)
    return batch, diverted, size


def keys(events: Sequence[ChangeEvent]) -> str:
    return "".join(one.partition_key for one in events)


def test_nothing_is_due_of_nothing() -> None:
    empty = batcher()

    assert not empty.is_due(1e9, idle=True)
    assert (empty.due_at(), len(empty)) == (None, 0)


def test_idle_means_now() -> None:
    one = batcher(event("a", at=10.0))

    assert one.is_due(10.0, idle=True)
    assert not one.is_due(10.0, idle=False)


def test_busy_means_until_the_delay_is_over() -> None:
    one = batcher(event("a", at=10.0), event("b", at=10.4))

    assert one.due_at() == 10.5
    assert not one.is_due(10.499, idle=False)
    assert one.is_due(10.5, idle=False)


def test_what_stays_behind_is_due_at_its_own_time() -> None:
    some = batcher(event("a", at=10.0), event("b", at=10.4), max_records=1)

    fill(some)

    assert some.due_at() == 10.9


@pytest.mark.parametrize(
    ("sizes", "due"),
    [
        pytest.param([1, 1], False, id="neither"),
        pytest.param([1, 1, 1], True, id="full by records"),
        pytest.param([60, 39], False, id="just below the bytes"),
        pytest.param([60, 40], True, id="full by bytes"),
        pytest.param([500], True, id="one that is larger than a batch"),
    ],
)
def test_busy_means_until_a_batch_is_full(sizes: Sequence[int], due: bool) -> None:
    assert batcher(*[event("a", size) for size in sizes]).is_due(0.0, idle=False) is due


def test_bytes_are_counted_down_with_everything_that_leaves() -> None:
    some = batcher(event("a", 40), event("b", 40), event("a", 40), event("c", 40))

    batch, diverted, size = fill(some, busy={"b"})

    assert (keys(batch), keys(diverted), size) == ("aa", "b", 80)
    assert len(some) == 1
    assert not some.is_due(0.0, idle=False)
    some.add([event("d", 60)], now=0.0)
    assert some.is_due(0.0, idle=False)


def test_a_batch_ends_at_its_records() -> None:
    some = batcher(*[event(key) for key in "abcde"])

    assert [keys(fill(some)[0]) for _ in range(3)] == ["abc", "de", ""]


def test_a_batch_ends_before_it_is_too_large_and_nothing_smaller_goes_past() -> None:
    some = batcher(event("a", 60), event("b", 41), event("c", 1))

    assert [keys(fill(some)[0]) for _ in range(2)] == ["a", "bc"]


def test_a_batch_may_be_as_large_as_the_limit() -> None:
    assert fill(batcher(event("a", 60), event("b", 40)))[2] == 100


def test_an_event_larger_than_a_batch_travels_alone() -> None:
    some = batcher(event("a", 10), event("b", 101), event("c", 1))

    assert [keys(fill(some)[0]) for _ in range(3)] == ["a", "b", "c"]


def test_what_is_in_the_batch_counts() -> None:
    some = batcher(event("a", 30), event("b", 30))
    batch = [event("x", 40), event("y", 20)]

    size = some.fill(batch, 60, busy={"x", "y"}, divert=lambda _: None, now=0.0)

    assert (keys(batch), size) == ("xya", 90)


def test_a_full_batch_takes_and_diverts_nothing() -> None:
    some = batcher(event("x"), event("a"))
    batch = [event("x"), event("y"), event("z")]
    diverted: list[ChangeEvent] = []

    assert some.fill(batch, 3, busy={"x"}, divert=diverted.append, now=0.0) == 3
    assert (keys(batch), diverted, len(some)) == ("xyz", [], 2)


def test_events_of_busy_keys_are_diverted_in_order() -> None:
    first, second = event("b"), event("b")

    batch, diverted, _ = fill(batcher(event("a"), first, event("c"), second), busy={"b"})

    assert keys(batch) == "ac"
    assert diverted == [first, second]


def test_an_event_with_a_fault_ends_the_batch_and_is_diverted_at_the_head_of_the_next() -> None:
    some = batcher(event("a"), event("a", fault="too_large"), event("b"))

    assert keys(fill(some)[0]) == "a"
    batch, diverted, _ = fill(some, busy={"a"})
    assert (keys(batch), keys(diverted)) == ("b", "a")


def test_an_event_with_a_fault_at_the_head_is_diverted_although_its_key_is_free() -> None:
    batch, diverted, size = fill(batcher(event("a", 7, fault="too_large"), event("b", 5)))

    assert (keys(batch), keys(diverted), size) == ("b", "a", 5)


@pytest.mark.parametrize(
    ("records", "size", "more", "room"),
    [(0, 0, 1_000, True), (2, 2, 98, True), (2, 2, 99, False), (3, 3, 1, False)],
    ids=["the first always", "up to the bytes", "over the bytes", "over the records"],
)
def test_room(records: int, size: int, more: int, room: bool) -> None:
    assert batcher().has_room([event("a")] * records, size, event("b", more)) is room


def leave(made: MicroBatcher, now: float, busy: Container[str] = ()) -> list[Stay]:
    """What the batcher says of those that leave it now."""
    made.fill([], 0, busy=busy, divert=lambda _: None, now=now)
    return made.take_stays()


def test_each_event_stays_from_its_own_arrival_until_it_leaves() -> None:
    some = batcher(max_records=3)
    some.add([event("a"), event("b")], now=10.0)
    some.add([event("c"), event("d")], now=10.25)

    assert leave(some, now=10.5) == [Stay(2, 0.5), Stay(1, 0.25)]
    assert leave(some, now=11.0) == [Stay(1, 0.75)]


def test_the_time_in_the_batcher_is_not_counted_from_the_socket() -> None:
    some = batcher()
    some.add([event("a", at=3.0)], now=10.0)

    assert leave(some, now=10.5) == [Stay(1, 0.5)]


def test_a_diverted_event_has_left_too() -> None:
    some = batcher()
    some.add([event("a"), event("b")], now=1.0)

    assert leave(some, now=2.0, busy={"b"}) == [Stay(2, 1.0)]


def test_a_stay_is_told_once_and_nobody_stays_where_nobody_came() -> None:
    some = batcher()
    some.add([], now=1.0)
    some.add([event("a")], now=2.0)

    assert leave(some, now=3.0) == [Stay(1, 1.0)]
    assert leave(some, now=4.0) == []
