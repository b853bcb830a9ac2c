"""The plain reader of a marked stream: each of its rules, on streams made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.demo.stream_reader import StreamBroken, StreamReader
from penstock.kinesis.marked.prefix import MarkPrefix
from penstock.model.stream_position import History, StreamPosition

BY = "0123456789ab"
OTHER = "ba9876543210"


def change(name: str, commit_lsn: int, op_offset: int = 0, *, by: str = BY, timeline: int = 1) -> bytes:
    data = MarkPrefix(History(timeline, {}), by).put(payload(name), commit_lsn, op_offset)
    assert data is not None
    return data


def payload(name: str) -> bytes:
    return b'{"action":"%b","name":"%b"}' % (b"Q" if name.startswith("pointer") else b"I", name.encode())


def boundary(lsn: int, timeline: int = 1) -> str:
    return str(StreamPosition(timeline, lsn))


def manifest(
    since: str,
    resolved: str,
    shards: dict[str, tuple[int, int, int]] | None = None,
    **over: Any,
) -> bytes:
    spans = shards or {}
    given = {
        "action": "R", "system": "7", "slot": "slot", "by": BY, "since": since, "resolved": resolved,
        "changes": sum(count for *_, count in spans.values()), "bytes": 0,
        "shards": {name: [str(first), str(last), count] for name, (first, last, count) in spans.items()},
        "tables": "*",
    }  # fmt: skip
    return json.dumps(given | over).encode()


class Stream:
    """Shards with records numbered from 1."""

    def __init__(self, **shards: Sequence[bytes | None]) -> None:
        self.shards = shards

    def read(self, shard: str, first: int, last: int) -> list[tuple[int, bytes]]:
        return [
            (number, data)
            for number, data in enumerate(self.shards[shard], start=1)
            if data is not None and first <= number <= last
        ]

    def reader(self, applied: str | None = None) -> StreamReader:
        return StreamReader("7", "slot", self.read, applied)


def names(transactions: Sequence[Sequence[bytes]]) -> list[list[str]]:
    return [[json.loads(data)["name"] for data in each] for each in transactions]


A, B, C = change("a", 100), change("b", 100, 2), change("c", 110)
STREAM = Stream(x=[A, C], y=[b"no record of ours", B])
ALL = manifest(boundary(90), boundary(120), {"x": (1, 2, 2), "y": (2, 2, 1)})


def test_transactions_are_whole_and_in_order() -> None:
    reader = STREAM.reader()
    assert names(list(reader.transactions([ALL]))) == [["a", "b"], ["c"]]
    assert reader.applied == boundary(120)
    assert list(reader.transactions([ALL])) == [], "a manifest that comes again says nothing new"


def test_what_was_applied_is_left_out_and_still_counted() -> None:
    assert names(list(STREAM.reader(boundary(110)).transactions([ALL]))) == [["c"]]


def test_an_earlier_leadership_s_records_are_passed_over() -> None:
    stream = Stream(x=[change("old", 100, by=OTHER), A, change("old", 110, by=OTHER), C], y=[B, B])
    said = manifest(boundary(90), boundary(120), {"x": (2, 4, 2), "y": (1, 2, 1)})
    assert names(list(stream.reader().transactions([said]))) == [["a", "b"], ["c"]]


def test_an_original_goes_before_its_pointer_in_any_order() -> None:
    pointer = change("pointer", 100)
    for both in ([A, pointer], [pointer, A]):
        said = manifest(boundary(90), boundary(105), {"x": (1, 2, 1)})
        assert names(list(Stream(x=both).reader().transactions([said]))) == [["a"]]


def test_manifests_that_came_early_wait_for_those_before_them() -> None:
    first = manifest(boundary(90), boundary(105), {"x": (1, 1, 1), "y": (2, 2, 1)})
    second = manifest(boundary(105), boundary(120), {"x": (2, 2, 1)})
    reader = STREAM.reader(boundary(90))
    assert names(list(reader.transactions([second, first]))) == [["a", "b"], ["c"]]
    reader.end()


def test_a_hole_is_a_gap_that_names_both_ends() -> None:
    reader = STREAM.reader(boundary(90))
    assert list(reader.transactions([manifest(boundary(105), boundary(120), {"x": (2, 2, 1)})])) == []
    with pytest.raises(StreamBroken, match=f"applied up to {boundary(90)}.* begins at {boundary(105)}"):
        reader.end()


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_changes_is_an_error(count: int) -> None:
    said = manifest(boundary(90), boundary(105), {"x": (1, 1, 1), "y": (2, 2, 1)}, changes=count)
    with pytest.raises(StreamBroken, match=f"2 changes from .*, not {count}"):
        list(STREAM.reader().transactions([said]))


def test_a_trimmed_range_is_an_error_for_one_who_has_begun_and_too_old_for_one_who_has_not() -> None:
    stream = Stream(x=[None, C], y=[None, None])
    later = manifest(boundary(105), boundary(120), {"x": (2, 2, 1)})
    assert names(list(stream.reader().transactions([ALL, later]))) == [["c"]]
    with pytest.raises(StreamBroken, match="x has lost what stood there from 1 on"):
        list(stream.reader(boundary(90)).transactions([ALL, later]))


def test_another_slot_is_no_concern_and_another_system_is_an_error() -> None:
    strange = manifest(boundary(90), boundary(120), slot="other", system="8")
    assert names(list(STREAM.reader().transactions([strange, ALL]))) == [["a", "b"], ["c"]]
    with pytest.raises(StreamBroken, match="system 8: not 7"):
        list(STREAM.reader().transactions([manifest(boundary(90), boundary(120), system="8")]))


HISTORY = [[1, "0/6E"]]
"""Timeline 1 was left at 110."""
SWITCHED = manifest(boundary(110), boundary(130, 2), {"x": (1, 1, 1)}, history=HISTORY)
ON_TWO = Stream(x=[change("d", 115, timeline=2)])


def test_a_promoted_standby_goes_on_from_what_both_have() -> None:
    assert names(list(ON_TWO.reader(boundary(110)).transactions([SWITCHED]))) == [["d"]]


@pytest.mark.parametrize("applied", [boundary(111), boundary(112, 3)])
def test_what_never_happened_in_the_new_timeline_can_not_be_built_on(applied: str) -> None:
    said = manifest(boundary(105), boundary(130, 4), {"x": (1, 1, 1)}, history=HISTORY)
    with pytest.raises(StreamBroken, match="never happened in timeline 00000004"):
        list(ON_TWO.reader(applied).transactions([said]))
