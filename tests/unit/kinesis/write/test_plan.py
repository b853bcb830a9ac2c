from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.kinesis.aws.outcome import Outcome, judge
from penstock.kinesis.write.batcher import MicroBatcher, Stay
from penstock.kinesis.write.event import ChangeEvent
from penstock.kinesis.write.plan import PublishPlan, Request
from tests.kinesis_answers import entries

THROTTLED = "ProvisionedThroughputExceededException"
INVALID = "ValidationException"
BACKOFF_S = 10.0


def plan(*, max_requests: int = 4, max_records: int = 10, max_bytes: int = 1_000) -> PublishPlan:
    batcher = MicroBatcher(max_records=max_records, max_bytes=max_bytes, max_delay_s=1.0)
    return PublishPlan(
        batcher=batcher, max_requests=max_requests, backoff=lambda attempt: BACKOFF_S * 2.0**attempt
    )


def event(name: str, size: int = 1, *, at: float = 0.0, fault: str | None = None) -> ChangeEvent:
    """`a2` is the second change of key `a`."""
    return ChangeEvent(int(name[1:]), name.encode(), name[0], size, 0, 0, at, fault)


def add(to: PublishPlan, names: str, *, at: float = 0.0) -> None:
    to.add([event(name, at=at) for name in names.split()], now=at)


def names(events: Sequence[ChangeEvent]) -> str:
    return " ".join(one.payload.decode() for one in events)


def send(from_: PublishPlan, now: float = 0.0) -> Request:
    request = from_.next_request(now)
    assert request is not None
    return request


def requests(from_: PublishPlan, now: float = 0.0) -> list[str]:
    """All requests that may be sent now."""
    sent = []
    while request := from_.next_request(now):
        sent.append(names(request.events))
    return sent


def answer(to: PublishPlan, request: Request, failing: dict[str, str], now: float = 0.0) -> tuple[str, str]:
    """PutRecords fails the named records; returns what is accepted and what is undeliverable."""
    keys = [one.partition_key for one in request.events]
    codes = [failing.get(one.payload.decode()) for one in request.events]
    settled = to.settle(request, judge(keys, entries(codes)), now)
    return names(settled.accepted), names(settled.undeliverable)


def test_an_idle_plan_sends_at_once_and_a_busy_one_gathers() -> None:
    some = plan()
    add(some, "a1")
    assert requests(some) == ["a1"]

    add(some, "b1 c1", at=5.0)
    assert requests(some, 5.9) == []
    assert some.wake_at() == 6.0
    assert requests(some, 6.0) == ["b1 c1"]


def test_no_more_requests_than_allowed() -> None:
    some = plan(max_requests=2, max_records=1)
    add(some, "a1 b1 c1")

    first = send(some)
    assert requests(some) == ["b1"]
    assert some.is_behind(coming=1)
    assert some.wake_at() is None

    some.accept(first)
    assert requests(some) == ["c1"]


def test_a_key_is_in_one_request_and_its_newer_events_wait() -> None:
    some = plan(max_records=2)
    add(some, "a1 b1 a2 c1 a3")

    first = send(some)
    assert names(first.events) == "a1 b1"
    assert requests(some, 1.0) == ["c1"]

    some.accept(first)
    assert requests(some, 1.0) == ["a2 a3"]


def test_events_of_a_key_that_is_free_again_go_before_newer_ones() -> None:
    some = plan(max_records=2)
    add(some, "a1 b1 a2 a3 a4 a5")
    first = send(some)
    assert requests(some, 1.0) == []

    add(some, "a6 c1")
    some.accept(first)

    second = send(some, 1.0)
    assert names(second.events) == "a2 a3"
    assert requests(some, 1.0) == ["c1"]
    some.accept(second)
    third = send(some, 1.0)
    assert names(third.events) == "a4 a5"
    some.accept(third)
    assert requests(some, 1.0) == ["a6"]


def test_acceptance_ends_responsibility() -> None:
    some = plan()
    add(some, "a1 a2 b1")
    request = send(some)
    assert (some.held, some.is_active) == (3, True)

    some.accept(request)

    assert (some.held, some.parked, some.is_active) == (0, 0, False)
    assert some.wake_at() is None


