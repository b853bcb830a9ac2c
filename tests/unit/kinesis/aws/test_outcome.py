from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from penstock.kinesis.aws.outcome import (
    RECORD_FAULT_CODES,
    STREAM_FAULT_CODES,
    Entry,
    Failed,
    Outcome,
    Refused,
    Taken,
    classify_error,
    is_in_order,
    judge,
    throttling_shards,
)
from penstock.kinesis.marked.manifest import ShardRange
from tests.kinesis_answers import entries

ACCEPTED, SLIPPED, RETRY, UNDELIVERABLE = (
    Outcome.ACCEPTED,
    Outcome.SLIPPED,
    Outcome.RETRY,
    Outcome.UNDELIVERABLE,
)
THROTTLED = "ProvisionedThroughputExceededException"
BROKEN = "InternalFailure"
INVALID = "ValidationException"


@pytest.mark.parametrize(
    ("keys", "codes", "outcomes"),
    [
        pytest.param("aba", [None, None, None], [ACCEPTED] * 3, id="all taken"),
        pytest.param("aba", [THROTTLED, None, None], [RETRY, ACCEPTED, SLIPPED], id="a later one slips"),
        pytest.param("aba", [None, None, BROKEN], [ACCEPTED, ACCEPTED, RETRY], id="an earlier one stays"),
        pytest.param("aaa", [None, BROKEN, None], [ACCEPTED, RETRY, SLIPPED], id="in the middle"),
        pytest.param("aaa", [THROTTLED] * 3, [RETRY, SLIPPED, SLIPPED], id="all fail: the first retries"),
        pytest.param("abab", [BROKEN, BROKEN, None, None], [RETRY, RETRY, SLIPPED, SLIPPED], id="two keys"),
        pytest.param("aab", [INVALID, None, None], [UNDELIVERABLE, SLIPPED, ACCEPTED], id="its own fault"),
        pytest.param("aa", [BROKEN, INVALID], [RETRY, SLIPPED], id="a fault behind a failure waits"),
        pytest.param("aa", [INVALID, INVALID], [UNDELIVERABLE, SLIPPED], id="one fault a key at a time"),
        pytest.param("a", ["SomethingNew"], [RETRY], id="an unknown code is transient"),
        pytest.param("", [], [], id="nothing"),
    ],
)
def test_judgement(keys: str, codes: Sequence[str | None], outcomes: Sequence[Outcome]) -> None:
    assert judge(keys, entries(codes)) == outcomes


def test_accepted_are_exactly_the_taken_records_before_the_first_failure_of_their_key() -> None:
    for keys in itertools.product("ab", repeat=4):
        for codes in itertools.product([None, THROTTLED, INVALID], repeat=4):
            outcomes = judge(keys, entries(codes))
            for place, (key, outcome) in enumerate(zip(keys, outcomes, strict=True)):
                own = [code for k, code in zip(keys[: place + 1], codes, strict=False) if k == key]
                assert (outcome is ACCEPTED) == (not any(own))
                assert (outcome is SLIPPED) == any(own[:-1])


def placed(*places: str) -> list[Entry]:
    """`x12`: taken in shard x as number 12; anything without a number is an error."""
    return [
        Entry(shard=each[0], sequence=each[1:]) if each[1:].isdigit() else Entry(error=each)
        for each in places
    ]


@pytest.mark.parametrize(
    ("keys", "entries", "outcomes"),
    [
        pytest.param("aa", placed("x9", "x10"), [ACCEPTED] * 2, id="numbers compare by value"),
        pytest.param("aa", placed("x10", "x9"), [ACCEPTED, SLIPPED], id="the later stands earlier"),
        pytest.param("aaa", placed("x1", "x3", "x2"), [ACCEPTED, ACCEPTED, SLIPPED], id="the last"),
        pytest.param("aaa", placed("x2", "x1", "x3"), [ACCEPTED, SLIPPED, SLIPPED], id="all behind it"),
        pytest.param("ab", placed("x2", "x1"), [ACCEPTED] * 2, id="of two keys nothing is promised"),
        pytest.param("aa", placed("x2", "y1"), [ACCEPTED] * 2, id="two shards can't be compared"),
        pytest.param("aba", placed("x2", BROKEN, "x1"), [ACCEPTED, RETRY, SLIPPED], id="beside a failure"),
    ],
)
def test_a_record_out_of_order_has_slipped(
    keys: str, entries: Sequence[Entry], outcomes: Sequence[Outcome]
) -> None:
    assert judge(keys, entries) == outcomes
    assert is_in_order(keys, entries) == all(outcome is ACCEPTED for outcome in outcomes)


@pytest.mark.parametrize("codes", [[None], [None] * 3])
def test_an_answer_for_another_number_of_records_is_no_answer(codes: Sequence[str | None]) -> None:
    with pytest.raises(ValueError, match=r"answered for \d records of 2"):
        judge("ab", entries(codes))


@pytest.mark.parametrize("code", sorted(RECORD_FAULT_CODES))
def test_what_a_record_is_refuses_the_request(code: str) -> None:
    assert classify_error(code, "why") == Refused(code, "why")


@pytest.mark.parametrize("code", sorted(STREAM_FAULT_CODES))
def test_what_the_stream_is_fails_it_loudly(code: str) -> None:
    assert classify_error(code, "why") == Failed(code, "why", stream_fault=True)


@pytest.mark.parametrize(
    "code",
    [
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "KMSThrottlingException",
        "InternalFailure",
        "ServiceUnavailable",
        "HTTP500",
        "SomethingNew",
        "",
    ],
)
def test_anything_else_is_transient(code: str) -> None:
    assert classify_error(code, "why") == Failed(code, "why", stream_fault=False)


def test_no_code_means_two_things() -> None:
    assert not RECORD_FAULT_CODES & STREAM_FAULT_CODES


def test_the_shard_that_is_at_its_limit_is_named_in_the_message() -> None:
    busy = "Rate exceeded for shard shardId-000000000007 in stream orders under account 123456789012."
    answer = [
        Entry(error=THROTTLED, message=busy),
        Entry(error=THROTTLED),
        Entry(error="InternalFailure", message="Internal service failure."),
        Entry(shard="shardId-000000000001", sequence="7"),
    ]

    assert throttling_shards(answer) == ["shardId-000000000007", "unknown"]


def test_ranges_of_a_part_hold_all_of_it_and_their_ends_are_records() -> None:
    shards, numbers = "xyxxyzx", ["9", "8", "10", "100", "11", "7", "12"]
    whole = Taken.of(
        [Entry(shard=shard, sequence=number) for shard, number in zip(shards, numbers, strict=True)]
    )
    assert whole.shards == {
        "x": ShardRange("9", "100", 4),
        "y": ShardRange("8", "11", 2),
        "z": ShardRange("7", "7", 1),
    }
    for at in range(len(shards) + 1):
        parts = whole.split(at)
        assert [*parts[0].entries, *parts[1].entries] == whole.entries
        for part in parts:
            assert set(part.shards) == {entry.shard for entry in part.entries}
            for shard, found in part.shards.items():
                its_own = [int(entry.sequence) for entry in part.entries if entry.shard == shard]
                assert found.count == len(its_own)
                assert int(found.first) <= min(its_own) <= max(its_own) <= int(found.last)
                assert {found.first, found.last} <= {
                    entry.sequence for entry in whole.entries if entry.shard == shard
                }
