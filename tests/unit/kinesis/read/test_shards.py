from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kinesis.read.shards import ShardInfo, hash_key, overlapping, parents_first

SPLIT = [ShardInfo("c", 5, 9, ("a",)), ShardInfo("b", 0, 4, ("a",)), ShardInfo("a", 0, 9, is_closed=True)]


def test_parents_come_before_their_children() -> None:
    merged = ShardInfo("d", 0, 9, ("b", "c"))
    assert [shard.shard_id for shard in parents_first([merged, *SPLIT])] == ["a", "b", "c", "d"]
    orphan = ShardInfo("e", 0, 9, ("long gone",))
    assert parents_first([orphan]) == [orphan]


@pytest.mark.parametrize(
    ("wanted", "groups"),
    [
        ("bc", [["b"], ["c"]]),
        ("abc", [["a", "b", "c"]]),
        ("ac", [["a", "c"]]),
        ("a", [["a"]]),
        ("", []),
    ],
)
def test_a_parent_is_in_one_group_with_its_children(wanted: str, groups: list[list[str]]) -> None:
    assert overlapping({shard.shard_id: shard for shard in SPLIT}, wanted) == groups


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=8))
def test_no_key_has_records_in_two_groups(spans: list[tuple[int, int]]) -> None:
    shards = {
        f"s{number}": ShardInfo(f"s{number}", low, low + size) for number, (low, size) in enumerate(spans)
    }
    groups = overlapping(shards, shards)
    assert sorted(name for group in groups for name in group) == sorted(shards)
    for key in range(45):
        holders = {name for name, shard in shards.items() if shard.low <= key <= shard.high}
        assert sum(bool(holders & set(group)) for group in groups) <= 1


def test_a_partition_key_goes_by_its_hash() -> None:
    key = hash_key("penstock/slot")
    assert ShardInfo("x", key, key).has_key("penstock/slot")
    assert not ShardInfo("x", key + 1, 2**128 - 1).has_key("penstock/slot")