def test_a_failed_event_takes_its_slipped_successors_along_and_nobody_else() -> None:
    some = plan()
    add(some, "a1 b1 a2 b2 a3")
    request = send(some)

    assert answer(some, request, {"a2": THROTTLED}) == ("a1 b1 b2", "")

    add(some, "b3 a4")
    assert requests(some) == ["b3"]
    assert some.wake_at() == BACKOFF_S
    retry = send(some, BACKOFF_S)
    assert names(retry.events) == "a2"
    some.accept(retry)
    assert requests(some, BACKOFF_S) == ["a3 a4"]


def test_newer_events_follow_only_when_the_retry_is_accepted() -> None:
    some = plan()
    add(some, "a1 a2")
    answer(some, send(some), {"a1": THROTTLED})
    add(some, "a3")
    retry = send(some, BACKOFF_S)
    assert names(retry.events) == "a1"
    assert requests(some, BACKOFF_S) == []

    some.accept(retry)

    assert requests(some, BACKOFF_S) == ["a2 a3"]


def test_what_slipped_comes_again_step_by_step() -> None:
    """Issue 8, point 15: the shard is at its limit, and has most of it already."""
    some = plan(max_records=20)
    add(some, " ".join(f"a{number}" for number in range(1, 19)) + " b1")
    answer(some, send(some), {"a3": THROTTLED})
    sizes: list[int] = []
    now = BACKOFF_S
    while request := some.next_request(now):
        if len(sizes) == 2:
            answer(some, request, {"a7": THROTTLED}, now)
            now += BACKOFF_S
        else:
            some.accept(request)
        sizes.append(len(request.events))

    assert sizes == [1, 2, 4, 1, 2, 4, 5]
    assert (some.held, some.is_active) == (0, False)


def test_a_key_that_fails_for_long_is_spilled_and_its_head_still_tried() -> None:
    some = plan()
    add(some, "a1 a2 b1")
    answer(some, send(some), {"a1": THROTTLED}, 1.0)
    add(some, "a3 b2", at=2.0)
    assert requests(some, 2.0) == ["b2"]

    some.spill(failing_since=0.5)
    assert some.take_abandoned() == [], "it has not failed for long enough"
    some.spill(failing_since=1.5)
    add(some, "a4", at=3.0)
    assert requests(some, 4.5) == []
    assert names(some.take_abandoned()) == "a2 a3 a4"

    retry = send(some, 1.0 + BACKOFF_S)
    assert names(retry.events) == "a1"
    assert not some.has_recovered
    some.accept(retry)
    assert some.has_recovered
    add(some, "a5", at=30.0)
    assert requests(some, 30.0) == [], "a2 has to come first"


def test_keys_that_fail_for_long_are_counted_until_they_are_accepted() -> None:
    some = plan()
    add(some, "a1 b1 c1")
    answer(some, send(some), {"a1": THROTTLED}, 1.0)
    add(some, "b2", at=2.0)
    answer(some, send(some, 3.0), {"b2": THROTTLED}, 3.0)

    assert some.failing_keys(since=0.5) is None
    assert some.failing_keys(since=1.0) == (1, 1.0)
    assert some.failing_keys(since=3.0) == (2, 1.0)

    answer(some, send(some, 1.0 + BACKOFF_S), {"a1": THROTTLED}, 1.0 + BACKOFF_S)
    assert some.failing_keys(since=1.0) == (1, 1.0), "a further failure starts nothing afresh"
    some.accept(send(some, 100.0))
    some.accept(send(some, 100.0))
    assert some.failing_keys(since=100.0) is None


def test_a_record_refused_alone_is_tried_again_before_it_counts_as_undeliverable() -> None:
    batcher = MicroBatcher(max_records=10, max_bytes=1_000, max_delay_s=1.0)
    some = PublishPlan(
        batcher=batcher, max_requests=4, backoff=lambda attempt: BACKOFF_S, refusal_patience_s=25.0
    )
    add(some, "a1 a2")
    refused_at = []
    now = 0.0
    while request := some.next_request(now):
        if names(request.events) != "a1":
            assert some.refuse(request, now).undeliverable == []
            continue
        refused_at.append(now)
        undeliverable = some.refuse(request, now).undeliverable
        now = some.wake_at() or now

    assert refused_at == [0.0, 10.0, 20.0, 30.0]
    assert names(undeliverable) == "a1"


def test_a_record_that_is_accepted_after_all_lets_its_key_go_on() -> None:
    batcher = MicroBatcher(max_records=10, max_bytes=1_000, max_delay_s=1.0)
    some = PublishPlan(
        batcher=batcher, max_requests=4, backoff=lambda attempt: BACKOFF_S, refusal_patience_s=25.0
    )
    add(some, "a1 a2")
    some.refuse(send(some), 0.0)
    some.refuse(send(some, 0.0), 0.0)

    some.accept(send(some, BACKOFF_S))

    assert requests(some, BACKOFF_S) == ["a2"]


def test_each_failure_waits_longer() -> None:
    some = plan()
    add(some, "a1")
    now = 0.0
    for attempt in range(5):
        request = send(some, now)
        assert request.attempt == attempt
        some.fail(request, now)
        now += BACKOFF_S * 2.0**attempt
        assert some.wake_at() == now
        assert some.next_request(now - 0.001) is None


def test_when_nothing_is_known_all_of_it_comes_again() -> None:
    some = plan()
    add(some, "a1 b1 a2")
    some.fail(send(some), 3.0)
    add(some, "a3 c1")

    assert requests(some, 3.0) == ["c1"]
    assert requests(some, 3.0 + BACKOFF_S) == ["a1 b1 a2"]
    assert some.held == 5


def test_due_retries_go_before_what_is_new() -> None:
    some = plan(max_requests=1)
    add(some, "a1")
    some.fail(send(some), 0.0)
    add(some, "b1")

    assert requests(some, BACKOFF_S) == ["a1"]


def test_a_refused_request_is_split_by_keys() -> None:
    some = plan()
    add(some, "a1 b1 a2 c1 d1")

    assert some.refuse(send(some), 7.0) == ([], [])

    assert requests(some, 7.0) == ["a1 b1 a2", "c1 d1"]
    assert some.held == 5


def test_a_refused_request_of_one_key_is_split_in_order() -> None:
    some = plan()
    add(some, "a1 a2 a3 a4 a5")
    some.refuse(send(some), 0.0)
    add(some, "a6")

    first = send(some)
    assert names(first.events) == "a1 a2"
    assert requests(some, 1.0) == []
    some.accept(first)
    assert requests(some, 1.0) == ["a3 a4 a5 a6"]


def test_the_record_at_fault_is_found_and_the_others_get_through() -> None:
    some = plan()
    add(some, "a1 b1 b2 b3 c1")
    accepted, undeliverable = [], []
    while request := some.next_request(1.0):
        if "b2" in names(request.events):
            undeliverable += some.refuse(request, 1.0).undeliverable
        else:
            some.accept(request)
            accepted += request.events

    assert sorted(names(accepted).split()) == ["a1", "b1", "c1"]
    assert names(undeliverable) == "b2"
    assert (some.held, some.parked, some.is_active) == (2, 0, False)


def test_an_undeliverable_event_holds_up_its_key_and_no_other() -> None:
    some = plan()
    add(some, "a1 a2 b1")
    assert answer(some, send(some), {"a1": INVALID}) == ("b1", "a1")

    add(some, "a3 b2")

    assert requests(some, 1e6) == ["b2"]
    assert (some.held, some.parked) == (4, 0)


def test_a_parked_key_is_given_up_with_all_that_waits_behind_it() -> None:
    some = plan()
    add(some, "a1 a2 b1")
    settled = some.settle(send(some), [Outcome.UNDELIVERABLE, Outcome.SLIPPED, Outcome.ACCEPTED], 0.0)

    some.park(settled.undeliverable[0])
    add(some, "a3 b2")

    assert requests(some, 1e6) == ["b2"]
    assert names(some.take_abandoned()) == "a1 a2 a3"
    assert some.take_abandoned() == []
    assert (some.held, some.parked) == (1, 1)


def test_a_replaced_event_goes_first() -> None:
    some = plan()
    add(some, "a1 a2")
    request = send(some)
    settled = some.settle(request, [Outcome.UNDELIVERABLE, Outcome.SLIPPED], 0.0)
    add(some, "a3")

    some.replace(settled.undeliverable[0], 5.0)

    assert some.parked == 0
    pointer = send(some, 5.0)
    assert names(pointer.events) == "a1"
    assert requests(some, 5.0) == []
    some.accept(pointer)
    assert requests(some, 5.0) == ["a2 a3"]


def test_an_event_with_a_fault_parks_its_key_when_it_is_the_oldest() -> None:
    some = plan()
    some.add([event("a1"), event("a2", fault="too_large"), event("a3"), event("b1")], now=0.0)

    first = send(some)
    assert names(first.events) == "a1"
    assert requests(some, 1.0) == ["b1"]
    assert (some.parked, some.held) == (0, 4)

    some.accept(first)
    assert requests(some, 1e6) == []
    assert (some.parked, some.held) == (1, 1)
    assert names(some.take_abandoned()) == "a2 a3"


def test_a_fault_at_the_head_of_a_free_key_parks_it_at_once() -> None:
    some = plan()
    some.add([event("a1", fault="too_large"), event("a2"), event("b1")], now=0.0)

    assert requests(some, 1.0) == ["b1"]
    assert requests(some, 1e6) == []
    assert (some.parked, some.held) == (1, 1)
    assert names(some.take_abandoned()) == "a1 a2"


def test_a_plan_that_only_waits_for_somebody_is_not_active() -> None:
    some = plan()
    some.add([event("a1", fault="too_large")], now=0.0)

    assert requests(some) == []
    assert (some.is_active, some.wake_at(), some.held) == (False, None, 0)


@pytest.mark.parametrize(
    ("sizes", "sent"),
    [
        pytest.param([40, 40, 40], ["a1 a2", "a3"], id="by bytes"),
        pytest.param([200, 1, 1], ["a1", "a2 a3"], id="a large one alone"),
    ],
)
def test_limits_hold_for_events_that_waited(sizes: Sequence[int], sent: Sequence[str]) -> None:
    some = plan(max_bytes=100)
    add(some, "a0")
    first = send(some)
    some.add([event(f"a{place}", size) for place, size in enumerate(sizes, start=1)], now=0.0)
    assert requests(some, 1.0) == []

    some.accept(first)
    seen = []
    while request := some.next_request(1.0):
        seen.append(names(request.events))
        some.accept(request)
    assert seen == sent


def test_free_keys_share_a_request_with_what_is_new() -> None:
    some = plan(max_requests=1)
    add(some, "a1 b1")
    first = send(some)
    add(some, "a2 c1 b2")
    some.accept(first)

    assert requests(some) == ["a2 c1 b2"]


def test_an_answer_of_the_wrong_length_is_not_guessed_at() -> None:
    some = plan()
    add(some, "a1 b1")

    with pytest.raises(ValueError):
        some.settle(send(some), [Outcome.ACCEPTED], 0.0)


def test_it_is_behind_when_no_request_is_free_and_the_next_one_is_full() -> None:
    some = plan(max_requests=1, max_records=2)
    add(some, "a1 b1")
    assert not some.is_behind(coming=5)
    first = send(some)
    add(some, "c1")
    assert not some.is_behind(coming=0)
    assert some.is_behind(coming=1)
    add(some, "d1")
    assert some.is_behind(coming=0)

    some.fail(first, now=0.0)

    assert not some.is_behind(coming=5)


def test_it_tells_how_long_events_were_in_the_batcher() -> None:
    some = plan()
    add(some, "a1 b1", at=1.0)
    send(some, now=1.0)
    add(some, "c1", at=2.0)
    send(some, now=3.0)

    assert some.take_stays() == [Stay(2, 0.0), Stay(1, 1.0)]
